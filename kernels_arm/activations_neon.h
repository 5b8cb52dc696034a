// The gates of neon.cc, and the scaled sum.
// Static inline, as math_neon.h.
#pragma once

#include "kernels_arm/lanes_neon.h"
#include "kernels_arm/math_neon.h"
#include "runtime/kernels.h"

namespace adder {
namespace {

template <typename Activation>
inline void Gate(const float* z, size_t n, float* y, Activation activation) {
  if (z == nullptr) {
    for (size_t i = 0; i < n; i += kWidth) {
      vst1q_f32(y + i, activation(Load(y + i)));
    }
    return;
  }
  for (size_t i = 0; i < n; i += kWidth) {
    vst1q_f32(y + i, vmulq_f32(Load(y + i), activation(Load(z + i))));
  }
}

inline void SiluMul(const float* z, size_t n, float* y) {
  Gate(z, n, y, [](float32x4_t x) { return Silu(x); });
}
inline void Relu2Mul(const float* z, size_t n, float* y) {
  Gate(z, n, y, [](float32x4_t x) { return Relu2(x); });
}
inline void GeluMul(const float* z, size_t n, float* y) {
  Gate(z, n, y, [](float32x4_t x) { return Gelu(x); });
}

inline void AddScaled(const float* x, float scale, size_t n, float* y) {
  for (size_t i = 0; i < n; i += kWidth) {
    vst1q_f32(y + i, vfmaq_n_f32(Load(y + i), Load(x + i), scale));
  }
}

}  // namespace
}  // namespace adder
