// Tiles of the quantized matmuls on SDOT: 16 bytes of weights, four rows of four columns, times
// four columns of activations, without rounding into four sums. For files compiled with +dotprod.
#pragma once

#include "kernels_arm/lanes_neon.h"

namespace adder {
namespace {

// A tile is kTileRows quads of a row block times kTokens tokens, eight sums of quads at most: more
// would spill. Loops are unrolled by hand because clang would keep the arrays in memory.
template <size_t kTokens>
constexpr size_t kTileRows = kTokens > 2 ? 2 * kQuads / kTokens : kQuads;

template <size_t kTokens>
using Sums = int32x4_t[kTokens][kTileRows<kTokens>];
template <size_t kTokens>
using Products = float32x4_t[kTokens][kTileRows<kTokens>];
template <size_t kTokens>
using Rows = int8x16_t[kTokens];

// A chunk is four columns; a register of activations holds four chunks. The lane of an SDOT is an
// immediate, hence the template.
template <size_t kChunk, size_t kTokens>
inline void AddChunkQ8(const int8_t* w, const Rows<kTokens>& a, Sums<kTokens>& dot) {
  if constexpr (kTokens == 1) Prefetch(w + kChunk * 4 * kLanes);
#pragma GCC unroll 4
  for (size_t q = 0; q < kTileRows<kTokens>; ++q) {
    const int8x16_t weights = vld1q_s8(w + kChunk * 4 * kLanes + q * 16);
#pragma GCC unroll 4
    for (size_t t = 0; t < kTokens; ++t) {
      dot[t][q] = vdotq_laneq_s32(dot[t][q], weights, a[t], kChunk);
    }
  }
}

template <size_t kChunk, size_t kTokens>
inline void AddChunkQ4(const uint8_t* w, const Rows<kTokens>& a_low, const Rows<kTokens>& a_high,
                       Sums<kTokens>& dot) {
  if constexpr (kTokens == 1) Prefetch(w + kChunk * 4 * kLanes);
#pragma GCC unroll 4
  for (size_t q = 0; q < kTileRows<kTokens>; ++q) {
    const uint8x16_t packed = vld1q_u8(w + kChunk * 4 * kLanes + q * 16);
    const int8x16_t low = LowNibbles(packed);
    const int8x16_t high = HighNibbles(packed);
#pragma GCC unroll 4
    for (size_t t = 0; t < kTokens; ++t) {
      dot[t][q] = vdotq_laneq_s32(dot[t][q], low, a_low[t], kChunk);
      dot[t][q] = vdotq_laneq_s32(dot[t][q], high, a_high[t], kChunk);
    }
  }
}

// w, scales: the first of the tile's rows; y: its first output.
template <size_t kTokens>
void TileQ8(const int8_t* w, const float* row_scales, size_t groups, const int8_t* a,
            const float* a_scales, float* y, size_t y_stride) {
  Products<kTokens> acc;
  for (auto& token : acc) {
    for (auto& quad : token) quad = vdupq_n_f32(0.0f);
  }
  for (size_t g = 0; g < groups; ++g) {
    Sums<kTokens> dot;
    for (auto& token : dot) {
      for (auto& quad : token) quad = vdupq_n_s32(kSumStart);
    }
#pragma GCC unroll 2
    for (size_t half = 0; half < 2; ++half, a += 16, w += 16 * kLanes) {
      Rows<kTokens> values;
#pragma GCC unroll 4
      for (size_t t = 0; t < kTokens; ++t) values[t] = vld1q_s8(a + t * groups * kGroup);
      AddChunkQ8<0, kTokens>(w, values, dot);
      AddChunkQ8<1, kTokens>(w, values, dot);
      AddChunkQ8<2, kTokens>(w, values, dot);
      AddChunkQ8<3, kTokens>(w, values, dot);
    }
#pragma GCC unroll 4
    for (size_t t = 0; t < kTokens; ++t) {
      const float scale = a_scales[t * groups + g];
      for (size_t q = 0; q < kTileRows<kTokens>; ++q) {
        acc[t][q] = vfmaq_n_f32(acc[t][q], SumToFloat(dot[t][q]), scale);
      }
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t q = 0; q < kTileRows<kTokens>; ++q) {
      vst1q_f32(y + t * y_stride + q * kWidth, vmulq_f32(Load(row_scales + q * kWidth), acc[t][q]));
    }
  }
}

template <size_t kTokens>
void TileQ4(const uint8_t* w, const uint16_t* scales, size_t groups, const int8_t* a,
            const float* a_scales, const int32_t* a_sums, float* y, size_t y_stride) {
  Products<kTokens> acc;
  for (auto& token : acc) {
    for (auto& quad : token) quad = vdupq_n_f32(0.0f);
  }
  for (size_t g = 0; g < groups; ++g, a += kGroup, scales += kLanes, w += kGroup / 2 * kLanes) {
    Sums<kTokens> dot;
    Rows<kTokens> a_low, a_high;
#pragma GCC unroll 4
    for (size_t t = 0; t < kTokens; ++t) {
      const int32x4_t start = vdupq_n_s32(kSumStart - 8 * a_sums[t * groups + g]);
      for (auto& quad : dot[t]) quad = start;
      a_low[t] = vld1q_s8(a + t * groups * kGroup);
      a_high[t] = vld1q_s8(a + t * groups * kGroup + kGroup / 2);
    }
    AddChunkQ4<0, kTokens>(w, a_low, a_high, dot);
    AddChunkQ4<1, kTokens>(w, a_low, a_high, dot);
    AddChunkQ4<2, kTokens>(w, a_low, a_high, dot);
    AddChunkQ4<3, kTokens>(w, a_low, a_high, dot);
#pragma GCC unroll 4
    for (size_t q = 0; q < kTileRows<kTokens>; ++q) {
      const float32x4_t scale = Load(scales + q * kWidth);
#pragma GCC unroll 4
      for (size_t t = 0; t < kTokens; ++t) {
        const float32x4_t both = vmulq_n_f32(scale, a_scales[t * groups + g]);
        acc[t][q] = vfmaq_f32(acc[t][q], SumToFloat(dot[t][q]), both);
      }
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t q = 0; q < kTileRows<kTokens>; ++q) {
      vst1q_f32(y + t * y_stride + q * kWidth, acc[t][q]);
    }
  }
}

// Up to four tokens of one row block; returns how many. a: the first token, y: its sixteen outputs.
inline size_t BlockQ8(const int8_t* w, const float* row_scales, size_t groups, const int8_t* a,
                      const float* a_scales, size_t tokens, float* y, size_t y_stride) {
  if (tokens >= 4) {
    for (size_t r = 0; r < kLanes; r += kTileRows<4> * kWidth) {
      TileQ8<4>(w + r * 4, row_scales + r, groups, a, a_scales, y + r, y_stride);
    }
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
    for (size_t r = 0; r < kLanes; r += kTileRows<4> * kWidth) {
      TileQ4<4>(w + r * 4, scales + r, groups, a, a_scales, a_sums, y + r, y_stride);
    }
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
