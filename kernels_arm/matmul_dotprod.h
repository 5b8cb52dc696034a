// Tiles of the quantized matmuls on SDOT: 16 bytes of weights, four rows of four columns, times
// four columns of activations, without rounding into four sums. For files compiled with +dotprod.
#pragma once

#include "kernels_arm/lanes_neon.h"

namespace adder {
namespace {

// A chunk is four columns; a register of activations holds four chunks. The lane of an SDOT is an
// immediate, hence the template.
template <size_t kChunk>
inline int32x4_t Dot(int32x4_t acc, int8x16_t w, int8x16_t a) {
  return vdotq_laneq_s32(acc, w, a, kChunk);
}

template <size_t kTokens>
using Sums = int32x4_t[kTokens][kQuads];
template <size_t kTokens>
using Rows = int8x16_t[kTokens];

template <size_t kChunk, size_t kTokens>
inline void AddChunkQ8(const int8_t* w, const Rows<kTokens>& a, Sums<kTokens>& dot) {
  if constexpr (kTokens == 1) Prefetch(w);
  for (size_t q = 0; q < kQuads; ++q) {
    const int8x16_t weights = vld1q_s8(w + q * 16);
    for (size_t t = 0; t < kTokens; ++t) dot[t][q] = Dot<kChunk>(dot[t][q], weights, a[t]);
  }
}

template <size_t kChunk, size_t kTokens>
inline void AddChunkQ4(const uint8_t* w, const Rows<kTokens>& a_low, const Rows<kTokens>& a_high,
                       Sums<kTokens>& dot) {
  if constexpr (kTokens == 1) Prefetch(w);
  for (size_t q = 0; q < kQuads; ++q) {
    const uint8x16_t packed = vld1q_u8(w + q * 16);
    const int8x16_t low = LowNibbles(packed);
    const int8x16_t high = HighNibbles(packed);
    for (size_t t = 0; t < kTokens; ++t) {
      dot[t][q] = Dot<kChunk>(dot[t][q], low, a_low[t]);
      dot[t][q] = Dot<kChunk>(dot[t][q], high, a_high[t]);
    }
  }
}

template <size_t kTokens>
void TileQ8(const int8_t* w, const float* row_scales, size_t groups, const int8_t* a,
            const float* a_scales, float* y, size_t y_stride) {
  float32x4_t acc[kTokens][kQuads];
  for (auto& token : acc) {
    for (auto& quad : token) quad = vdupq_n_f32(0.0f);
  }
  for (size_t g = 0; g < groups; ++g, a += kGroup) {
    Sums<kTokens> dot;
    for (auto& token : dot) {
      for (auto& quad : token) quad = vdupq_n_s32(0);
    }
    for (size_t k = 0; k < kGroup; k += 16, w += 16 * kLanes) {
      Rows<kTokens> values;
      for (size_t t = 0; t < kTokens; ++t) values[t] = vld1q_s8(a + t * groups * kGroup + k);
      AddChunkQ8<0, kTokens>(w, values, dot);
      AddChunkQ8<1, kTokens>(w + 4 * kLanes, values, dot);
      AddChunkQ8<2, kTokens>(w + 8 * kLanes, values, dot);
      AddChunkQ8<3, kTokens>(w + 12 * kLanes, values, dot);
    }
    for (size_t t = 0; t < kTokens; ++t) {
      const float scale = a_scales[t * groups + g];
      for (size_t q = 0; q < kQuads; ++q) {
        acc[t][q] = vfmaq_n_f32(acc[t][q], vcvtq_f32_s32(dot[t][q]), scale);
      }
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t q = 0; q < kQuads; ++q) {
      vst1q_f32(y + t * y_stride + q * kWidth, vmulq_f32(Load(row_scales + q * kWidth), acc[t][q]));
    }
  }
}

template <size_t kTokens>
void TileQ4(const uint8_t* w, const uint16_t* scales, size_t groups, const int8_t* a,
            const float* a_scales, const int32_t* a_sums, float* y, size_t y_stride) {
  float32x4_t acc[kTokens][kQuads];
  for (auto& token : acc) {
    for (auto& quad : token) quad = vdupq_n_f32(0.0f);
  }
  for (size_t g = 0; g < groups; ++g, a += kGroup, scales += kLanes, w += kGroup / 2 * kLanes) {
    Sums<kTokens> dot;
    Rows<kTokens> a_low, a_high;
    for (size_t t = 0; t < kTokens; ++t) {
      const int32x4_t offset = vdupq_n_s32(-8 * a_sums[t * groups + g]);
      for (auto& quad : dot[t]) quad = offset;
      a_low[t] = vld1q_s8(a + t * groups * kGroup);
      a_high[t] = vld1q_s8(a + t * groups * kGroup + kGroup / 2);
    }
    AddChunkQ4<0, kTokens>(w, a_low, a_high, dot);
    AddChunkQ4<1, kTokens>(w + 4 * kLanes, a_low, a_high, dot);
    AddChunkQ4<2, kTokens>(w + 8 * kLanes, a_low, a_high, dot);
    AddChunkQ4<3, kTokens>(w + 12 * kLanes, a_low, a_high, dot);
    for (size_t q = 0; q < kQuads; ++q) {
      const float32x4_t scale = Load(scales + q * kWidth);
      for (size_t t = 0; t < kTokens; ++t) {
        const float32x4_t both = vmulq_n_f32(scale, a_scales[t * groups + g]);
        acc[t][q] = vfmaq_f32(acc[t][q], vcvtq_f32_s32(dot[t][q]), both);
      }
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t q = 0; q < kQuads; ++q) vst1q_f32(y + t * y_stride + q * kWidth, acc[t][q]);
  }
}

// Up to four tokens of one row block; returns how many. x: the first token, y: its sixteen outputs.
inline size_t BlockQ8(const int8_t* w, const float* row_scales, size_t groups, const int8_t* a,
                      const float* a_scales, size_t tokens, float* y, size_t y_stride) {
  if (tokens >= 4) {
    TileQ8<4>(w, row_scales, groups, a, a_scales, y, y_stride);
    return 4;
  }
  if (tokens >= 2) {
    TileQ8<2>(w, row_scales, groups, a, a_scales, y, y_stride);
    return 2;
  }
  TileQ8<1>(w, row_scales, groups, a, a_scales, y, y_stride);
  return 1;
}

inline size_t BlockQ4(const uint8_t* w, const uint16_t* scales, size_t groups, const int8_t* a,
                      const float* a_scales, const int32_t* a_sums, size_t tokens, float* y,
                      size_t y_stride) {
  if (tokens >= 4) {
    TileQ4<4>(w, scales, groups, a, a_scales, a_sums, y, y_stride);
    return 4;
  }
  if (tokens >= 2) {
    TileQ4<2>(w, scales, groups, a, a_scales, a_sums, y, y_stride);
    return 2;
  }
  TileQ4<1>(w, scales, groups, a, a_scales, a_sums, y, y_stride);
  return 1;
}

}  // namespace
}  // namespace adder
