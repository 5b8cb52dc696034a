// The softmax slot in NEON.
// Static inline, in every file of kernels_arm/ that needs it with that file's flags.
#pragma once

#include "kernels_arm/lanes_neon.h"
#include "kernels_arm/math_neon.h"

namespace adder {
namespace {

// A comparison and not vmaxq, which gives NaN where either operand is one.
inline float32x4_t Larger(float32x4_t x, float32x4_t m) { return vbslq_f32(vcgtq_f32(x, m), x, m); }

float Softmax(float* x, size_t n, float* largest) {
  float32x4_t m[kQuads], s[kQuads];
  for (size_t q = 0; q < kQuads; ++q) {
    m[q] = vdupq_n_f32(*largest);
    s[q] = vdupq_n_f32(0.0f);
  }
  for (size_t i = 0; i < n; i += kLanes) {
    for (size_t q = 0; q < kQuads; ++q) m[q] = Larger(Load(x + i + q * kWidth), m[q]);
  }
  const float32x4_t m4 = Larger(Larger(m[3], m[1]), Larger(m[2], m[0]));
  const float32x4_t m2 = Larger(vextq_f32(m4, m4, 2), m4);
  const float32x4_t m1 = Larger(vdupq_laneq_f32(m2, 1), m2);
  *largest = vgetq_lane_f32(m1, 0);

  const float32x4_t shift = vdupq_n_f32(*largest);
  for (size_t i = 0; i < n; i += kLanes) {
    for (size_t q = 0; q < kQuads; ++q) {
      const float32x4_t e = Exp(vsubq_f32(Load(x + i + q * kWidth), shift));
      s[q] = vaddq_f32(s[q], e);
      vst1q_f32(x + i + q * kWidth, e);
    }
  }
  const float32x4_t four = vaddq_f32(vaddq_f32(s[0], s[2]), vaddq_f32(s[1], s[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

}  // namespace
}  // namespace adder
