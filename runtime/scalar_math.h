// Functions that must give the same bits on every machine, as plain float operations in one order
// (-ffp-contract=off).
#pragma once

#include <bit>
#include <cstdint>

namespace adder {

// To the nearest integer, ties to even. |x| < 2^22.
inline float RoundToEven(float x) {
  constexpr float kShift = 0x1.8p23f;  // floats of this size are 1 apart: the addition rounds
  return (x + kShift) - kShift;
}

// Rounds to nearest even. Values from 65520 become infinity, NaN stays NaN (quiet).
inline uint16_t F32ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) {  // infinity or NaN
    return static_cast<uint16_t>(sign | (magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u));
  }
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65520
  if (magnitude >= 0x38800000u) {  // >= 2^-14: normal; a carry out of the mantissa is right as is
    const uint32_t rounded = magnitude + 0x0fffu + ((magnitude >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
  if (magnitude <= 0x33000000u) return static_cast<uint16_t>(sign);  // <= 2^-25, the tie to zero
  // Subnormal: the result counts units of 2^-24.
  const uint32_t shift = 126u - (magnitude >> 23);  // 14..24
  const uint32_t mantissa = (magnitude & 0x007fffffu) | 0x00800000u;
  const uint32_t units = mantissa >> shift;
  const uint32_t rest = mantissa & ((1u << shift) - 1u);
  const uint32_t half = 1u << (shift - 1u);
  const uint32_t up = rest > half || (rest == half && (units & 1u) != 0) ? 1u : 0u;
  return static_cast<uint16_t>(sign | (units + up));
}

// Exact.
inline float F16ToF32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {  // zero or subnormal
    const float units = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -units : units;
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

}  // namespace adder
