// The gates of avx2.cc, and the scaled sum.
// Static inline: only files compiled with -mavx2 -mfma may include it.
#pragma once

#include "kernels_x86/math_avx2.h"
#include "runtime/kernels.h"

namespace adder {
namespace {

template <typename Activation>
inline void Gate(const float* z, size_t n, float* y, Activation activation) {
  if (z == nullptr) {
    for (size_t i = 0; i < n; i += 8) {
      _mm256_storeu_ps(y + i, activation(_mm256_loadu_ps(y + i)));
    }
    return;
  }
  for (size_t i = 0; i < n; i += 8) {
    _mm256_storeu_ps(y + i,
                     _mm256_mul_ps(_mm256_loadu_ps(y + i), activation(_mm256_loadu_ps(z + i))));
  }
}

inline void SiluMul(const float* z, size_t n, float* y) {
  Gate(z, n, y, [](__m256 x) { return Silu(x); });
}
inline void Relu2Mul(const float* z, size_t n, float* y) {
  Gate(z, n, y, [](__m256 x) { return Relu2(x); });
}
inline void GeluMul(const float* z, size_t n, float* y) {
  Gate(z, n, y, [](__m256 x) { return Gelu(x); });
}

inline void AddScaled(const float* x, float scale, size_t n, float* y) {
  for (size_t i = 0; i < n; i += 8) {
    _mm256_storeu_ps(y + i, _mm256_fmadd_ps(_mm256_set1_ps(scale), _mm256_loadu_ps(x + i),
                                            _mm256_loadu_ps(y + i)));
  }
}

}  // namespace
}  // namespace adder
