// The softmax slot in AVX-512.
// Static inline: only files compiled with -mavx512f -mavx512dq may include it.
#pragma once

#include "kernels_x86/math_avx512.h"
#include "runtime/kernels.h"

namespace adder {
namespace {

// max_ps(a, b) is a > b ? a : b, as the scalar text compares.
float Softmax(float* x, size_t n, float* largest) {
  __m512 m = _mm512_set1_ps(*largest);
  for (size_t i = 0; i < n; i += kLanes) m = _mm512_max_ps(Load(x + i), m);
  const __m256 eight = _mm256_max_ps(_mm512_extractf32x8_ps(m, 1), _mm512_castps512_ps256(m));
  __m128 most = _mm_max_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
  most = _mm_max_ps(_mm_movehl_ps(most, most), most);
  most = _mm_max_ss(_mm_movehdup_ps(most), most);
  *largest = _mm_cvtss_f32(most);

  const __m512 shift = _mm512_set1_ps(*largest);
  __m512 s = _mm512_setzero_ps();
  for (size_t i = 0; i < n; i += kLanes) {
    const __m512 e = Exp(_mm512_sub_ps(Load(x + i), shift));
    s = _mm512_add_ps(s, e);
    _mm512_storeu_ps(x + i, e);
  }
  const __m256 sums = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
  __m128 total = _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
  total = _mm_add_ps(total, _mm_movehl_ps(total, total));
  total = _mm_add_ss(total, _mm_movehdup_ps(total));
  return _mm_cvtss_f32(total);
}

}  // namespace
}  // namespace adder
