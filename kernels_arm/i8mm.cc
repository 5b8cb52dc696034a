// Kernels for the 8-bit matrix multiplication of ARMv8.6 (optional before): the quantized matmuls
// of six tokens and more. Fewer tokens go the way of dotprod.cc, everything else is inherited.
//
// SMMLA multiplies two rows of eight columns with two tokens of eight columns: twice the work of
// SDOT. It wants the eight columns of a row side by side where the file has four, so the rows are
// copied in that order, a span at a time, and all the tokens of the call use the copy. Sums of a
// span wait in y for the next one.
#include "kernels_arm/matmul_dotprod.h"

namespace adder {
namespace {

constexpr size_t kTokenPairs = 3;  // of a tile
constexpr size_t kTileTokens = 2 * kTokenPairs;
constexpr size_t kRowPairs = 4;  // of a tile: half of a row block
constexpr size_t kSpanRows = 2 * kRowPairs;
constexpr size_t kSpan = 16;            // groups that are copied at a time
constexpr size_t kEights = kGroup / 8;  // operands of SMMLA are eight columns long

struct Span {
  size_t groups;
  int8_t rows[kSpan][kEights][kRowPairs][16];  // two rows of eight columns
  float scales[kSpan][kRowPairs][kWidth];      // q4: of the rows 0, 0, 1, 1 of the pair
};

// Lanes of a register of sums or of products, for the row pair p and the token pair q: (row 2p,
// token 2q), (2p, 2q + 1), (2p + 1, 2q), (2p + 1, 2q + 1).
using PairSums = int32x4_t[kRowPairs][kTokenPairs];
using PairProducts = float32x4_t[kRowPairs][kTokenPairs];

// Two chunks of the span's rows, w and the next one, as pairs of rows.
inline void ZipRows(const uint8_t* w, uint8x16_t (&pairs)[kRowPairs]) {
  for (size_t p = 0; p < kRowPairs; p += 2) {
    const uint32x4_t chunk0 = vreinterpretq_u32_u8(vld1q_u8(w + p * 8));
    const uint32x4_t chunk1 = vreinterpretq_u32_u8(vld1q_u8(w + p * 8 + 4 * kLanes));
    pairs[p] = vreinterpretq_u8_u32(vzip1q_u32(chunk0, chunk1));
    pairs[p + 1] = vreinterpretq_u8_u32(vzip2q_u32(chunk0, chunk1));
  }
}

void CopyQ8(const int8_t* w, Span* span) {
  uint8x16_t pairs[kRowPairs];
  for (size_t g = 0; g < span->groups; ++g) {
    for (size_t e = 0; e < kEights; ++e, w += 8 * kLanes) {
      Prefetch(w);
      ZipRows(reinterpret_cast<const uint8_t*>(w), pairs);
      for (size_t p = 0; p < kRowPairs; ++p) {
        vst1q_s8(span->rows[g][e][p], vreinterpretq_s8_u8(pairs[p]));
      }
    }
  }
}

void CopyQ4(const uint8_t* w, const uint16_t* scales, Span* span) {
  uint8x16_t pairs[kRowPairs];
  for (size_t g = 0; g < span->groups; ++g, scales += kLanes) {
    for (size_t e = 0; e < kEights / 2; ++e, w += 8 * kLanes) {
      Prefetch(w);
      ZipRows(w, pairs);
      for (size_t p = 0; p < kRowPairs; ++p) {
        vst1q_s8(span->rows[g][e][p], LowNibbles(pairs[p]));
        vst1q_s8(span->rows[g][e + kEights / 2][p], HighNibbles(pairs[p]));
      }
    }
    for (size_t p = 0; p < kRowPairs; p += 2) {
      const float32x4_t four = Load(scales + 2 * p);
      vst1q_f32(span->scales[g][p], vzip1q_f32(four, four));
      vst1q_f32(span->scales[g][p + 1], vzip2q_f32(four, four));
    }
  }
}

// Sixteen columns of the tile's tokens, `row` bytes apart, as pairs of tokens of eight columns.
inline void ZipTokens(const int8_t* a, size_t row, int8x16_t (&eights)[2][kTokenPairs]) {
#pragma GCC unroll 4
  for (size_t q = 0; q < kTokenPairs; ++q) {
    const int64x2_t even = vreinterpretq_s64_s8(vld1q_s8(a + 2 * q * row));
    const int64x2_t odd = vreinterpretq_s64_s8(vld1q_s8(a + (2 * q + 1) * row));
    eights[0][q] = vreinterpretq_s8_s64(vzip1q_s64(even, odd));
    eights[1][q] = vreinterpretq_s8_s64(vzip2q_s64(even, odd));
  }
}

// The span times kTileTokens tokens, added to acc. a, a_scales and a_sums start at the span's first
// group; `groups` are between the rows of tokens.
template <bool kIsQ4>
inline void AddSpan(const Span& span, size_t groups, const int8_t* a, const float* a_scales,
                    const int32_t* a_sums, PairProducts& acc) {
  for (size_t g = 0; g < span.groups; ++g) {
    PairSums dot;
#pragma GCC unroll 4
    for (size_t q = 0; q < kTokenPairs; ++q) {
      int32x4_t start = vdupq_n_s32(kSumStart);
      if constexpr (kIsQ4) {
        const int32x4_t sums = vzip1q_s32(vld1q_dup_s32(a_sums + 2 * q * groups + g),
                                          vld1q_dup_s32(a_sums + (2 * q + 1) * groups + g));
        start = vsubq_s32(start, vshlq_n_s32(sums, 3));
      }
#pragma GCC unroll 4
      for (size_t p = 0; p < kRowPairs; ++p) dot[p][q] = start;
    }
#pragma GCC unroll 2
    for (size_t half = 0; half < 2; ++half, a += kGroup / 2) {
      int8x16_t tokens[2][kTokenPairs];
      ZipTokens(a, groups * kGroup, tokens);
#pragma GCC unroll 2
      for (size_t e = 0; e < 2; ++e) {
#pragma GCC unroll 4
        for (size_t p = 0; p < kRowPairs; ++p) {
          const int8x16_t rows = vld1q_s8(span.rows[g][2 * half + e][p]);
#pragma GCC unroll 4
          for (size_t q = 0; q < kTokenPairs; ++q) {
            dot[p][q] = vmmlaq_s32(dot[p][q], rows, tokens[e][q]);
          }
        }
      }
    }
#pragma GCC unroll 4
    for (size_t q = 0; q < kTokenPairs; ++q) {
      const float32x4_t a_scale = vzip1q_f32(vld1q_dup_f32(a_scales + 2 * q * groups + g),
                                             vld1q_dup_f32(a_scales + (2 * q + 1) * groups + g));
#pragma GCC unroll 4
      for (size_t p = 0; p < kRowPairs; ++p) {
        const float32x4_t scale = kIsQ4 ? vmulq_f32(Load(span.scales[g][p]), a_scale) : a_scale;
        acc[p][q] = vfmaq_f32(acc[p][q], SumToFloat(dot[p][q]), scale);
      }
    }
  }
}

inline void LoadTile(const float* y, size_t y_stride, PairProducts& acc) {
  for (size_t p = 0; p < kRowPairs; p += 2) {
    for (size_t q = 0; q < kTokenPairs; ++q) {
      const float32x4_t even = Load(y + 2 * q * y_stride + 2 * p);
      const float32x4_t odd = Load(y + (2 * q + 1) * y_stride + 2 * p);
      acc[p][q] = vzip1q_f32(even, odd);
      acc[p + 1][q] = vzip2q_f32(even, odd);
    }
  }
}

// Multiplies by the scales of the rows if there are any.
inline void StoreTile(const PairProducts& acc, const float* row_scales, float* y, size_t y_stride) {
  for (size_t p = 0; p < kRowPairs; p += 2) {
    for (size_t q = 0; q < kTokenPairs; ++q) {
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

// The groups from `first` on for all whole tiles of tokens. row_scales: nullptr but for the last
// span of q8. y: the first of the span's rows.
template <bool kIsQ4>
void MultiplySpan(const Span& span, size_t first, size_t groups, const QuantizedRows* x,
                  size_t tokens, const float* row_scales, float* y, size_t y_stride) {
  for (size_t t = 0; tokens - t >= kTileTokens; t += kTileTokens, y += kTileTokens * y_stride) {
    PairProducts acc = {};
    if (first > 0) LoadTile(y, y_stride, acc);
    const size_t at = t * groups + first;
    AddSpan<kIsQ4>(span, groups, x->values + at * kGroup, x->scales + at, x->sums + at, acc);
    StoreTile(acc, row_scales, y, y_stride);
  }
}

inline size_t SpanGroups(size_t left) { return left < kSpan ? left : kSpan; }

void MatmulQ8(const int8_t* weights, const float* row_scales, size_t row_blocks, size_t groups,
              const QuantizedRows* x, size_t tokens, float* y, size_t y_stride) {
  Span span;
  for (size_t b = 0; b < row_blocks; ++b) {
    const int8_t* w = weights + b * groups * kGroup * kLanes;
    const float* s = row_scales + b * kLanes;
    float* out = y + b * kLanes;
    for (size_t r = 0; r < kLanes && tokens >= kTileTokens; r += kSpanRows) {
      for (size_t g = 0; g < groups; g += span.groups) {
        span.groups = SpanGroups(groups - g);
        CopyQ8(w + g * kGroup * kLanes + r * 4, &span);
        const bool last = g + span.groups == groups;
        MultiplySpan<false>(span, g, groups, x, tokens, last ? s + r : nullptr, out + r, y_stride);
      }
    }
    for (size_t t = tokens - tokens % kTileTokens; t < tokens;) {
      t += BlockQ8(w, s, groups, x->values + t * groups * kGroup, x->scales + t * groups,
                   tokens - t, out + t * y_stride, y_stride);
    }
  }
}

void MatmulQ4(const uint8_t* weights, const uint16_t* scales, size_t row_blocks, size_t groups,
              const QuantizedRows* x, size_t tokens, float* y, size_t y_stride) {
  Span span;
  for (size_t b = 0; b < row_blocks; ++b) {
    const uint8_t* w = weights + b * groups * (kGroup / 2) * kLanes;
    const uint16_t* s = scales + b * groups * kLanes;
    float* out = y + b * kLanes;
    for (size_t r = 0; r < kLanes && tokens >= kTileTokens; r += kSpanRows) {
      for (size_t g = 0; g < groups; g += span.groups) {
        span.groups = SpanGroups(groups - g);
        CopyQ4(w + g * (kGroup / 2) * kLanes + r * 4, s + g * kLanes + r, &span);
        MultiplySpan<true>(span, g, groups, x, tokens, nullptr, out + r, y_stride);
      }
    }
    for (size_t t = tokens - tokens % kTileTokens; t < tokens;) {
      t += BlockQ4(w, s, groups, x->values + t * groups * kGroup, x->scales + t * groups,
                   x->sums + t * groups, tokens - t, out + t * y_stride, y_stride);
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
