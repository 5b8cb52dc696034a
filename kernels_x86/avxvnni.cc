// Kernels for AVX2 with AVX-VNNI, the 256-bit vpdpbusd of processors without AVX-512. Only the
// products of bytes differ from avx2.cc.
#include <immintrin.h>

#include "kernels_x86/prefetch.h"
#include "runtime/kernels.h"

namespace adder {
namespace {

constexpr size_t kHalves = 2;  // kLanes rows are two registers of eight
constexpr size_t kWidth = 8;
static_assert(kLanes == kHalves * kWidth && kGroup == 32);

// Tokens of a tile: its dot products take 8 of 16 registers, weights and activations the others.
// The sums of floats are left to memory: they are touched once per 16 products.
constexpr size_t kTile = 4;

// Row blocks of a single token, and how far ahead they are fetched, bytes.
constexpr size_t kStreamsQ8 = 4, kStreamsQ4 = 4;
constexpr size_t kAheadQ8 = 1536, kAheadQ4 = 1024, kAheadScales = 192;

inline __m256i LoadInts(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

inline __m256 LoadHalves(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// Four consecutive activations in every lane of 32 bits.
inline __m256i Broadcast4(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, sizeof(four));
  return _mm256_set1_epi32(four);
}

// A tile is kBlocks row blocks, `apart` row blocks from each other (avx2.cc says why), a group of
// each in turn, times kTokens tokens. x points to the first token; its rows have `groups` groups.
//
// vpdpbusd multiplies unsigned by signed bytes: the weights become w + 128 by flipping their sign
// bit, and 128 times the sum of the activations is subtracted.
template <size_t kBlocks, size_t kTokens>
void TileQ8(const int8_t* w, const float* row_scales, size_t apart, size_t groups,
            const QuantizedRows& x, float* y, size_t y_stride) {
  const __m256i sign_bits = _mm256_set1_epi8(-128);
  __m256 acc[kBlocks][kTokens][kHalves];
  for (auto& block : acc) {
    for (auto& token : block) token[0] = token[1] = _mm256_setzero_ps();
  }
  for (size_t g = 0; g < groups; ++g) {
    const int8_t* a = x.values + g * kGroup;
#pragma GCC unroll 4  // or sums stay in memory
    for (size_t b = 0; b < kBlocks; ++b) {
      const int8_t* column = w + (b * apart * groups + g) * kGroup * kLanes;
      __m256i dot[kTokens][kHalves];
      for (auto& token : dot) token[0] = token[1] = _mm256_setzero_si256();
      for (size_t k = 0; k < kGroup; k += 4, column += 4 * kLanes) {
        if constexpr (kTokens == 1) Prefetch(column, kAheadQ8);
        const __m256i w0 = _mm256_xor_si256(LoadInts(column), sign_bits);
        const __m256i w1 = _mm256_xor_si256(LoadInts(column + 32), sign_bits);
        for (size_t t = 0; t < kTokens; ++t) {
          const __m256i a4 = Broadcast4(a + t * groups * kGroup + k);
          dot[t][0] = _mm256_dpbusd_avx_epi32(dot[t][0], w0, a4);
          dot[t][1] = _mm256_dpbusd_avx_epi32(dot[t][1], w1, a4);
        }
      }
      for (size_t t = 0; t < kTokens; ++t) {
        const __m256 scale = _mm256_set1_ps(x.scales[t * groups + g]);
        const __m256i offset = _mm256_set1_epi32(128 * x.sums[t * groups + g]);
        for (size_t h = 0; h < kHalves; ++h) {
          const __m256i exact = _mm256_sub_epi32(dot[t][h], offset);
          acc[b][t][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(exact), scale, acc[b][t][h]);
        }
      }
    }
  }
  for (size_t b = 0; b < kBlocks; ++b) {
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t h = 0; h < kHalves; ++h) {
        const size_t row = b * apart * kLanes + h * kWidth;
        _mm256_storeu_ps(y + t * y_stride + row,
                         _mm256_mul_ps(_mm256_loadu_ps(row_scales + row), acc[b][t][h]));
      }
    }
  }
}

template <size_t kBlocks, size_t kTokens>
void TileQ4(const uint8_t* w, const uint16_t* scales, size_t apart, size_t groups,
            const QuantizedRows& x, float* y, size_t y_stride) {
  const __m256i low_bits = _mm256_set1_epi8(15);
  __m256 acc[kBlocks][kTokens][kHalves];
  for (auto& block : acc) {
    for (auto& token : block) token[0] = token[1] = _mm256_setzero_ps();
  }
  for (size_t g = 0; g < groups; ++g) {
    const int8_t* a = x.values + g * kGroup;
#pragma GCC unroll 4  // or sums stay in memory
    for (size_t b = 0; b < kBlocks; ++b) {
      const uint8_t* column = w + (b * apart * groups + g) * (kGroup / 2) * kLanes;
      const uint16_t* group_scales = scales + (b * apart * groups + g) * kLanes;
      if (kTokens == 1 && g % 2 == 0) Prefetch(group_scales, kAheadScales);
      __m256i dot[kTokens][kHalves];
      for (auto& token : dot) token[0] = token[1] = _mm256_setzero_si256();
      for (size_t k = 0; k < kGroup / 2; k += 4, column += 4 * kLanes) {
        if constexpr (kTokens == 1) Prefetch(column, kAheadQ4);
        __m256i low[kHalves], high[kHalves];
        for (size_t h = 0; h < kHalves; ++h) {
          const __m256i packed = LoadInts(column + h * 32);
          low[h] = _mm256_and_si256(packed, low_bits);
          high[h] = _mm256_and_si256(_mm256_srli_epi16(packed, 4), low_bits);
        }
        for (size_t t = 0; t < kTokens; ++t) {
          const int8_t* a4 = a + t * groups * kGroup + k;
          const __m256i a_low = Broadcast4(a4);
          const __m256i a_high = Broadcast4(a4 + kGroup / 2);
          for (size_t h = 0; h < kHalves; ++h) {
            dot[t][h] = _mm256_dpbusd_avx_epi32(dot[t][h], low[h], a_low);
            dot[t][h] = _mm256_dpbusd_avx_epi32(dot[t][h], high[h], a_high);
          }
        }
      }
      for (size_t t = 0; t < kTokens; ++t) {
        const __m256 a_scale = _mm256_set1_ps(x.scales[t * groups + g]);
        const __m256i offset = _mm256_set1_epi32(8 * x.sums[t * groups + g]);
        for (size_t h = 0; h < kHalves; ++h) {
          const __m256i exact = _mm256_sub_epi32(dot[t][h], offset);
          const __m256 scale = _mm256_mul_ps(LoadHalves(group_scales + h * kWidth), a_scale);
          acc[b][t][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(exact), scale, acc[b][t][h]);
        }
      }
    }
  }
  for (size_t b = 0; b < kBlocks; ++b) {
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t h = 0; h < kHalves; ++h) {
        _mm256_storeu_ps(y + t * y_stride + b * apart * kLanes + h * kWidth, acc[b][t][h]);
      }
    }
  }
}

// The rows of x from token t on.
inline QuantizedRows From(const QuantizedRows* x, size_t t, size_t groups) {
  return {x->values + t * groups * kGroup, x->scales + t * groups, x->sums + t * groups};
}

void MatmulQ8(const int8_t* weights, const float* row_scales, size_t row_blocks, size_t groups,
              const QuantizedRows* x, size_t tokens, float* y, size_t y_stride) {
  constexpr decltype(&TileQ8<1, 1>) kTiles[kTile] = {TileQ8<1, 1>, TileQ8<1, 2>, TileQ8<1, 3>,
                                                     TileQ8<1, 4>};
  const size_t apart = tokens == 1 ? row_blocks / kStreamsQ8 : 0;
  for (size_t b = 0; b < apart; ++b) {
    TileQ8<kStreamsQ8, 1>(weights + b * groups * kGroup * kLanes, row_scales + b * kLanes, apart,
                          groups, *x, y + b * kLanes, y_stride);
  }
  for (size_t b = apart * kStreamsQ8; b < row_blocks; ++b) {
    for (size_t t = 0; t < tokens; t += kTile) {
      const size_t count = tokens - t < kTile ? tokens - t : kTile;
      kTiles[count - 1](weights + b * groups * kGroup * kLanes, row_scales + b * kLanes, 1, groups,
                        From(x, t, groups), y + t * y_stride + b * kLanes, y_stride);
    }
  }
}

void MatmulQ4(const uint8_t* weights, const uint16_t* scales, size_t row_blocks, size_t groups,
              const QuantizedRows* x, size_t tokens, float* y, size_t y_stride) {
  constexpr decltype(&TileQ4<1, 1>) kTiles[kTile] = {TileQ4<1, 1>, TileQ4<1, 2>, TileQ4<1, 3>,
                                                     TileQ4<1, 4>};
  const size_t apart = tokens == 1 ? row_blocks / kStreamsQ4 : 0;
  for (size_t b = 0; b < apart; ++b) {
    TileQ4<kStreamsQ4, 1>(weights + b * groups * (kGroup / 2) * kLanes,
                          scales + b * groups * kLanes, apart, groups, *x, y + b * kLanes,
                          y_stride);
  }
  for (size_t b = apart * kStreamsQ4; b < row_blocks; ++b) {
    for (size_t t = 0; t < tokens; t += kTile) {
      const size_t count = tokens - t < kTile ? tokens - t : kTile;
      kTiles[count - 1](weights + b * groups * (kGroup / 2) * kLanes, scales + b * groups * kLanes,
                        1, groups, From(x, t, groups), y + t * y_stride + b * kLanes, y_stride);
    }
  }
}

}  // namespace

constinit const Kernels kAvxVnniKernels = {
    .name = "avxvnni",
    .required = kCpuAvx2 | kCpuAvxVnni,
    .matmul_q8 = MatmulQ8,
    .matmul_q4 = MatmulQ4,
};

}  // namespace adder
