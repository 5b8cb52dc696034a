// Kernels for the 8-bit matrix multiplication of ARMv8.6 (optional before): the quantized matmuls
// of eight tokens and more. Fewer tokens go the way of dotprod.cc, everything else is inherited.
//
// SMMLA multiplies two rows of eight columns with two tokens of eight columns: twice the work of
// SDOT, but it wants the eight columns of a row side by side. The file has four of each row
// together, so two chunks of columns are zipped, which pays when many tokens use the result.
#include "kernels_arm/matmul_dotprod.h"

namespace adder {
namespace {

constexpr size_t kTile = 8;               // tokens, and rows: half of a row block
constexpr size_t kTilePairs = kTile / 2;  // of tokens, and of rows

// Lanes of a register of sums or of products, for the row pair p and the token pair q: (row 2p,
// token 2q), (2p, 2q + 1), (2p + 1, 2q), (2p + 1, 2q + 1).
using PairSums = int32x4_t[kTilePairs][kTilePairs];
using PairProducts = float32x4_t[kTilePairs][kTilePairs];

inline uint8x16_t ZipLow(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u32(vzip1q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
}
inline uint8x16_t ZipHigh(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u32(vzip2q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
}

// Two chunks of kTile rows, `step` bytes apart, as pairs of rows.
inline void LoadRowPairs(const uint8_t* w, size_t step, uint8x16_t (&pairs)[kTilePairs]) {
  for (size_t i = 0; i < kTilePairs; i += 2) {
    const uint8x16_t chunk0 = vld1q_u8(w + i * 8);
    const uint8x16_t chunk1 = vld1q_u8(w + step + i * 8);
    pairs[i] = ZipLow(chunk0, chunk1);
    pairs[i + 1] = ZipHigh(chunk0, chunk1);
  }
}

// Eight columns of kTile tokens, `row` bytes apart, as pairs of tokens.
inline void LoadTokenPairs(const int8_t* a, size_t row, int8x16_t (&pairs)[kTilePairs]) {
  for (size_t q = 0; q < kTilePairs; ++q) {
    pairs[q] = vcombine_s8(vld1_s8(a + 2 * q * row), vld1_s8(a + (2 * q + 1) * row));
  }
}

inline void AddProducts(const int8x16_t (&rows)[kTilePairs], const int8x16_t (&tokens)[kTilePairs],
                        PairSums& dot) {
  for (size_t p = 0; p < kTilePairs; ++p) {
    for (size_t q = 0; q < kTilePairs; ++q) dot[p][q] = vmmlaq_s32(dot[p][q], rows[p], tokens[q]);
  }
}

// The scales of the tokens of pair q: 0, 1, 0, 1.
inline float32x4_t PairScales(const float* a_scales, size_t groups, size_t q) {
  const float32x2_t two = {a_scales[2 * q * groups], a_scales[(2 * q + 1) * groups]};
  return vcombine_f32(two, two);
}

// kTile outputs of kTile tokens, times the scales of the rows if there are any.
inline void StoreTile(const PairProducts& acc, const float* row_scales, float* y, size_t y_stride) {
  for (size_t p = 0; p < kTilePairs; p += 2) {
    for (size_t q = 0; q < kTilePairs; ++q) {
      float32x4_t even = vuzp1q_f32(acc[p][q], acc[p + 1][q]);
      float32x4_t odd = vuzp2q_f32(acc[p][q], acc[p + 1][q]);
      if (row_scales != nullptr) {
        even = vmulq_f32(Load(row_scales + 2 * p), even);
        odd = vmulq_f32(Load(row_scales + 2 * p), odd);
      }
      vst1q_f32(y + 2 * q * y_stride + 2 * p, even);
      vst1q_f32(y + (2 * q + 1) * y_stride + 2 * p, odd);
    }
  }
}

// w and row_scales: the first of the tile's rows; y: its first output.
void TilePairsQ8(const int8_t* w, const float* row_scales, size_t groups, const int8_t* a,
                 const float* a_scales, float* y, size_t y_stride) {
  PairProducts acc;
  for (auto& rows : acc) {
    for (auto& pair : rows) pair = vdupq_n_f32(0.0f);
  }
  for (size_t g = 0; g < groups; ++g) {
    PairSums dot;
    for (auto& rows : dot) {
      for (auto& pair : rows) pair = vdupq_n_s32(0);
    }
    for (size_t k = 0; k < kGroup; k += 8, a += 8, w += 8 * kLanes) {
      uint8x16_t packed[kTilePairs];
      int8x16_t rows[kTilePairs], tokens[kTilePairs];
      LoadRowPairs(reinterpret_cast<const uint8_t*>(w), 4 * kLanes, packed);
      LoadTokenPairs(a, groups * kGroup, tokens);
      for (size_t p = 0; p < kTilePairs; ++p) rows[p] = vreinterpretq_s8_u8(packed[p]);
      AddProducts(rows, tokens, dot);
    }
    for (size_t q = 0; q < kTilePairs; ++q) {
      const float32x4_t scale = PairScales(a_scales + g, groups, q);
      for (size_t p = 0; p < kTilePairs; ++p) {
        acc[p][q] = vfmaq_f32(acc[p][q], vcvtq_f32_s32(dot[p][q]), scale);
      }
    }
  }
  StoreTile(acc, row_scales, y, y_stride);
}

void TilePairsQ4(const uint8_t* w, const uint16_t* scales, size_t groups, const int8_t* a,
                 const float* a_scales, const int32_t* a_sums, float* y, size_t y_stride) {
  PairProducts acc;
  for (auto& rows : acc) {
    for (auto& pair : rows) pair = vdupq_n_f32(0.0f);
  }
  for (size_t g = 0; g < groups; ++g, a += kGroup, scales += kLanes) {
    PairSums dot;
    for (size_t q = 0; q < kTilePairs; ++q) {
      const int32x2_t two = {-8 * a_sums[2 * q * groups + g],
                             -8 * a_sums[(2 * q + 1) * groups + g]};
      for (auto& rows : dot) rows[q] = vcombine_s32(two, two);
    }
    for (size_t k = 0; k < kGroup / 2; k += 8, w += 8 * kLanes) {
      uint8x16_t packed[kTilePairs];
      int8x16_t rows[kTilePairs], tokens[kTilePairs];
      LoadRowPairs(w, 4 * kLanes, packed);
      LoadTokenPairs(a + k, groups * kGroup, tokens);
      for (size_t p = 0; p < kTilePairs; ++p) rows[p] = LowNibbles(packed[p]);
      AddProducts(rows, tokens, dot);
      LoadTokenPairs(a + k + kGroup / 2, groups * kGroup, tokens);
      for (size_t p = 0; p < kTilePairs; ++p) rows[p] = HighNibbles(packed[p]);
      AddProducts(rows, tokens, dot);
    }
    for (size_t p = 0; p < kTilePairs; p += 2) {
      const float32x4_t four = Load(scales + 2 * p);
      const float32x4_t row_scales[2] = {vzip1q_f32(four, four), vzip2q_f32(four, four)};
      for (size_t q = 0; q < kTilePairs; ++q) {
        const float32x4_t a_scale = PairScales(a_scales + g, groups, q);
        for (size_t i = 0; i < 2; ++i) {
          const float32x4_t both = vmulq_f32(row_scales[i], a_scale);
          acc[p + i][q] = vfmaq_f32(acc[p + i][q], vcvtq_f32_s32(dot[p + i][q]), both);
        }
      }
    }
  }
  StoreTile(acc, nullptr, y, y_stride);
}

void MatmulQ8(const int8_t* weights, const float* row_scales, size_t row_blocks, size_t groups,
              const QuantizedRows* x, size_t tokens, float* y, size_t y_stride) {
  for (size_t b = 0; b < row_blocks; ++b) {
    const int8_t* w = weights + b * groups * kGroup * kLanes;
    const float* s = row_scales + b * kLanes;
    for (size_t t = 0; t < tokens;) {
      const int8_t* a = x->values + t * groups * kGroup;
      const float* a_scales = x->scales + t * groups;
      float* out = y + t * y_stride + b * kLanes;
      if (tokens - t < kTile) {
        t += BlockQ8(w, s, groups, a, a_scales, tokens - t, out, y_stride);
        continue;
      }
      for (size_t r = 0; r < kLanes; r += kTile) {
        TilePairsQ8(w + r * 4, s + r, groups, a, a_scales, out + r, y_stride);
      }
      t += kTile;
    }
  }
}

void MatmulQ4(const uint8_t* weights, const uint16_t* scales, size_t row_blocks, size_t groups,
              const QuantizedRows* x, size_t tokens, float* y, size_t y_stride) {
  for (size_t b = 0; b < row_blocks; ++b) {
    const uint8_t* w = weights + b * groups * (kGroup / 2) * kLanes;
    const uint16_t* s = scales + b * groups * kLanes;
    for (size_t t = 0; t < tokens;) {
      const int8_t* a = x->values + t * groups * kGroup;
      const float* a_scales = x->scales + t * groups;
      const int32_t* a_sums = x->sums + t * groups;
      float* out = y + t * y_stride + b * kLanes;
      if (tokens - t < kTile) {
        t += BlockQ4(w, s, groups, a, a_scales, a_sums, tokens - t, out, y_stride);
        continue;
      }
      for (size_t r = 0; r < kLanes; r += kTile) {
        TilePairsQ4(w + r * 4, s + r, groups, a, a_scales, a_sums, out + r, y_stride);
      }
      t += kTile;
    }
  }
}

}  // namespace

constinit const Kernels kI8mmKernels = {
    .name = "i8mm",
    .required = kCpuNeon | kCpuDotProd | kCpuI8mm,
    .matmul_q8 = MatmulQ8,
    .matmul_q4 = MatmulQ4,
};

}  // namespace adder
