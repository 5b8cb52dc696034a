// The gates of avx512.cc, and the scaled sum.
// Static inline: only files compiled with -mavx512f -mavx512dq may include it.
#pragma once

#include "kernels_x86/math_avx512.h"
#include "runtime/kernels.h"

namespace adder {
namespace {

template <typename Activation>
inline void Gate(const float* z, size_t n, float* y, Activation activation) {
  if (z == nullptr) {
    for (size_t i = 0; i < n; i += 16) {
      _mm512_storeu_ps(y + i, activation(Load(y + i)));
    }
    return;
  }
  for (size_t i = 0; i < n; i += 16) {
    _mm512_storeu_ps(y + i, _mm512_mul_ps(Load(y + i), activation(Load(z + i))));
  }
}

inline void SiluMul(const float* z, size_t n, float* y) {
  Gate(z, n, y, [](__m512 x) { return Silu(x); });
}
inline void Relu2Mul(const float* z, size_t n, float* y) {
  Gate(z, n, y, [](__m512 x) { return Relu2(x); });
}
inline void GeluMul(const float* z, size_t n, float* y) {
  Gate(z, n, y, [](__m512 x) { return Gelu(x); });
}

inline void AddScaled(const float* x, float scale, size_t n, float* y) {
  for (size_t i = 0; i < n; i += 16) {
    _mm512_storeu_ps(y + i, _mm512_fmadd_ps(_mm512_set1_ps(scale), Load(x + i), Load(y + i)));
  }
}

}  // namespace
}  // namespace adder
