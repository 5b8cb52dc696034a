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

// Keeps v in a register of its own from here on: compilers shall not recompute or reorder it.
inline void KeepOrder(int16x8_t& v) { asm("" : "+w"(v)); }
inline void KeepOrder(int32x4_t& v) { asm("" : "+w"(v)); }

// Nibbles of 16 bytes, 0..15.
inline int8x16_t LowNibbles(uint8x16_t packed) {
  return vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(15)));
}
inline int8x16_t HighNibbles(uint8x16_t packed) {
  return vreinterpretq_s8_u8(vshrq_n_u8(packed, 4));
}

}  // namespace
}  // namespace adder
