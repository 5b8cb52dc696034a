// ssd_scan with a state of 16-bit values (ssd_scan_16), in AVX2. As ssd_scan it takes a head's
// tokens in chunks, with the loop over states outside and the one over tokens inside: the values of
// a tile stay in registers, as whole floats, and are rounded after every token.
#pragma once

#include "kernels_x86/math_avx2.h"

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
  alignas(32) float u[kSsd16Tokens][kLanes];
  alignas(32) float y[kSsd16Tokens][kLanes];
  alignas(32) float scale[kSsd16Tokens][kLanes];    // of the values before the token
  alignas(32) float inverse[kSsd16Tokens][kLanes];  // for those after it
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
  __m256 v[kStates][2];
  for (size_t n = 0; n < kStates; ++n) {
    for (size_t h = 0; h < 2; ++h) {
      const auto* packed = reinterpret_cast<const __m128i*>(values + n * kLanes + h * 8);
      v[n][h] = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_loadu_si128(packed)));
    }
  }
  const float* b = chunk->b + first;
  const float* c = chunk->c + first;
  for (size_t t = 0; t < chunk->tokens; ++t, b += chunk->bc_stride, c += chunk->bc_stride) {
    const __m256 decay = _mm256_set1_ps(chunk->decay[t]);
    for (size_t h = 0; h < 2; ++h) {
      const __m256 u = _mm256_load_ps(chunk->u[t] + h * 8);
      const __m256 scale = _mm256_load_ps(chunk->scale[t] + h * 8);
      const __m256 inverse = _mm256_load_ps(chunk->inverse[t] + h * 8);
      const __m256 kept = _mm256_cmp_ps(inverse, _mm256_setzero_ps(), _CMP_NEQ_OQ);
      __m256 y = _mm256_load_ps(chunk->y[t] + h * 8);
      for (size_t n = 0; n < kStates; ++n) {
        const __m256 input = _mm256_mul_ps(u, _mm256_set1_ps(b[n]));
        const __m256 s = _mm256_fmadd_ps(decay, _mm256_mul_ps(v[n][h], scale), input);
        y = _mm256_fmadd_ps(s, _mm256_set1_ps(c[n]), y);
        v[n][h] =
            _mm256_and_ps(kept, _mm256_round_ps(_mm256_mul_ps(s, inverse),
                                                _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
      }
      _mm256_store_ps(chunk->y[t] + h * 8, y);
    }
  }
  for (size_t n = 0; n < kStates; ++n) {
    const __m256i lanes =
        _mm256_packs_epi32(_mm256_cvtps_epi32(v[n][0]), _mm256_cvtps_epi32(v[n][1]));
    // The pack works within 128-bit halves.
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(values + n * kLanes),
                        _mm256_permute4x64_epi64(lanes, 0xd8));
  }
}

// The tokens of one channel block. dt, x: first row of the chunk.
inline void Ssd16Block(Ssd16Chunk* chunk, const float* dt, size_t dt_stride, const float* d,
                       size_t d_state, size_t stride, float* limits, int16_t* values, float* x) {
  for (size_t l = 0; l < kLanes; l += 8) {
    __m256 limit = _mm256_loadu_ps(limits + l);
    for (size_t t = 0; t < chunk->tokens; ++t) {
      const __m256 u =
          _mm256_mul_ps(_mm256_set1_ps(dt[t * dt_stride]), _mm256_loadu_ps(x + t * stride + l));
      const __m256 input = _mm256_mul_ps(Absolute(u), _mm256_set1_ps(chunk->largest_b[t]));
      _mm256_store_ps(chunk->u[t] + l, u);
      _mm256_store_ps(chunk->y[t] + l, _mm256_setzero_ps());
      _mm256_store_ps(chunk->scale[t] + l,
                      _mm256_mul_ps(limit, _mm256_set1_ps(1.0f / kStateSteps)));
      limit = _mm256_fmadd_ps(_mm256_set1_ps(chunk->decay[t]), limit, input);
      const __m256 kept =
          _mm256_and_ps(_mm256_cmp_ps(limit, _mm256_set1_ps(kStateLimitMin), _CMP_GE_OQ),
                        _mm256_cmp_ps(limit, _mm256_set1_ps(__builtin_inff()), _CMP_LT_OQ));
      _mm256_store_ps(chunk->inverse[t] + l,
                      _mm256_and_ps(kept, _mm256_div_ps(_mm256_set1_ps(kStateSteps), limit)));
    }
    _mm256_storeu_ps(limits + l, limit);
  }
  size_t n = 0;
  for (; d_state - n >= kSsd16States; n += kSsd16States) {
    Ssd16Tile<kSsd16States>(chunk, n, values + n * kLanes);
  }
  for (; n < d_state; ++n) Ssd16Tile<1>(chunk, n, values + n * kLanes);
  for (size_t t = 0; t < chunk->tokens; ++t) {
    for (size_t l = 0; l < kLanes; l += 8) {
      float* out = x + t * stride + l;
      _mm256_storeu_ps(out, _mm256_fmadd_ps(_mm256_loadu_ps(d + l), _mm256_loadu_ps(out),
                                            _mm256_load_ps(chunk->y[t] + l)));
    }
  }
}

inline void SsdScan16(const SsdScanArgs* args) {
  const size_t d_state = args->d_state;
  Ssd16Chunk chunk;
  chunk.bc_stride = args->bc_stride;
  for (size_t head = args->head_begin; head < args->head_end; ++head) {
    const size_t group = head / args->heads_per_group;
    const __m256 a = _mm256_set1_ps(args->a[head]);
    for (size_t first = 0; first < args->tokens; first += chunk.tokens) {
      const size_t left = args->tokens - first;
      chunk.tokens = left < kSsd16Tokens ? left : kSsd16Tokens;
      chunk.b = args->b + first * args->bc_stride + group * d_state;
      chunk.c = args->c + first * args->bc_stride + group * d_state;
      const float* dt = args->dt + first * args->dt_stride + head;
      for (size_t t = 0; t < chunk.tokens; ++t) {
        const __m256 step = _mm256_mul_ps(_mm256_set1_ps(dt[t * args->dt_stride]), a);
        chunk.decay[t] = _mm256_cvtss_f32(Exp2(step));
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
