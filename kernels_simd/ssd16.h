// ssd_scan with a state of 16-bit values (ssd_scan_16) for any vectors of floats. As ssd_scan it
// takes a head's tokens in chunks, with the loop over states outside and the one over tokens
// inside: the values of a tile stay in registers, as whole floats, and are rounded after every
// token.
#pragma once

#include "runtime/kernels.h"

namespace adder {
namespace {

// V: vector_avx2.h and its like.
template <typename V>
class Ssd16 {
 public:
  static void Scan(const SsdScanArgs* args) {
    Chunk chunk;
    chunk.bc_stride = args->bc_stride;
    for (size_t head = args->head_begin; head < args->head_end; ++head) {
      const size_t group = head / args->heads_per_group;
      for (size_t first = 0; first < args->tokens; first += chunk.tokens) {
        const size_t left = args->tokens - first;
        chunk.tokens = left < kTokens ? left : kTokens;
        chunk.b = args->b + first * args->bc_stride + group * args->d_state;
        chunk.c = args->c + first * args->bc_stride + group * args->d_state;
        const float* dt = args->dt + first * args->dt_stride + head;
        for (size_t t = 0; t < chunk.tokens; ++t) {
          const float step = dt[t * args->dt_stride] * args->a[head];
          float decay[V::kWidth];
          V::Store(decay, V::Exp2(V::Set(step)));
          chunk.decay[t] = decay[0];
          chunk.largest_b[t] = LargestMagnitude(chunk.b + t * args->bc_stride, args->d_state);
        }
        for (size_t i = 0; i < args->head_blocks; ++i) {
          const size_t channel = (head * args->head_blocks + i) * kLanes;
          Block(&chunk, *args, dt, channel, args->x + first * args->stride + channel);
        }
      }
    }
  }

 private:
  using Vector = typename V::Vector;
  static constexpr size_t kTokens = 32;
  static constexpr size_t kVectors = kLanes / V::kWidth;
  static constexpr size_t kStates = V::kWidth == kLanes ? 8 : 4;

  struct Chunk {
    size_t tokens;
    const float* b;  // of the head's group, row 0 of the chunk
    const float* c;
    size_t bc_stride;
    float decay[kTokens], largest_b[kTokens];
    // Of one channel block:
    alignas(64) float u[kTokens][kLanes];
    alignas(64) float y[kTokens][kLanes];
    alignas(64) float scale[kTokens][kLanes];    // of the values before the token
    alignas(64) float inverse[kTokens][kLanes];  // for those after it; 0: they become 0
  };

  // The largest |b[n]|; NaN if there is one.
  static float LargestMagnitude(const float* b, size_t n) {
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

  // The chunk's tokens of one channel block. x: its first row.
  static void Block(Chunk* chunk, const SsdScanArgs& args, const float* dt, size_t channel,
                    float* x) {
    for (size_t l = 0; l < kLanes; l += V::kWidth) {
      Vector limit = V::Load(args.limits + channel + l);
      for (size_t t = 0; t < chunk->tokens; ++t) {
        const Vector u = V::Mul(V::Set(dt[t * args.dt_stride]), V::Load(x + t * args.stride + l));
        const Vector input = V::Mul(V::Absolute(u), V::Set(chunk->largest_b[t]));
        V::Store(chunk->u[t] + l, u);
        V::Store(chunk->y[t] + l, V::Set(0.0f));
        V::Store(chunk->scale[t] + l, V::Mul(limit, V::Set(1.0f / kStateSteps)));
        limit = V::Fma(V::Set(chunk->decay[t]), limit, input);
        const Vector inverse = V::Div(V::Set(kStateSteps), limit);
        const Vector large =
            V::Select(V::LessEqual(V::Set(kStateLimitMin), limit), inverse, V::Set(0.0f));
        V::Store(chunk->inverse[t] + l,
                 V::Select(V::Less(limit, V::Set(__builtin_inff())), large, V::Set(0.0f)));
      }
      V::Store(args.limits + channel + l, limit);
    }
    int16_t* values = args.values + channel * args.d_state;
    size_t n = 0;
    for (; args.d_state - n >= kStates; n += kStates) {
      Tile<kStates>(chunk, n, values + n * kLanes);
    }
    for (; n < args.d_state; ++n) Tile<1>(chunk, n, values + n * kLanes);
    for (size_t t = 0; t < chunk->tokens; ++t) {
      for (size_t l = 0; l < kLanes; l += V::kWidth) {
        float* out = x + t * args.stride + l;
        V::Store(out,
                 V::Fma(V::Load(args.d + channel + l), V::Load(out), V::Load(chunk->y[t] + l)));
      }
    }
  }

  // kCount states from `first` on.
  template <size_t kCount>
  static void Tile(Chunk* chunk, size_t first, int16_t* values) {
    Vector v[kCount][kVectors];
    for (size_t n = 0; n < kCount; ++n) {
      for (size_t i = 0; i < kVectors; ++i) {
        v[n][i] = V::LoadShorts(values + n * kLanes + i * V::kWidth);
      }
    }
    const float* b = chunk->b + first;
    const float* c = chunk->c + first;
    for (size_t t = 0; t < chunk->tokens; ++t, b += chunk->bc_stride, c += chunk->bc_stride) {
      const Vector decay = V::Set(chunk->decay[t]);
      for (size_t i = 0; i < kVectors; ++i) {
        const size_t l = i * V::kWidth;
        const Vector u = V::Load(chunk->u[t] + l);
        const Vector scale = V::Load(chunk->scale[t] + l);
        const Vector inverse = V::Load(chunk->inverse[t] + l);
        const auto kept = V::Less(V::Set(0.0f), inverse);
        Vector y = V::Load(chunk->y[t] + l);
        for (size_t n = 0; n < kCount; ++n) {
          const Vector input = V::Mul(u, V::Set(b[n]));
          const Vector s = V::Fma(decay, V::Mul(v[n][i], scale), input);
          y = V::Fma(s, V::Set(c[n]), y);
          v[n][i] = V::Select(kept, V::Round(V::Mul(s, inverse)), V::Set(0.0f));
        }
        V::Store(chunk->y[t] + l, y);
      }
    }
    for (size_t n = 0; n < kCount; ++n) {
      for (size_t i = 0; i < kVectors; ++i) {
        V::StoreShorts(values + n * kLanes + i * V::kWidth, v[n][i]);
      }
    }
  }
};

}  // namespace
}  // namespace adder
