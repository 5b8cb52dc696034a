// The transcendental functions and number conversions of Adder, operation by operation. Every table
// of kernels repeats exactly these operations in its own registers (math_avx2.h and so on), so that
// results agree in every bit; the sampler uses them too, so that sampled text agrees as well.
// Needs -ffp-contract=off and the default rounding mode. Errors are measured over all floats by
// tests/scalar_math_test.cc and are relative to the true value.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "runtime/math_constants.h"

namespace adder {

// To the nearest integer, ties to even. |x| < 2^22.
inline float RoundToEven(float x) { return (x + kRoundingShift) - kRoundingShift; }

// 2^(n + r), where `shifted` = n + kRoundingShift and |r| <= 1/2.
inline float Exp2Scaled(float shifted, float r) {
  float p = std::fmaf(kExp2C5, r, kExp2C4);
  p = std::fmaf(p, r, kExp2C3);
  p = std::fmaf(p, r, kExp2C2);
  p = std::fmaf(p, r, kExp2C1);
  p = std::fmaf(p, r, 1.0f);
  // The exponent bits of 2^n. A product and not an integer addition to p: NaN stays NaN.
  const uint32_t bits = (std::bit_cast<uint32_t>(shifted) << 23) + 0x3f800000u;
  return p * std::bit_cast<float>(bits);
}

// 2^x, error <= 2e-7. Exact for integers. Below 2^-126 exactly 0: a decaying state never drags
// subnormals along, and SIMD code can compute garbage there and mask it. Above 2^127 it stays
// 2^127, so that 1 + Exp2(x) is finite. NaN gives NaN.
//
// AVX-512 may use vrndscaleps for the rounding and vscalefps for the product: both round once and
// the result is a normal number, so the bits are the same.
inline float Exp2(float x) {
  if (x < kExp2Min) return 0.0f;
  const float clamped = x > kExp2Max ? kExp2Max : x;
  const float shifted = clamped + kRoundingShift;
  return Exp2Scaled(shifted, clamped - (shifted - kRoundingShift));
}

// e^x, error <= 2e-7. As Exp2(x log2 e), but with log2 e to 49 bits: a rounded product would lose
// up to 7 bits of large |x|. 0 below -87.34, 2^127 above 88.03.
inline float Exp(float x) {
  if (x < kExpMin) return 0.0f;
  const float clamped = x > kExpMax ? kExpMax : x;
  const float shifted = std::fmaf(clamped, kLog2eHigh, kRoundingShift);
  const float n = shifted - kRoundingShift;
  const float r = std::fmaf(clamped, kLog2eHigh, -n);
  return Exp2Scaled(shifted, std::fmaf(clamped, kLog2eLow, r));
}

// x / (1 + e^-x), error <= 4e-7 for x >= -88; below that x / 2^127 (nearly), where the true value
// is less than 1e-36 in magnitude.
inline float Silu(float x) { return x / (1.0f + Exp(-x)); }

// log(1 + e^x) = max(x, 0) + log1p(e^-|x|), error <= 4e-7; 0 below -87.34.
inline float Softplus(float x) {
  const float u = Exp(-std::fabs(x));
  const float s = u / (2.0f + u);  // log1p(u) = 2 atanh(s)
  const float z = s * s;
  float p = std::fmaf(kAtanhC4, z, kAtanhC3);
  p = std::fmaf(p, z, kAtanhC2);
  p = std::fmaf(p, z, kAtanhC1);
  const float twice = s + s;
  const float log1p = std::fmaf(twice * z, p, twice);
  return (x > 0.0f ? x : 0.0f) + log1p;
}

struct SinCos {
  double sin, cos;
};

// Sine and cosine of an angle in radians. Error <= 1e-12 for |angle| < 2^25; beyond that it grows
// with the angle, as the rounding of the angle itself does. Products and sums are rounded one by
// one. NaN and infinity give NaN.
inline SinCos SineAndCosine(double angle) {
  constexpr double kShift = 0x1.8p52;  // as kRoundingShift
  const double shifted = angle * kTwoOverPi + kShift;
  const double n = shifted - kShift;  // quarter turns
  const double r = ((angle - n * kHalfPiHigh) - n * kHalfPiMiddle) - n * kHalfPiLow;
  // Taylor's series, |r| <= pi / 4.
  const double z = r * r;
  double s = z * (1.0 / 6227020800) - 1.0 / 39916800;
  s = s * z + 1.0 / 362880;
  s = s * z - 1.0 / 5040;
  s = s * z + 1.0 / 120;
  s = s * z - 1.0 / 6;
  s = r + r * z * s;
  double c = 1.0 / 479001600 - z * (1.0 / 87178291200);
  c = c * z - 1.0 / 3628800;
  c = c * z + 1.0 / 40320;
  c = c * z - 1.0 / 720;
  c = c * z + 1.0 / 24;
  c = c * z - 0.5;
  c = 1.0 + z * c;
  switch (std::bit_cast<uint64_t>(shifted) & 3) {
    case 0:
      return {s, c};
    case 1:
      return {c, -s};
    case 2:
      return {-s, -c};
    default:
      return {-c, s};
  }
}

// max(x, 0)^2.
inline float Relu2(float x) {
  const float positive = x < 0.0f ? 0.0f : x;  // NaN stays
  return positive * positive;
}

// x Phi(x) = x (1 + erf(x / sqrt 2)) / 2, as max(x, 0) - |x| Phi(-|x|), where nothing cancels. The
// error is at most 2e-7 |x|, and 1e-6 of the value for x >= -5; 0 below -13.22.
inline float Gelu(float x) {
  const float magnitude = std::fabs(x);
  const float a = magnitude > kGeluMax ? kGeluMax : magnitude;  // NaN stays
  const float t = 1.0f / std::fmaf(kGeluScale, a, 1.0f);
  const float z = 1.0f - t;
  float p = std::fmaf(kGeluC7, z, kGeluC6);
  p = std::fmaf(p, z, kGeluC5);
  p = std::fmaf(p, z, kGeluC4);
  p = std::fmaf(p, z, kGeluC3);
  p = std::fmaf(p, z, kGeluC2);
  p = std::fmaf(p, z, kGeluC1);
  p = std::fmaf(p, z, 1.0f);
  const float erfc = Exp((a * a) * -0.5f) * (t * p);
  return std::fmaf(a * -0.5f, erfc, x > 0.0f ? x : 0.0f);
}

// 1 / (1 + e^-x), error <= 4e-7 for x >= -88; below that 2^-127 (nearly).
inline float Sigmoid(float x) { return 1.0f / (1.0f + Exp(-x)); }

// Error <= 4e-7.
inline float Tanh(float x) {
  const float magnitude = std::fabs(x);
  if (magnitude <= kTanhMax) {
    const float z = x * x;
    float p = std::fmaf(kTanhC5, z, kTanhC4);
    p = std::fmaf(p, z, kTanhC3);
    p = std::fmaf(p, z, kTanhC2);
    p = std::fmaf(p, z, kTanhC1);
    return std::fmaf(x * z, p, x);
  }
  const float e = Exp(magnitude + magnitude);
  return std::copysign(1.0f - 2.0f / (1.0f + e), x);
}

// Sine and cosine of 2 pi t, |t| <= 1/2: angles that accumulate are kept in turns, as taking whole
// turns off is exact. Error of the sine <= 3e-7 for |t| <= 1/4, of both <= 2e-7 in absolute terms.
inline float QuarterSine(float t) {  // |t| <= 1/4
  const float x = kTwoPi * t;
  const float z = x * x;
  float p = std::fmaf(kSinC4, z, kSinC3);
  p = std::fmaf(p, z, kSinC2);
  p = std::fmaf(p, z, kSinC1);
  return std::fmaf(x * z, p, x);
}
inline float SinTurns(float t) {
  const float magnitude = std::fabs(t);
  const float folded = magnitude > 0.25f ? 0.5f - magnitude : magnitude;
  return QuarterSine(std::copysign(folded, t));
}
inline float CosTurns(float t) { return QuarterSine(0.25f - std::fabs(t)); }

// IEEE binary16 to float, exact.
inline float F16ToF32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  const uint32_t biased = exponent == 31 ? 255u : exponent + (127u - 15u);
  return std::bit_cast<float>(sign | biased << 23 | mantissa << 13);
}

// Float to IEEE binary16, to nearest even; too large becomes infinity, NaN a quiet NaN.
inline uint16_t F32ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x38800000u) {  // 2^-14, the smallest normal
    // Rebias, then round by adding just under half a unit, one more if the kept part is odd.
    const uint32_t rebiased = magnitude - (112u << 23);
    half = (rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13;
    if (half > 0x7c00u) half = 0x7c00u;
  } else {
    // Adding 0.5 leaves a multiple of 2^-24 in the mantissa, rounded by the addition itself.
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  }
  return static_cast<uint16_t>(sign | half);
}

}  // namespace adder
