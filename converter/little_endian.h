// Numbers as checkpoint files hold them: little-endian, at any alignment.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace adder {

// Little-endian on any host; compilers make one load of it.
template <typename T>
T LoadLittle(const uint8_t* bytes) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value = static_cast<T>(value | T{bytes[i]} << (8 * i));
  return value;
}

// Exact for all 65536 patterns: 1 sign, 5 exponent (bias 15) and 10 mantissa bits.
inline float LoadHalf(const uint8_t* bytes) {
  const uint32_t half = LoadLittle<uint16_t>(bytes);
  const uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, mantissa = half & 1023;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  const uint32_t wide = exponent == 31 ? 255 : exponent + (127 - 15);
  return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
}

}  // namespace adder
