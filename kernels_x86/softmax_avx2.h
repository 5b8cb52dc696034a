// The softmax slot in AVX2.
// Static inline: only files compiled with -mavx2 -mfma may include it.
#pragma once

#include "kernels_x86/math_avx2.h"
#include "runtime/kernels.h"

namespace adder {
namespace {

// max_ps(a, b) is a > b ? a : b, as the scalar text compares.
float Softmax(float* x, size_t n, float* largest) {
  constexpr size_t kHalf = kLanes / 2;
  __m256 m0 = _mm256_set1_ps(*largest), m1 = m0;
  for (size_t i = 0; i < n; i += kLanes) {
    m0 = _mm256_max_ps(_mm256_loadu_ps(x + i), m0);
    m1 = _mm256_max_ps(_mm256_loadu_ps(x + i + kHalf), m1);
  }
  const __m256 m = _mm256_max_ps(m1, m0);
  __m128 most = _mm_max_ps(_mm256_extractf128_ps(m, 1), _mm256_castps256_ps128(m));
  most = _mm_max_ps(_mm_movehl_ps(most, most), most);
  most = _mm_max_ss(_mm_movehdup_ps(most), most);
  *largest = _mm_cvtss_f32(most);

  const __m256 shift = _mm256_set1_ps(*largest);
  __m256 s0 = _mm256_setzero_ps(), s1 = s0;
  for (size_t i = 0; i < n; i += kLanes) {
    const __m256 e0 = Exp(_mm256_sub_ps(_mm256_loadu_ps(x + i), shift));
    const __m256 e1 = Exp(_mm256_sub_ps(_mm256_loadu_ps(x + i + kHalf), shift));
    s0 = _mm256_add_ps(s0, e0);
    s1 = _mm256_add_ps(s1, e1);
    _mm256_storeu_ps(x + i, e0);
    _mm256_storeu_ps(x + i + kHalf, e1);
  }
  const __m256 s = _mm256_add_ps(s0, s1);
  __m128 total = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  total = _mm_add_ps(total, _mm_movehl_ps(total, total));
  total = _mm_add_ss(total, _mm_movehdup_ps(total));
  return _mm_cvtss_f32(total);
}

}  // namespace
}  // namespace adder
