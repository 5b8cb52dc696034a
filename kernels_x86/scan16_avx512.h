// ssd_scan with a state of 16-bit values (ssd_scan_16), in AVX-512. As ssd_scan it takes a head's
// tokens in chunks, with the loop over states outside and the one over tokens inside: the values of
// a tile stay in registers, as whole floats, and are rounded after every token.
#pragma once

#include "kernels_x86/math_avx512.h"

namespace adder {
namespace {

constexpr size_t kSsd16Tokens = 32;
constexpr size_t kSsd16States = 8;

struct Ssd16Chunk {
  size_t tokens;
  const float* b;  // of the head's group, row 0 of the chunk
  const float* c;
  size_t bc_stride;
  float decay[kSsd16Tokens], largest_b[kSsd16Tokens];
  // Of one channel block:
  alignas(64) float u[kSsd16Tokens][kLanes];
  alignas(64) float y[kSsd16Tokens][kLanes];
  alignas(64) float scale[kSsd16Tokens][kLanes];    // of the values before the token
  alignas(64) float inverse[kSsd16Tokens][kLanes];  // for those after it
};

// The largest |b[n]| as bits, which order like numbers, with NaN above infinity.
inline float LargestMagnitude(const float* b, size_t n) {
  __m512i largest = _mm512_setzero_si512();
  for (size_t i = 0; i < n; i += kLanes) {
    const size_t left = n - i;
    const auto lanes = static_cast<__mmask16>(left < kLanes ? (1u << left) - 1 : 0xffffu);
    const __m512 v = Absolute(_mm512_maskz_loadu_ps(lanes, b + i));
    largest = _mm512_max_epi32(largest, _mm512_castps_si512(v));
  }
  const int32_t bits = _mm512_reduce_max_epi32(largest);
  float out;
  __builtin_memcpy(&out, &bits, sizeof(out));
  return out;
}

template <size_t kStates>
void Ssd16Tile(Ssd16Chunk* chunk, size_t first, int16_t* values) {
  __m512 v[kStates];
  for (size_t n = 0; n < kStates; ++n) {
    const auto* packed = reinterpret_cast<const __m256i*>(values + n * kLanes);
    v[n] = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm256_loadu_si256(packed)));
  }
  const float* b = chunk->b + first;
  const float* c = chunk->c + first;
  for (size_t t = 0; t < chunk->tokens; ++t, b += chunk->bc_stride, c += chunk->bc_stride) {
    const __m512 decay = _mm512_set1_ps(chunk->decay[t]);
    const __m512 u = Load(chunk->u[t]);
    const __m512 scale = Load(chunk->scale[t]);
    const __m512 inverse = Load(chunk->inverse[t]);
    const __mmask16 kept = _mm512_cmp_ps_mask(inverse, _mm512_setzero_ps(), _CMP_NEQ_OQ);
    __m512 y = Load(chunk->y[t]);
    for (size_t n = 0; n < kStates; ++n) {
      const __m512 input = _mm512_mul_ps(u, _mm512_set1_ps(b[n]));
      const __m512 s = _mm512_fmadd_ps(decay, _mm512_mul_ps(v[n], scale), input);
      y = _mm512_fmadd_ps(s, _mm512_set1_ps(c[n]), y);
      v[n] = _mm512_maskz_roundscale_ps(kept, _mm512_mul_ps(s, inverse),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    _mm512_store_ps(chunk->y[t], y);
  }
  for (size_t n = 0; n < kStates; ++n) {
    auto* packed = reinterpret_cast<__m256i*>(values + n * kLanes);
    _mm256_storeu_si256(packed, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(v[n])));
  }
}

// The tokens of one channel block. dt, x: first row of the chunk.
inline void Ssd16Block(Ssd16Chunk* chunk, const float* dt, size_t dt_stride, const float* d,
                       size_t d_state, size_t stride, float* limits, int16_t* values, float* x) {
  __m512 limit = Load(limits);
  for (size_t t = 0; t < chunk->tokens; ++t) {
    const __m512 u = _mm512_mul_ps(_mm512_set1_ps(dt[t * dt_stride]), Load(x + t * stride));
    const __m512 input = _mm512_mul_ps(Absolute(u), _mm512_set1_ps(chunk->largest_b[t]));
    _mm512_store_ps(chunk->u[t], u);
    _mm512_store_ps(chunk->y[t], _mm512_setzero_ps());
    _mm512_store_ps(chunk->scale[t], _mm512_mul_ps(limit, _mm512_set1_ps(1.0f / kStateSteps)));
    limit = _mm512_fmadd_ps(_mm512_set1_ps(chunk->decay[t]), limit, input);
    const __mmask16 kept = _mm512_cmp_ps_mask(limit, _mm512_set1_ps(kStateLimitMin), _CMP_GE_OQ) &
                           _mm512_cmp_ps_mask(limit, _mm512_set1_ps(__builtin_inff()), _CMP_LT_OQ);
    _mm512_store_ps(chunk->inverse[t],
                    _mm512_maskz_div_ps(kept, _mm512_set1_ps(kStateSteps), limit));
  }
  _mm512_storeu_ps(limits, limit);
  size_t n = 0;
  for (; d_state - n >= kSsd16States; n += kSsd16States) {
    Ssd16Tile<kSsd16States>(chunk, n, values + n * kLanes);
  }
  for (; n < d_state; ++n) Ssd16Tile<1>(chunk, n, values + n * kLanes);
  for (size_t t = 0; t < chunk->tokens; ++t) {
    float* out = x + t * stride;
    _mm512_storeu_ps(out, _mm512_fmadd_ps(Load(d), Load(out), Load(chunk->y[t])));
  }
}

inline void SsdScan16(const SsdScanArgs* args) {
  const size_t d_state = args->d_state;
  Ssd16Chunk chunk;
  chunk.bc_stride = args->bc_stride;
  for (size_t head = args->head_begin; head < args->head_end; ++head) {
    const size_t group = head / args->heads_per_group;
    const __m512 a = _mm512_set1_ps(args->a[head]);
    for (size_t first = 0; first < args->tokens; first += chunk.tokens) {
      const size_t left = args->tokens - first;
      chunk.tokens = left < kSsd16Tokens ? left : kSsd16Tokens;
      chunk.b = args->b + first * args->bc_stride + group * d_state;
      chunk.c = args->c + first * args->bc_stride + group * d_state;
      const float* dt = args->dt + first * args->dt_stride + head;
      for (size_t t = 0; t < chunk.tokens; ++t) {
        const __m512 step = _mm512_mul_ps(_mm512_set1_ps(dt[t * args->dt_stride]), a);
        chunk.decay[t] = _mm512_cvtss_f32(Exp2(step));
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
