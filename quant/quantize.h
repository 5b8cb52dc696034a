// Choosing integers and scales for rows (q8) and groups (q4) of weights. qtypes.h has the formats.
//
// Deterministic: float and double operations in one written order, no library functions, so that
// every machine and compiler makes the same file (with -ffp-contract=off, default rounding).
// Inputs must be finite; pack.h checks that for whole matrices.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/qtypes.h"
#include "runtime/scalar_math.h"

namespace adder {

inline constexpr float kF16Max = 65504.0f;  // the largest finite f16; from 65520 on it overflows

// max |x| / 127, or 0 where that would be subnormal (max |x| below about 1.5e-36).
float RowScaleQ8(const float* x, size_t n);

// round(x / scale), in -127..127 for the scale of x's row. Scale 0 gives 0.
inline int8_t ValueQ8(float x, float scale) {
  // |x / scale| exceeds 127 by a rounding error at most, which RoundToEven removes.
  return scale == 0.0f ? int8_t{0} : static_cast<int8_t>(static_cast<int>(RoundToEven(x / scale)));
}

// The nibble whose weight, scale * (nibble - 8), is nearest to x. Scale 0 gives 8, the value 0.
inline uint8_t NibbleQ4(float x, float scale) {
  if (scale == 0.0f) return 8;
  float v = x / scale;
  v = v < -8.0f ? -8.0f : v;
  v = v > 7.0f ? 7.0f : v;
  return static_cast<uint8_t>(static_cast<int>(RoundToEven(v)) + 8);
}

struct GroupQ4 {
  uint16_t scale;           // f16 bits; never -0, infinite or NaN
  uint8_t nibbles[kGroup];  // weight = scale * (nibble - 8)
  double error;             // sum of importance * (x - weight)^2, with the scale as rounded to f16
};

// Quantizes one group x[kGroup] so that the error is least. The scale may be negative: then -8,
// which reaches further than 7, serves the positive extreme.
//
// importance[kGroup] weighs the squared errors (finite, not negative; for instance the mean square
// of each input in calibration text); nullptr or all zeros: every weight counts alike. The search
// takes importances for at least 2^-20 of the group's largest.
//
// Returns false, and leaves *out alone, if the scale would exceed the largest f16.
[[nodiscard]] bool QuantizeGroupQ4(const float* x, const float* importance, GroupQ4* out);

}  // namespace adder
