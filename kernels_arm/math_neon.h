// The functions of runtime/scalar_math.h in NEON, operation by operation.
// Static inline, in every file of kernels_arm/ that needs it with that file's flags.
#pragma once

#include <arm_neon.h>

#include "runtime/kernels.h"

namespace adder {
namespace {

// `value` where x is not below `least` (NaN is not), else 0.
inline float32x4_t ZeroBelow(float least, float32x4_t x, float32x4_t value) {
  const uint32x4_t below = vcltq_f32(x, vdupq_n_f32(least));
  return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(value), below));
}

// vminq (FMIN) gives NaN when either operand is one, as the scalar text does; its other difference
// from a comparison, the sign of zero, cannot show at limits that are not zero.
inline float32x4_t AtMost(float32x4_t x, float limit) { return vminq_f32(x, vdupq_n_f32(limit)); }

// x where it is above 0 (NaN is not), else 0.
inline float32x4_t Positive(float32x4_t x) {
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), vcgtzq_f32(x)));
}

inline float32x4_t Exp2Scaled(float32x4_t shifted, float32x4_t r) {
  float32x4_t p = vfmaq_f32(vdupq_n_f32(kExp2C4), vdupq_n_f32(kExp2C5), r);
  p = vfmaq_f32(vdupq_n_f32(kExp2C3), p, r);
  p = vfmaq_f32(vdupq_n_f32(kExp2C2), p, r);
  p = vfmaq_f32(vdupq_n_f32(kExp2C1), p, r);
  p = vfmaq_f32(vdupq_n_f32(1.0f), p, r);
  const int32x4_t bits =
      vaddq_s32(vshlq_n_s32(vreinterpretq_s32_f32(shifted), 23), vdupq_n_s32(0x3f800000));
  return vmulq_f32(p, vreinterpretq_f32_s32(bits));
}

inline float32x4_t Exp2(float32x4_t x) {
  const float32x4_t shift = vdupq_n_f32(kRoundingShift);
  const float32x4_t clamped = AtMost(x, kExp2Max);
  const float32x4_t shifted = vaddq_f32(clamped, shift);
  const float32x4_t r = vsubq_f32(clamped, vsubq_f32(shifted, shift));
  return ZeroBelow(kExp2Min, x, Exp2Scaled(shifted, r));
}

inline float32x4_t Exp(float32x4_t x) {
  const float32x4_t shift = vdupq_n_f32(kRoundingShift);
  const float32x4_t high = vdupq_n_f32(kLog2eHigh);
  const float32x4_t clamped = AtMost(x, kExpMax);
  const float32x4_t shifted = vfmaq_f32(shift, clamped, high);
  const float32x4_t n = vsubq_f32(shifted, shift);
  const float32x4_t r = vfmaq_f32(vnegq_f32(n), clamped, high);
  return ZeroBelow(kExpMin, x, Exp2Scaled(shifted, vfmaq_f32(r, clamped, vdupq_n_f32(kLog2eLow))));
}

inline float32x4_t Silu(float32x4_t x) {
  return vdivq_f32(x, vaddq_f32(vdupq_n_f32(1.0f), Exp(vnegq_f32(x))));
}

inline float32x4_t Softplus(float32x4_t x) {
  const float32x4_t u = Exp(vnegq_f32(vabsq_f32(x)));
  const float32x4_t s = vdivq_f32(u, vaddq_f32(vdupq_n_f32(2.0f), u));
  const float32x4_t z = vmulq_f32(s, s);
  float32x4_t p = vfmaq_f32(vdupq_n_f32(kAtanhC3), vdupq_n_f32(kAtanhC4), z);
  p = vfmaq_f32(vdupq_n_f32(kAtanhC2), p, z);
  p = vfmaq_f32(vdupq_n_f32(kAtanhC1), p, z);
  const float32x4_t twice = vaddq_f32(s, s);
  const float32x4_t log1p = vfmaq_f32(twice, vmulq_f32(twice, z), p);
  return vaddq_f32(Positive(x), log1p);
}

inline float32x4_t Relu2(float32x4_t x) {
  const float32x4_t positive = vmaxq_f32(x, vdupq_n_f32(0.0f));  // NaN stays
  return vmulq_f32(positive, positive);
}

inline float32x4_t Gelu(float32x4_t x) {
  const float32x4_t one = vdupq_n_f32(1.0f);
  const float32x4_t a = AtMost(vabsq_f32(x), kGeluMax);
  const float32x4_t t = vdivq_f32(one, vfmaq_f32(one, vdupq_n_f32(kGeluScale), a));
  const float32x4_t z = vsubq_f32(one, t);
  float32x4_t p = vfmaq_f32(vdupq_n_f32(kGeluC6), vdupq_n_f32(kGeluC7), z);
  p = vfmaq_f32(vdupq_n_f32(kGeluC5), p, z);
  p = vfmaq_f32(vdupq_n_f32(kGeluC4), p, z);
  p = vfmaq_f32(vdupq_n_f32(kGeluC3), p, z);
  p = vfmaq_f32(vdupq_n_f32(kGeluC2), p, z);
  p = vfmaq_f32(vdupq_n_f32(kGeluC1), p, z);
  p = vfmaq_f32(one, p, z);
  const float32x4_t tail = Exp(vmulq_n_f32(vmulq_f32(a, a), -0.5f));
  const float32x4_t erfc = vmulq_f32(tail, vmulq_f32(t, p));
  return vfmaq_f32(Positive(x), vmulq_n_f32(a, -0.5f), erfc);
}

}  // namespace
}  // namespace adder
