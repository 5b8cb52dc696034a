// Kernels for AVX2 with FMA and F16C. kLanes rows or channels are two registers of eight floats,
// called halves below.
#include <immintrin.h>

#include "kernels_simd/mamba3.h"
#include "kernels_simd/ssd16.h"
#include "kernels_x86/activations_avx2.h"
#include "kernels_x86/math_avx2.h"
#include "kernels_x86/prefetch.h"
#include "kernels_x86/softmax_avx2.h"
#include "kernels_x86/vector_avx2.h"
#include "runtime/kernels.h"

namespace adder {
namespace {

constexpr size_t kHalves = 2;
constexpr size_t kWidth = 8;
static_assert(kLanes == kHalves * kWidth && kGroup == 32);

inline __m256i LoadInts(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

inline __m256 Load(const float* p) { return _mm256_loadu_ps(p); }
inline __m256 Load(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// Four consecutive activations in every lane of 32 bits.
inline __m256i Broadcast4(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, sizeof(four));
  return _mm256_set1_epi32(four);
}

// Makes v a value of its own at this point. gcc would turn the sums of a whole group into a tree
// whose leaves do not fit the registers.
inline void KeepOrder(__m256i& v) { asm("" : "+x"(v)); }

// Lanes 0..count-1 set; count may be larger than kWidth.
inline __m256i FirstLanes(size_t count) {
  const int lanes = static_cast<int>(count < kWidth ? count : kWidth);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

inline int32_t SumInts(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
  return _mm_cvtsi128_si32(s);
}

inline int32_t LargestInt(__m256i v) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  return _mm_cvtsi128_si32(m);
}

// ---- quantize_row

void QuantizeRow(const float* x, size_t n, int8_t* values, float* scales, int32_t* sums) {
  const __m256i magnitude_bits = _mm256_set1_epi32(0x7fffffff);
  for (size_t done = 0; done < n; done += kGroup, x += kGroup, values += kGroup) {
    __m256 v[4];
    __m256i largest = _mm256_setzero_si256();
    for (size_t i = 0; i < 4; ++i) {
      const size_t first = done + i * kWidth;
      v[i] = first + kWidth <= n
                 ? Load(x + i * kWidth)
                 : _mm256_maskload_ps(x + i * kWidth, FirstLanes(first < n ? n - first : 0));
      const __m256i bits = _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude_bits);
      largest = _mm256_max_epi32(largest, bits);
    }
    const int32_t bits = LargestInt(largest);
    float m;
    __builtin_memcpy(&m, &bits, sizeof(m));
    const bool finite = bits < 0x7f800000;
    if (!finite || m < kQuantizeMin) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(values), _mm256_setzero_si256());
      *sums++ = 0;
      *scales++ = finite ? 0.0f : __builtin_nanf("");
      continue;
    }
    const __m256 inverse = _mm256_set1_ps(127.0f / m);
    __m256i q[4];
    for (size_t i = 0; i < 4; ++i) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    *sums++ = SumInts(_mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3])));
    *scales++ = m * (1.0f / 127.0f);
    // The packs work within 128-bit halves; the permutation puts blocks of four back in order.
    const __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(values),
                        _mm256_permutevar8x32_epi32(bytes, order));
  }
}

// ---- matmul_q8, matmul_q4
//
// A tile is kBlocks row blocks, a group of each in turn, times kTokens tokens. Weights are loaded
// once for all its tokens, and stay in the caches while the tiles of a prompt go over them. A
// single token takes four row blocks: one core reads more from four streams than from one (25% on
// Zen 5).

constexpr size_t kStreamsQ8 = 4, kStreamsQ4 = 4, kStreamsFloat = 4;
// How far ahead streams are fetched, bytes.
constexpr size_t kAheadQ8 = 1536, kAheadQ4 = 1024, kAheadScales = 192, kAheadFloat = 1536;

template <size_t kBlocks, size_t kTokens>
void TileQ8(const int8_t* w, const float* row_scales, size_t apart, size_t groups, const int8_t* a,
            const float* a_scales, float* y, size_t y_stride) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256 acc[kBlocks][kTokens][kHalves];
  for (auto& block : acc) {
    for (auto& token : block) token[0] = token[1] = _mm256_setzero_ps();
  }
  for (size_t g = 0; g < groups; ++g, a += kGroup) {
#pragma GCC unroll 4  // or sums stay in memory
    for (size_t b = 0; b < kBlocks; ++b) {
      const int8_t* column = w + (b * apart * groups + g) * kGroup * kLanes;
      __m256i dot[kTokens][kHalves];
      for (auto& token : dot) token[0] = token[1] = _mm256_setzero_si256();
      for (size_t k = 0; k < kGroup; k += 4, column += 4 * kLanes) {
        if constexpr (kTokens == 1) Prefetch(column, kAheadQ8);
        const __m256i w0 = LoadInts(column);
        const __m256i w1 = LoadInts(column + 32);
        const __m256i abs0 = _mm256_abs_epi8(w0);
        const __m256i abs1 = _mm256_abs_epi8(w1);
        for (size_t t = 0; t < kTokens; ++t) {
          // |w| times a with the sign of w: |w| <= 128, |a| <= 127, two products fit 16 bits.
          const __m256i a4 = Broadcast4(a + t * groups * kGroup + k);
          const __m256i pairs0 = _mm256_maddubs_epi16(abs0, _mm256_sign_epi8(a4, w0));
          const __m256i pairs1 = _mm256_maddubs_epi16(abs1, _mm256_sign_epi8(a4, w1));
          dot[t][0] = _mm256_add_epi32(dot[t][0], _mm256_madd_epi16(pairs0, ones));
          dot[t][1] = _mm256_add_epi32(dot[t][1], _mm256_madd_epi16(pairs1, ones));
          KeepOrder(dot[t][0]);
          KeepOrder(dot[t][1]);
        }
      }
      for (size_t t = 0; t < kTokens; ++t) {
        const __m256 scale = _mm256_set1_ps(a_scales[t * groups + g]);
        for (size_t h = 0; h < kHalves; ++h) {
          acc[b][t][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[t][h]), scale, acc[b][t][h]);
        }
      }
    }
  }
  for (size_t b = 0; b < kBlocks; ++b) {
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t h = 0; h < kHalves; ++h) {
        const size_t row = b * apart * kLanes + h * kWidth;
        _mm256_storeu_ps(y + t * y_stride + row,
                         _mm256_mul_ps(Load(row_scales + row), acc[b][t][h]));
      }
    }
  }
}

template <size_t kBlocks, size_t kTokens>
void TileQ4(const uint8_t* w, const uint16_t* scales, size_t apart, size_t groups, const int8_t* a,
            const float* a_scales, const int32_t* a_sums, float* y, size_t y_stride) {
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i low_bits = _mm256_set1_epi8(15);
  __m256 acc[kBlocks][kTokens][kHalves];
  for (auto& block : acc) {
    for (auto& token : block) token[0] = token[1] = _mm256_setzero_ps();
  }
  for (size_t g = 0; g < groups; ++g, a += kGroup) {
#pragma GCC unroll 4  // or sums stay in memory
    for (size_t b = 0; b < kBlocks; ++b) {
      const uint8_t* column = w + (b * apart * groups + g) * (kGroup / 2) * kLanes;
      const uint16_t* group_scales = scales + (b * apart * groups + g) * kLanes;
      if (kTokens == 1 && g % 2 == 0) Prefetch(group_scales, kAheadScales);
      // Eight pairs of products, each at most 2 * 15 * 127, fit 16 bits: one widening per group.
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
            dot[t][h] = _mm256_add_epi16(dot[t][h], _mm256_maddubs_epi16(low[h], a_low));
            dot[t][h] = _mm256_add_epi16(dot[t][h], _mm256_maddubs_epi16(high[h], a_high));
            KeepOrder(dot[t][h]);
          }
        }
      }
      for (size_t t = 0; t < kTokens; ++t) {
        const __m256 a_scale = _mm256_set1_ps(a_scales[t * groups + g]);
        const __m256i offset = _mm256_set1_epi32(8 * a_sums[t * groups + g]);
        for (size_t h = 0; h < kHalves; ++h) {
          const __m256i exact = _mm256_sub_epi32(_mm256_madd_epi16(dot[t][h], ones), offset);
          const __m256 scale = _mm256_mul_ps(Load(group_scales + h * kWidth), a_scale);
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

void MatmulQ8(const int8_t* weights, const float* row_scales, size_t row_blocks, size_t groups,
              const QuantizedRows* x, size_t tokens, float* y, size_t y_stride) {
  const size_t apart = tokens == 1 ? row_blocks / kStreamsQ8 : 0;
  for (size_t b = 0; b < apart; ++b) {
    TileQ8<kStreamsQ8, 1>(weights + b * groups * kGroup * kLanes, row_scales + b * kLanes, apart,
                          groups, x->values, x->scales, y + b * kLanes, y_stride);
  }
  for (size_t b = apart * kStreamsQ8; b < row_blocks; ++b) {
    const int8_t* w = weights + b * groups * kGroup * kLanes;
    const float* s = row_scales + b * kLanes;
    for (size_t t = 0; t < tokens;) {
      const int8_t* a = x->values + t * groups * kGroup;
      const float* a_scales = x->scales + t * groups;
      float* out = y + t * y_stride + b * kLanes;
      const size_t count = tokens - t >= 4 ? 4 : tokens - t >= 2 ? 2 : 1;
      const auto tile = count == 4 ? TileQ8<1, 4> : count == 2 ? TileQ8<1, 2> : TileQ8<1, 1>;
      tile(w, s, 1, groups, a, a_scales, out, y_stride);
      t += count;
    }
  }
}

void MatmulQ4(const uint8_t* weights, const uint16_t* scales, size_t row_blocks, size_t groups,
              const QuantizedRows* x, size_t tokens, float* y, size_t y_stride) {
  const size_t apart = tokens == 1 ? row_blocks / kStreamsQ4 : 0;
  for (size_t b = 0; b < apart; ++b) {
    TileQ4<kStreamsQ4, 1>(weights + b * groups * (kGroup / 2) * kLanes,
                          scales + b * groups * kLanes, apart, groups, x->values, x->scales,
                          x->sums, y + b * kLanes, y_stride);
  }
  for (size_t b = apart * kStreamsQ4; b < row_blocks; ++b) {
    const uint8_t* w = weights + b * groups * (kGroup / 2) * kLanes;
    const uint16_t* s = scales + b * groups * kLanes;
    for (size_t t = 0; t < tokens;) {
      const int8_t* a = x->values + t * groups * kGroup;
      const float* a_scales = x->scales + t * groups;
      const int32_t* a_sums = x->sums + t * groups;
      float* out = y + t * y_stride + b * kLanes;
      const size_t count = tokens - t >= 4 ? 4 : tokens - t >= 2 ? 2 : 1;
      const auto tile = count == 4 ? TileQ4<1, 4> : count == 2 ? TileQ4<1, 2> : TileQ4<1, 1>;
      tile(w, s, 1, groups, a, a_scales, a_sums, out, y_stride);
      t += count;
    }
  }
}

// ---- matmul_f16, matmul_f32
//
// Each output is one chain of fmaf; several row blocks or tokens at a time hide its latency.

template <size_t kBlocks, size_t kTokens, typename Weight>
void TileFloat(const Weight* w, size_t apart, size_t cols, const float* x, size_t x_stride,
               float* y, size_t y_stride) {
  __m256 acc[kBlocks][kTokens][kHalves];
  for (auto& block : acc) {
    for (auto& token : block) token[0] = token[1] = _mm256_setzero_ps();
  }
  for (size_t k = 0; k < cols; ++k, w += kLanes) {
    for (size_t b = 0; b < kBlocks; ++b) {
      const Weight* column = w + b * apart * cols * kLanes;
      if constexpr (kTokens == 1) Prefetch(column, kAheadFloat);
      for (size_t h = 0; h < kHalves; ++h) {
        const __m256 weight = Load(column + h * kWidth);
        for (size_t t = 0; t < kTokens; ++t) {
          acc[b][t][h] = _mm256_fmadd_ps(weight, _mm256_set1_ps(x[t * x_stride + k]), acc[b][t][h]);
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

template <typename Weight>
void MatmulFloat(const Weight* weights, size_t row_blocks, size_t cols, const float* x,
                 size_t x_stride, size_t tokens, float* y, size_t y_stride) {
  const size_t apart = tokens == 1 ? row_blocks / kStreamsFloat : 0;
  for (size_t b = 0; b < apart; ++b) {
    TileFloat<kStreamsFloat, 1>(weights + b * cols * kLanes, apart, cols, x, x_stride,
                                y + b * kLanes, y_stride);
  }
  for (size_t b = apart * kStreamsFloat; b < row_blocks; ++b) {
    const Weight* w = weights + b * cols * kLanes;
    float* out = y + b * kLanes;
    size_t t = 0;
    for (; tokens - t >= 4; t += 4) {
      TileFloat<1, 4>(w, 1, cols, x + t * x_stride, x_stride, out + t * y_stride, y_stride);
    }
    for (; t < tokens; ++t) {
      TileFloat<1, 1>(w, 1, cols, x + t * x_stride, x_stride, out + t * y_stride, y_stride);
    }
  }
}

// ---- norms and elementwise

void RmsNorm(const float* x, const float* weight, size_t n, float count, float eps, float* y) {
  const size_t whole = n - n % kLanes;
  const __m256i tail[kHalves] = {FirstLanes(n - whole),
                                 FirstLanes(n - whole > kWidth ? n - whole - kWidth : 0)};
  __m256 s[kHalves] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t h = 0; h < kHalves; ++h) {
      const __m256 v = Load(x + i + h * kWidth);
      s[h] = _mm256_fmadd_ps(v, v, s[h]);
    }
  }
  if (whole < n) {
    for (size_t h = 0; h < kHalves; ++h) {
      const __m256 v = _mm256_maskload_ps(x + whole + h * kWidth, tail[h]);
      s[h] = _mm256_fmadd_ps(v, v, s[h]);
    }
  }
  const __m256 eight = _mm256_add_ps(s[0], s[1]);
  __m128 total = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  total = _mm_add_ps(total, _mm_movehl_ps(total, total));
  total = _mm_add_ss(total, _mm_movehdup_ps(total));
  const float mean = _mm_cvtss_f32(total) / count + eps;
  const __m256 inverse = _mm256_set1_ps(1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean))));

  for (size_t i = 0; i < whole; i += kWidth) {
    __m256 v = _mm256_mul_ps(Load(x + i), inverse);
    if (weight != nullptr) v = _mm256_mul_ps(v, Load(weight + i));
    _mm256_storeu_ps(y + i, v);
  }
  if (whole < n) {
    for (size_t h = 0; h < kHalves; ++h) {
      const size_t i = whole + h * kWidth;
      __m256 v = _mm256_mul_ps(_mm256_maskload_ps(x + i, tail[h]), inverse);
      if (weight != nullptr) v = _mm256_mul_ps(v, _mm256_maskload_ps(weight + i, tail[h]));
      _mm256_maskstore_ps(y + i, tail[h], v);
    }
  }
}

void Add(const float* x, size_t n, float* y) {
  for (size_t i = 0; i < n; i += kWidth) {
    _mm256_storeu_ps(y + i, _mm256_add_ps(Load(y + i), Load(x + i)));
  }
}

void SoftplusClamped(const float* bias, size_t n, float lo, float hi, float* x) {
  for (size_t i = 0; i < n; i += kWidth) {
    const __m256 value = Softplus(_mm256_add_ps(Load(x + i), Load(bias + i)));
    const __m256 raised = _mm256_max_ps(_mm256_set1_ps(lo), value);
    _mm256_storeu_ps(x + i, _mm256_min_ps(_mm256_set1_ps(hi), raised));
  }
}

// ---- conv1d_silu: eight channels, tokens inner, the inputs in flight in registers.

template <size_t kTaps>
void ConvHalf(const float* weights, const float* bias, size_t tokens, size_t stride, float* state,
              float* x) {
  __m256 w[kTaps];
  __m256 input[kTaps];  // oldest first; the last is the current one
  for (size_t j = 0; j < kTaps; ++j) w[j] = Load(weights + j * kLanes);
  for (size_t j = 0; j + 1 < kTaps; ++j) input[j] = Load(state + j * kLanes);
  const __m256 b = Load(bias);
  for (size_t t = 0; t < tokens; ++t, x += stride) {
    input[kTaps - 1] = Load(x);
    __m256 acc = b;
    for (size_t j = 0; j < kTaps; ++j) acc = _mm256_fmadd_ps(w[j], input[j], acc);
    _mm256_storeu_ps(x, Silu(acc));
    for (size_t j = 0; j + 1 < kTaps; ++j) input[j] = input[j + 1];
  }
  for (size_t j = 0; j + 1 < kTaps; ++j) _mm256_storeu_ps(state + j * kLanes, input[j]);
}

void Conv1dSilu(const float* weights, const float* bias, size_t channel_blocks, size_t d_conv,
                size_t tokens, size_t stride, float* state, float* x) {
  constexpr decltype(&ConvHalf<1>) kByTaps[kMaxConv] = {
      ConvHalf<1>, ConvHalf<2>, ConvHalf<3>, ConvHalf<4>,
      ConvHalf<5>, ConvHalf<6>, ConvHalf<7>, ConvHalf<8>,
  };
  const auto convolve = kByTaps[d_conv - 1];
  for (size_t c = 0; c < channel_blocks * kLanes; c += kWidth) {
    const size_t block = c / kLanes;
    const size_t lane = c % kLanes;
    convolve(weights + block * d_conv * kLanes + lane, bias + c, tokens, stride,
             state + block * (d_conv - 1) * kLanes + lane, x + c);
  }
}

// ---- selective_scan: one channel block, tokens inner, its state in the first cache.

void SelectiveScan(const SelectiveScanArgs* args) {
  const size_t d_state = args->d_state;
  for (size_t block = 0; block < args->channel_blocks; ++block) {
    const size_t channel = block * kLanes;
    const float* a = args->a + channel * d_state;
    float* state = args->state + channel * d_state;
    for (size_t t = 0; t < args->tokens; ++t) {
      const size_t row = t * args->stride + channel;
      const float* b = args->b + t * args->bc_stride;
      const float* c = args->c + t * args->bc_stride;
      __m256 x[kHalves], dt[kHalves], u[kHalves], y[kHalves];
      for (size_t h = 0; h < kHalves; ++h) {
        x[h] = Load(args->x + row + h * kWidth);
        dt[h] = Load(args->dt + row + h * kWidth);
        u[h] = _mm256_mul_ps(dt[h], x[h]);
        y[h] = _mm256_setzero_ps();
      }
      for (size_t n = 0; n < d_state; ++n) {
        const __m256 bn = _mm256_set1_ps(b[n]);
        const __m256 cn = _mm256_set1_ps(c[n]);
        for (size_t h = 0; h < kHalves; ++h) {
          float* s = state + n * kLanes + h * kWidth;
          const __m256 decay = Exp2(_mm256_mul_ps(dt[h], Load(a + n * kLanes + h * kWidth)));
          const __m256 next = _mm256_fmadd_ps(decay, Load(s), _mm256_mul_ps(u[h], bn));
          _mm256_storeu_ps(s, next);
          y[h] = _mm256_fmadd_ps(next, cn, y[h]);
        }
      }
      for (size_t h = 0; h < kHalves; ++h) {
        y[h] = _mm256_fmadd_ps(Load(args->d + channel + h * kWidth), x[h], y[h]);
        const __m256 gate = Silu(Load(args->z + row + h * kWidth));
        _mm256_storeu_ps(args->x + row + h * kWidth, _mm256_mul_ps(y[h], gate));
      }
    }
  }
}

// ---- ssd_scan
//
// A head takes up to kSsdTokens tokens at a time. For each of its channel blocks the loop over
// states is outside and the one over tokens inside, so that kSsdStates states live in registers
// while the sums y of all the tokens pass by; each y still adds its states in order.

constexpr size_t kSsdTokens = 32;
constexpr size_t kSsdStates = 4;

struct SsdChunk {
  size_t tokens;
  const float* b;  // of the head's group, row 0 of the chunk
  const float* c;
  size_t bc_stride;
  alignas(32) float decay[kSsdTokens];
  alignas(32) float u[kSsdTokens][kLanes];
  alignas(32) float y[kSsdTokens][kLanes];
};

template <size_t kStates>
void SsdTile(SsdChunk* chunk, size_t first, float* state) {
  __m256 s[kStates][kHalves];
  for (size_t n = 0; n < kStates; ++n) {
    for (size_t h = 0; h < kHalves; ++h) s[n][h] = Load(state + n * kLanes + h * kWidth);
  }
  const float* b = chunk->b + first;
  const float* c = chunk->c + first;
  for (size_t t = 0; t < chunk->tokens; ++t, b += chunk->bc_stride, c += chunk->bc_stride) {
    const __m256 decay = _mm256_set1_ps(chunk->decay[t]);
    for (size_t h = 0; h < kHalves; ++h) {
      const __m256 u = Load(chunk->u[t] + h * kWidth);
      __m256 y = Load(chunk->y[t] + h * kWidth);
      for (size_t n = 0; n < kStates; ++n) {
        s[n][h] = _mm256_fmadd_ps(decay, s[n][h], _mm256_mul_ps(u, _mm256_set1_ps(b[n])));
        y = _mm256_fmadd_ps(s[n][h], _mm256_set1_ps(c[n]), y);
      }
      _mm256_store_ps(chunk->y[t] + h * kWidth, y);
    }
  }
  for (size_t n = 0; n < kStates; ++n) {
    for (size_t h = 0; h < kHalves; ++h) _mm256_storeu_ps(state + n * kLanes + h * kWidth, s[n][h]);
  }
}

// One token: nothing to keep in registers. One channel block at a time, as memory serves one stream
// of reads and writes better than two.
void SsdStep(float dt, float decay, const float* b, const float* c, const float* d, size_t d_state,
             float* state, float* x) {
  __m256 u[kHalves], y[kHalves];
  for (size_t h = 0; h < kHalves; ++h) {
    u[h] = _mm256_mul_ps(_mm256_set1_ps(dt), Load(x + h * kWidth));
    y[h] = _mm256_setzero_ps();
  }
  for (size_t n = 0; n < d_state; ++n) {
    const __m256 bn = _mm256_set1_ps(b[n]);
    const __m256 cn = _mm256_set1_ps(c[n]);
    for (size_t h = 0; h < kHalves; ++h) {
      float* s = state + n * kLanes + h * kWidth;
      const __m256 next = _mm256_fmadd_ps(_mm256_set1_ps(decay), Load(s), _mm256_mul_ps(u[h], bn));
      _mm256_storeu_ps(s, next);
      y[h] = _mm256_fmadd_ps(next, cn, y[h]);
    }
  }
  for (size_t h = 0; h < kHalves; ++h) {
    float* out = x + h * kWidth;
    _mm256_storeu_ps(out, _mm256_fmadd_ps(Load(d + h * kWidth), Load(out), y[h]));
  }
}

// Several tokens of one channel block. dt, x: first row of the chunk.
void SsdBlock(SsdChunk* chunk, const float* dt, size_t dt_stride, const float* d, size_t d_state,
              size_t stride, float* state, float* x) {
  for (size_t t = 0; t < chunk->tokens; ++t) {
    const __m256 step = _mm256_set1_ps(dt[t * dt_stride]);
    for (size_t l = 0; l < kLanes; l += kWidth) {
      _mm256_store_ps(chunk->u[t] + l, _mm256_mul_ps(step, Load(x + t * stride + l)));
      _mm256_store_ps(chunk->y[t] + l, _mm256_setzero_ps());
    }
  }
  size_t n = 0;
  for (; d_state - n >= kSsdStates; n += kSsdStates) {
    SsdTile<kSsdStates>(chunk, n, state + n * kLanes);
  }
  for (; n < d_state; ++n) SsdTile<1>(chunk, n, state + n * kLanes);
  for (size_t t = 0; t < chunk->tokens; ++t) {
    for (size_t l = 0; l < kLanes; l += kWidth) {
      float* out = x + t * stride + l;
      _mm256_storeu_ps(out, _mm256_fmadd_ps(Load(d + l), Load(out), Load(chunk->y[t] + l)));
    }
  }
}

void SsdScan(const SsdScanArgs* args) {
  const size_t d_state = args->d_state;
  SsdChunk chunk;
  chunk.bc_stride = args->bc_stride;
  for (size_t head = args->head_begin; head < args->head_end; ++head) {
    const size_t group = head / args->heads_per_group;
    const __m256 a = _mm256_set1_ps(args->a[head]);
    for (size_t first = 0; first < args->tokens; first += chunk.tokens) {
      const size_t left = args->tokens - first;
      chunk.tokens = left < kSsdTokens ? left : kSsdTokens;
      chunk.b = args->b + first * args->bc_stride + group * d_state;
      chunk.c = args->c + first * args->bc_stride + group * d_state;
      const float* dt = args->dt + first * args->dt_stride + head;
      for (size_t t = 0; t < chunk.tokens; ++t) {
        const __m256 step = _mm256_mul_ps(_mm256_set1_ps(dt[t * args->dt_stride]), a);
        chunk.decay[t] = _mm256_cvtss_f32(Exp2(step));
      }
      for (size_t i = 0; i < args->head_blocks; ++i) {
        const size_t channel = (head * args->head_blocks + i) * kLanes;
        float* x = args->x + first * args->stride + channel;
        float* state = args->state + channel * d_state;
        const float* d = args->d + channel;
        if (chunk.tokens > 1) {
          SsdBlock(&chunk, dt, args->dt_stride, d, d_state, args->stride, state, x);
        } else {
          SsdStep(*dt, chunk.decay[0], chunk.b, chunk.c, d, d_state, state, x);
        }
      }
    }
  }
}

}  // namespace

constinit const Kernels kAvx2Kernels = {
    .name = "avx2",
    .required = kCpuAvx2,
    .quantize_row = QuantizeRow,
    .matmul_q8 = MatmulQ8,
    .matmul_q4 = MatmulQ4,
    .matmul_f16 = MatmulFloat<uint16_t>,
    .matmul_f32 = MatmulFloat<float>,
    .rms_norm = RmsNorm,
    .softmax = Softmax,
    .silu_mul = SiluMul,
    .relu2_mul = Relu2Mul,
    .gelu_mul = GeluMul,
    .add = Add,
    .add_scaled = AddScaled,
    .softplus = SoftplusClamped,
    .conv1d_silu = Conv1dSilu,
    .selective_scan = SelectiveScan,
    .ssd_scan = SsdScan,
    .ssd_scan_16 = Ssd16<Avx2Vector>::Scan,
    .mamba3_rotate = Mamba3<Avx2Vector>::Rotate,
    .mamba3_scan = Mamba3<Avx2Vector>::Scan,
    .mimo_gate = Mamba3<Avx2Vector>::Gate,
};

}  // namespace adder
