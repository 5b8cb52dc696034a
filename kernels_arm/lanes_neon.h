// What the files of this folder share: kLanes rows or channels are four registers of four floats,
// called quads.
#pragma once

#include <arm_neon.h>

#include "runtime/kernels.h"

namespace adder {
namespace {

constexpr size_t kWidth = 4;
constexpr size_t kQuads = kLanes / kWidth;
static_assert(kQuads == 4 && kGroup == 32);

// How far ahead of its use a stream of weights is fetched, bytes. Never faults, so it may run past
// the end.
constexpr size_t kPrefetch = 1024;

inline void Prefetch(const void* stream) {
  __builtin_prefetch(static_cast<const char*>(stream) + kPrefetch);
}

inline float32x4_t Load(const float* p) { return vld1q_f32(p); }
inline float32x4_t Load(const uint16_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

// Sums of products start at the bits of kRoundingShift. Read as a float they then are that number
// plus the sum, and one subtraction, exact for |sum| < 2^22, makes them floats: cheaper than a
// conversion, which runs on one of two pipes or takes two steps.
constexpr int32_t kSumStart = 0x4b400000;
static_assert(__builtin_bit_cast(float, kSumStart) == kRoundingShift);

inline float32x4_t SumToFloat(int32x4_t sum) {
  return vsubq_f32(vreinterpretq_f32_s32(sum), vdupq_n_f32(kRoundingShift));
}

// Nibbles of 16 bytes, 0..15.
inline int8x16_t LowNibbles(uint8x16_t packed) {
  return vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(15)));
}
inline int8x16_t HighNibbles(uint8x16_t packed) {
  return vreinterpretq_s8_u8(vshrq_n_u8(packed, 4));
}

}  // namespace
}  // namespace adder
