// ssd_scan with a state of 16-bit values (ssd_scan_16), in NEON. As ssd_scan it takes a head's
// tokens in chunks, with the loop over states outside and the one over tokens inside: the values of
// a tile stay in registers, as whole floats, and are rounded after every token.
#pragma once

#include "kernels_arm/lanes_neon.h"
#include "kernels_arm/math_neon.h"

namespace adder {
namespace {

constexpr size_t kSsd16Tokens = 32;
constexpr size_t kSsd16States = 4;

struct Ssd16Chunk {
  size_t tokens;
  const float* b;  // of the head's group, row 0 of the chunk
  const float* c;
  size_t bc_stride;
  float decay[kSsd16Tokens], largest_b[kSsd16Tokens];
  // Of one channel block:
  alignas(16) float u[kSsd16Tokens][kLanes];
  alignas(16) float y[kSsd16Tokens][kLanes];
  alignas(16) float scale[kSsd16Tokens][kLanes];    // of the values before the token
  alignas(16) float inverse[kSsd16Tokens][kLanes];  // for those after it
};

// The largest |b[n]|; NaN if there is one.
inline float LargestMagnitude(const float* b, size_t n) {
  int32_t largest = 0;  // as bits, which order like numbers, with NaN above infinity
  for (size_t i = 0; i < n; ++i) {
    int32_t bits;
    __builtin_memcpy(&bits, b + i, sizeof(bits));
    bits &= 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  float out;
  __builtin_memcpy(&out, &largest, sizeof(out));
  return out;
}

template <size_t kStates>
void Ssd16Tile(Ssd16Chunk* chunk, size_t first, int16_t* values) {
  float32x4_t v[kStates][kQuads];
  for (size_t n = 0; n < kStates; ++n) {
    for (size_t q = 0; q < kQuads; ++q) {
      v[n][q] = vcvtq_f32_s32(vmovl_s16(vld1_s16(values + n * kLanes + q * kWidth)));
    }
  }
  const float* b = chunk->b + first;
  const float* c = chunk->c + first;
  for (size_t t = 0; t < chunk->tokens; ++t, b += chunk->bc_stride, c += chunk->bc_stride) {
    const float decay = chunk->decay[t];
    for (size_t q = 0; q < kQuads; ++q) {
      const float32x4_t u = Load(chunk->u[t] + q * kWidth);
      const float32x4_t scale = Load(chunk->scale[t] + q * kWidth);
      const float32x4_t inverse = Load(chunk->inverse[t] + q * kWidth);
      const uint32x4_t kept = vcgtq_f32(inverse, vdupq_n_f32(0.0f));
      float32x4_t y = Load(chunk->y[t] + q * kWidth);
      for (size_t n = 0; n < kStates; ++n) {
        const float32x4_t s = vfmaq_n_f32(vmulq_n_f32(u, b[n]), vmulq_f32(v[n][q], scale), decay);
        y = vfmaq_n_f32(y, s, c[n]);
        const float32x4_t rounded = vrndnq_f32(vmulq_f32(s, inverse));
        v[n][q] = vreinterpretq_f32_u32(vandq_u32(kept, vreinterpretq_u32_f32(rounded)));
      }
      vst1q_f32(chunk->y[t] + q * kWidth, y);
    }
  }
  for (size_t n = 0; n < kStates; ++n) {
    for (size_t q = 0; q < kQuads; ++q) {
      vst1_s16(values + n * kLanes + q * kWidth, vmovn_s32(vcvtq_s32_f32(v[n][q])));
    }
  }
}

// The tokens of one channel block. dt, x: first row of the chunk.
inline void Ssd16Block(Ssd16Chunk* chunk, const float* dt, size_t dt_stride, const float* d,
                       size_t d_state, size_t stride, float* limits, int16_t* values, float* x) {
  for (size_t l = 0; l < kLanes; l += kWidth) {
    float32x4_t limit = Load(limits + l);
    for (size_t t = 0; t < chunk->tokens; ++t) {
      const float32x4_t u = vmulq_n_f32(Load(x + t * stride + l), dt[t * dt_stride]);
      const float32x4_t input = vmulq_n_f32(vabsq_f32(u), chunk->largest_b[t]);
      vst1q_f32(chunk->u[t] + l, u);
      vst1q_f32(chunk->y[t] + l, vdupq_n_f32(0.0f));
      vst1q_f32(chunk->scale[t] + l, vmulq_n_f32(limit, 1.0f / kStateSteps));
      limit = vfmaq_n_f32(input, limit, chunk->decay[t]);
      const uint32x4_t kept = vandq_u32(vcgeq_f32(limit, vdupq_n_f32(kStateLimitMin)),
                                        vcltq_f32(limit, vdupq_n_f32(__builtin_inff())));
      const float32x4_t inverse = vdivq_f32(vdupq_n_f32(kStateSteps), limit);
      vst1q_f32(chunk->inverse[t] + l,
                vreinterpretq_f32_u32(vandq_u32(kept, vreinterpretq_u32_f32(inverse))));
    }
    vst1q_f32(limits + l, limit);
  }
  size_t n = 0;
  for (; d_state - n >= kSsd16States; n += kSsd16States) {
    Ssd16Tile<kSsd16States>(chunk, n, values + n * kLanes);
  }
  for (; n < d_state; ++n) Ssd16Tile<1>(chunk, n, values + n * kLanes);
  for (size_t t = 0; t < chunk->tokens; ++t) {
    for (size_t l = 0; l < kLanes; l += kWidth) {
      float* out = x + t * stride + l;
      vst1q_f32(out, vfmaq_f32(Load(chunk->y[t] + l), Load(d + l), Load(out)));
    }
  }
}

inline void SsdScan16(const SsdScanArgs* args) {
  const size_t d_state = args->d_state;
  Ssd16Chunk chunk;
  chunk.bc_stride = args->bc_stride;
  for (size_t head = args->head_begin; head < args->head_end; ++head) {
    const size_t group = head / args->heads_per_group;
    for (size_t first = 0; first < args->tokens; first += chunk.tokens) {
      const size_t left = args->tokens - first;
      chunk.tokens = left < kSsd16Tokens ? left : kSsd16Tokens;
      chunk.b = args->b + first * args->bc_stride + group * d_state;
      chunk.c = args->c + first * args->bc_stride + group * d_state;
      const float* dt = args->dt + first * args->dt_stride + head;
      for (size_t t = 0; t < chunk.tokens; ++t) {
        const float step = dt[t * args->dt_stride] * args->a[head];
        chunk.decay[t] = vgetq_lane_f32(Exp2(vdupq_n_f32(step)), 0);
        chunk.largest_b[t] = LargestMagnitude(chunk.b + t * args->bc_stride, d_state);
      }
      for (size_t i = 0; i < args->head_blocks; ++i) {
        const size_t channel = (head * args->head_blocks + i) * kLanes;
        Ssd16Block(&chunk, dt, args->dt_stride, args->d + channel, d_state, args->stride,
                   args->limits + channel, args->values + channel * d_state,
                   args->x + first * args->stride + channel);
      }
    }
  }
}

}  // namespace
}  // namespace adder
