// Kernels for AVX-512 (F, BW, DQ, VL) with VNNI. kLanes rows or channels are one register.
#include "kernels_simd/mamba3.h"
#include "kernels_simd/ssd16.h"
#include "kernels_x86/activations_avx512.h"
#include "kernels_x86/math_avx512.h"
#include "kernels_x86/prefetch.h"
#include "kernels_x86/scan_avx512.h"
#include "kernels_x86/softmax_avx512.h"
#include "kernels_x86/vector_avx512.h"
#include "runtime/kernels.h"

namespace adder {
namespace {

constexpr size_t kWidth = 16;
static_assert(kLanes == kWidth && kGroup == 2 * kWidth);

inline __m512i LoadInts(const void* p) { return _mm512_loadu_si512(p); }

// Four consecutive activations in every lane of 32 bits.
inline __m512i Broadcast4(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, sizeof(four));
  return _mm512_set1_epi32(four);
}

// Lanes 0..count-1 set; count may be larger than kWidth.
inline __mmask16 FirstLanes(size_t count) {
  return static_cast<__mmask16>(count < kWidth ? (1u << count) - 1 : 0xffffu);
}

// ---- quantize_row

void QuantizeRow(const float* x, size_t n, int8_t* values, float* scales, int32_t* sums) {
  for (size_t done = 0; done < n; done += kGroup, x += kGroup, values += kGroup) {
    const size_t left = n - done;
    const __m512 v0 = _mm512_maskz_loadu_ps(FirstLanes(left), x);
    const __m512 v1 =
        _mm512_maskz_loadu_ps(FirstLanes(left > kWidth ? left - kWidth : 0), x + kWidth);
    // The bits of |x| order like integers, with NaN above infinity.
    const int32_t bits = _mm512_reduce_max_epi32(
        _mm512_max_epi32(_mm512_castps_si512(Absolute(v0)), _mm512_castps_si512(Absolute(v1))));
    float m;
    __builtin_memcpy(&m, &bits, sizeof(m));
    const bool finite = bits < 0x7f800000;
    if (!finite || m < kQuantizeMin) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(values), _mm256_setzero_si256());
      *sums++ = 0;
      *scales++ = finite ? 0.0f : __builtin_nanf("");
      continue;
    }
    const __m512 inverse = _mm512_set1_ps(127.0f / m);
    const __m512i q0 = _mm512_cvtps_epi32(_mm512_mul_ps(v0, inverse));
    const __m512i q1 = _mm512_cvtps_epi32(_mm512_mul_ps(v1, inverse));
    *sums++ = _mm512_reduce_add_epi32(_mm512_add_epi32(q0, q1));
    *scales++ = m * (1.0f / 127.0f);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(values), _mm512_cvtepi32_epi8(q0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(values + kWidth), _mm512_cvtepi32_epi8(q1));
  }
}

// ---- matmul_q8, matmul_q4
//
// A tile is kBlocks row blocks times kTokens tokens, at most 2 x 6: 12 integer and 12 float sums of
// 32 registers. Two row blocks share each broadcast of activations, which keeps the loads below
// two per two products; all tokens share the loaded, unpacked weights.
//
// The row blocks of a tile lie `apart` row blocks from each other, in as many equal parts of the
// matrix, so that a matrix is read in kBlocks long streams: memory gives one core more through
// several streams than through one, and streams that end with each tile cost as much as they gain.
// A single token takes as many streams as are fastest (on Zen 5, DDR5: 94% of the read bandwidth
// for q8, 90% for q4, which has a stream of scales beside each of weights).
//
// vpdpbusd multiplies unsigned by signed bytes. The unsigned ones are the weights plus an offset
// (128: the flipped sign bit; 8: nibbles as they are), so the sums start at minus the offset times
// the sum of the activations.

constexpr size_t kTile = 6;  // tokens
constexpr size_t kStreamsQ8 = 4, kStreamsQ4 = 3, kStreamsFloat = 4;
// How far ahead streams are fetched, bytes.
constexpr size_t kAheadQ8 = 1536, kAheadQ4 = 1024, kAheadScales = 192, kAheadFloat = 1536;

// The rows of x from token t on.
inline QuantizedRows From(const QuantizedRows* x, size_t t, size_t groups) {
  return {x->values + t * groups * kGroup, x->scales + t * groups, x->sums + t * groups};
}

// Sets the dot products of each token to -2^kShift times the sum of its group of activations: what
// the offset of the weights will have added.
template <unsigned kShift, size_t kBlocks, size_t kTokens>
inline void StartDots(const int32_t* sums, size_t groups, __m512i (&dot)[kTokens][kBlocks]) {
  for (size_t t = 0; t < kTokens; ++t) {
    const __m512i offset = _mm512_set1_epi32(-(sums[t * groups] << kShift));
    for (__m512i& sum : dot[t]) sum = offset;
  }
}

template <size_t kBlocks, size_t kTokens>
void TileQ8(const int8_t* w, const float* row_scales, size_t apart, size_t groups,
            const QuantizedRows& x, float* y, size_t y_stride) {
  const size_t stream = apart * groups * kGroup * kLanes;
  const __m512i sign_bits = _mm512_set1_epi8(-128);
  __m512 acc[kTokens][kBlocks];
  for (auto& token : acc) {
    for (__m512& sum : token) sum = _mm512_setzero_ps();
  }
  for (size_t g = 0; g < groups; ++g) {
    const int8_t* a = x.values + g * kGroup;
    __m512i dot[kTokens][kBlocks];
    StartDots<7>(x.sums + g, groups, dot);
    for (size_t k = 0; k < kGroup; k += 4, w += 4 * kLanes) {
      __m512i u[kBlocks];
      for (size_t b = 0; b < kBlocks; ++b) {
        if constexpr (kTokens < kTile) Prefetch(w + b * stream, kAheadQ8);
        u[b] = _mm512_xor_si512(LoadInts(w + b * stream), sign_bits);
      }
      for (size_t t = 0; t < kTokens; ++t) {
        const __m512i a4 = Broadcast4(a + t * groups * kGroup + k);
        for (size_t b = 0; b < kBlocks; ++b) dot[t][b] = _mm512_dpbusd_epi32(dot[t][b], u[b], a4);
      }
    }
    for (size_t t = 0; t < kTokens; ++t) {
      const __m512 scale = _mm512_set1_ps(x.scales[t * groups + g]);
      for (size_t b = 0; b < kBlocks; ++b) {
        acc[t][b] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[t][b]), scale, acc[t][b]);
      }
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t b = 0; b < kBlocks; ++b) {
      _mm512_storeu_ps(y + t * y_stride + b * apart * kLanes,
                       _mm512_mul_ps(Load(row_scales + b * apart * kLanes), acc[t][b]));
    }
  }
}

template <size_t kBlocks, size_t kTokens>
void TileQ4(const uint8_t* w, const uint16_t* scales, size_t apart, size_t groups,
            const QuantizedRows& x, float* y, size_t y_stride) {
  constexpr size_t kHalf = kGroup / 2;  // columns in the low nibbles, then as many in the high ones
  const size_t stream = apart * groups * kHalf * kLanes;
  const size_t scale_stream = apart * groups * kLanes;
  const __m512i low_bits = _mm512_set1_epi8(15);
  __m512 acc[kTokens][kBlocks];
  for (auto& token : acc) {
    for (__m512& sum : token) sum = _mm512_setzero_ps();
  }
  for (size_t g = 0; g < groups; ++g, scales += kLanes) {
    const int8_t* a = x.values + g * kGroup;
    __m512i dot[kTokens][kBlocks];
    StartDots<3>(x.sums + g, groups, dot);
    for (size_t k = 0; k < kHalf; k += 4, w += 4 * kLanes) {
      __m512i low[kBlocks], high[kBlocks];
      for (size_t b = 0; b < kBlocks; ++b) {
        if constexpr (kTokens < kTile) Prefetch(w + b * stream, kAheadQ4);
        const __m512i packed = LoadInts(w + b * stream);
        low[b] = _mm512_and_si512(packed, low_bits);
        high[b] = _mm512_and_si512(_mm512_srli_epi16(packed, 4), low_bits);
      }
      for (size_t t = 0; t < kTokens; ++t) {
        const int8_t* a4 = a + t * groups * kGroup + k;
        const __m512i a_low = Broadcast4(a4);
        const __m512i a_high = Broadcast4(a4 + kHalf);
        for (size_t b = 0; b < kBlocks; ++b) {
          dot[t][b] = _mm512_dpbusd_epi32(dot[t][b], low[b], a_low);
          dot[t][b] = _mm512_dpbusd_epi32(dot[t][b], high[b], a_high);
        }
      }
    }
    __m512 scale[kBlocks];
    for (size_t b = 0; b < kBlocks; ++b) {
      // Two groups of scales are a line of the cache.
      if (kTokens < kTile && g % 2 == 0) Prefetch(scales + b * scale_stream, kAheadScales);
      scale[b] = Load(scales + b * scale_stream);
    }
    for (size_t t = 0; t < kTokens; ++t) {
      const __m512 a_scale = _mm512_set1_ps(x.scales[t * groups + g]);
      for (size_t b = 0; b < kBlocks; ++b) {
        const __m512 exact = _mm512_cvtepi32_ps(dot[t][b]);
        acc[t][b] = _mm512_fmadd_ps(exact, _mm512_mul_ps(scale[b], a_scale), acc[t][b]);
      }
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t b = 0; b < kBlocks; ++b) {
      _mm512_storeu_ps(y + t * y_stride + b * apart * kLanes, acc[t][b]);
    }
  }
}

// Rows<kBlocks> does all tokens of the row blocks that make whole tiles, and returns their number.
template <size_t kBlocks>
size_t RowsQ8(const int8_t* w, const float* row_scales, size_t row_blocks, size_t groups,
              const QuantizedRows* x, size_t tokens, float* y, size_t y_stride) {
  const size_t apart = row_blocks / kBlocks;
  for (size_t b = 0; b < apart; ++b, y += kLanes) {
    const int8_t* block = w + b * groups * kGroup * kLanes;
    const float* s = row_scales + b * kLanes;
    if constexpr (kBlocks > 2) {
      TileQ8<kBlocks, 1>(block, s, apart, groups, *x, y, y_stride);
    } else {
      constexpr decltype(&TileQ8<1, 1>) kTiles[kTile] = {TileQ8<kBlocks, 1>, TileQ8<kBlocks, 2>,
                                                         TileQ8<kBlocks, 3>, TileQ8<kBlocks, 4>,
                                                         TileQ8<kBlocks, 5>, TileQ8<kBlocks, 6>};
      for (size_t t = 0; t < tokens; t += kTile) {
        const size_t count = tokens - t < kTile ? tokens - t : kTile;
        kTiles[count - 1](block, s, apart, groups, From(x, t, groups), y + t * y_stride, y_stride);
      }
    }
  }
  return apart * kBlocks;
}

template <size_t kBlocks>
size_t RowsQ4(const uint8_t* w, const uint16_t* scales, size_t row_blocks, size_t groups,
              const QuantizedRows* x, size_t tokens, float* y, size_t y_stride) {
  const size_t apart = row_blocks / kBlocks;
  for (size_t b = 0; b < apart; ++b, y += kLanes) {
    const uint8_t* block = w + b * groups * (kGroup / 2) * kLanes;
    const uint16_t* s = scales + b * groups * kLanes;
    if constexpr (kBlocks > 2) {
      TileQ4<kBlocks, 1>(block, s, apart, groups, *x, y, y_stride);
    } else {
      constexpr decltype(&TileQ4<1, 1>) kTiles[kTile] = {TileQ4<kBlocks, 1>, TileQ4<kBlocks, 2>,
                                                         TileQ4<kBlocks, 3>, TileQ4<kBlocks, 4>,
                                                         TileQ4<kBlocks, 5>, TileQ4<kBlocks, 6>};
      for (size_t t = 0; t < tokens; t += kTile) {
        const size_t count = tokens - t < kTile ? tokens - t : kTile;
        kTiles[count - 1](block, s, apart, groups, From(x, t, groups), y + t * y_stride, y_stride);
      }
    }
  }
  return apart * kBlocks;
}

void MatmulQ8(const int8_t* weights, const float* row_scales, size_t row_blocks, size_t groups,
              const QuantizedRows* x, size_t tokens, float* y, size_t y_stride) {
  const size_t done =
      (tokens == 1 ? RowsQ8<kStreamsQ8> : RowsQ8<2>)(weights, row_scales, row_blocks, groups, x,
                                                     tokens, y, y_stride);
  RowsQ8<1>(weights + done * groups * kGroup * kLanes, row_scales + done * kLanes,
            row_blocks - done, groups, x, tokens, y + done * kLanes, y_stride);
}

void MatmulQ4(const uint8_t* weights, const uint16_t* scales, size_t row_blocks, size_t groups,
              const QuantizedRows* x, size_t tokens, float* y, size_t y_stride) {
  const size_t done =
      (tokens == 1 ? RowsQ4<kStreamsQ4> : RowsQ4<2>)(weights, scales, row_blocks, groups, x, tokens,
                                                     y, y_stride);
  RowsQ4<1>(weights + done * groups * (kGroup / 2) * kLanes, scales + done * groups * kLanes,
            row_blocks - done, groups, x, tokens, y + done * kLanes, y_stride);
}

// ---- matmul_f16, matmul_f32
//
// Each output is one chain of fmaf; several row blocks or tokens at a time hide its latency. The
// row blocks of a tile lie apart as above.

template <size_t kBlocks, size_t kTokens, typename Weight>
void TileFloat(const Weight* w, size_t apart, size_t cols, const float* x, size_t x_stride,
               float* y, size_t y_stride) {
  const size_t stream = apart * cols * kLanes;
  __m512 acc[kTokens][kBlocks];
  for (auto& token : acc) {
    for (__m512& sum : token) sum = _mm512_setzero_ps();
  }
  for (size_t k = 0; k < cols; ++k, w += kLanes) {
    __m512 weight[kBlocks];
    for (size_t b = 0; b < kBlocks; ++b) {
      if constexpr (kTokens == 1) Prefetch(w + b * stream, kAheadFloat);
      weight[b] = Load(w + b * stream);
    }
    for (size_t t = 0; t < kTokens; ++t) {
      const __m512 value = _mm512_set1_ps(x[t * x_stride + k]);
      for (size_t b = 0; b < kBlocks; ++b) {
        acc[t][b] = _mm512_fmadd_ps(weight[b], value, acc[t][b]);
      }
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t b = 0; b < kBlocks; ++b) {
      _mm512_storeu_ps(y + t * y_stride + b * apart * kLanes, acc[t][b]);
    }
  }
}

template <size_t kBlocks, typename Weight>
size_t RowsFloat(const Weight* w, size_t row_blocks, size_t cols, const float* x, size_t x_stride,
                 size_t tokens, float* y, size_t y_stride) {
  const size_t apart = row_blocks / kBlocks;
  for (size_t b = 0; b < apart; ++b, w += cols * kLanes, y += kLanes) {
    if constexpr (kBlocks > 2) {
      TileFloat<kBlocks, 1>(w, apart, cols, x, x_stride, y, y_stride);
    } else {
      constexpr decltype(&TileFloat<1, 1, Weight>) kTiles[kTile] = {
          TileFloat<kBlocks, 1, Weight>, TileFloat<kBlocks, 2, Weight>,
          TileFloat<kBlocks, 3, Weight>, TileFloat<kBlocks, 4, Weight>,
          TileFloat<kBlocks, 5, Weight>, TileFloat<kBlocks, 6, Weight>};
      for (size_t t = 0; t < tokens; t += kTile) {
        const size_t count = tokens - t < kTile ? tokens - t : kTile;
        kTiles[count - 1](w, apart, cols, x + t * x_stride, x_stride, y + t * y_stride, y_stride);
      }
    }
  }
  return apart * kBlocks;
}

template <typename Weight>
void MatmulFloat(const Weight* weights, size_t row_blocks, size_t cols, const float* x,
                 size_t x_stride, size_t tokens, float* y, size_t y_stride) {
  const size_t done = (tokens == 1 ? RowsFloat<kStreamsFloat, Weight>
                                   : RowsFloat<2, Weight>)(weights, row_blocks, cols, x, x_stride,
                                                           tokens, y, y_stride);
  RowsFloat<1>(weights + done * cols * kLanes, row_blocks - done, cols, x, x_stride, tokens,
               y + done * kLanes, y_stride);
}

// ---- norms and elementwise

void RmsNorm(const float* x, const float* weight, size_t n, float count, float eps, float* y) {
  const size_t whole = n - n % kWidth;
  const __mmask16 tail = FirstLanes(n - whole);
  __m512 s = _mm512_setzero_ps();
  for (size_t i = 0; i < whole; i += kWidth) {
    const __m512 v = Load(x + i);
    s = _mm512_fmadd_ps(v, v, s);
  }
  if (tail != 0) {
    const __m512 v = _mm512_maskz_loadu_ps(tail, x + whole);
    s = _mm512_fmadd_ps(v, v, s);
  }
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
  __m128 total = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  total = _mm_add_ps(total, _mm_movehl_ps(total, total));
  total = _mm_add_ss(total, _mm_movehdup_ps(total));
  const float mean = _mm_cvtss_f32(total) / count + eps;
  const __m512 inverse = _mm512_set1_ps(1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean))));

  for (size_t i = 0; i < whole; i += kWidth) {
    __m512 v = _mm512_mul_ps(Load(x + i), inverse);
    if (weight != nullptr) v = _mm512_mul_ps(v, Load(weight + i));
    _mm512_storeu_ps(y + i, v);
  }
  if (tail != 0) {
    __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(tail, x + whole), inverse);
    if (weight != nullptr) v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(tail, weight + whole));
    _mm512_mask_storeu_ps(y + whole, tail, v);
  }
}

void Add(const float* x, size_t n, float* y) {
  for (size_t i = 0; i < n; i += kWidth) {
    _mm512_storeu_ps(y + i, _mm512_add_ps(Load(y + i), Load(x + i)));
  }
}

void SoftplusClamped(const float* bias, size_t n, float lo, float hi, float* x) {
  for (size_t i = 0; i < n; i += kWidth) {
    const __m512 value = Softplus(_mm512_add_ps(Load(x + i), Load(bias + i)));
    const __m512 raised = _mm512_max_ps(_mm512_set1_ps(lo), value);
    _mm512_storeu_ps(x + i, _mm512_min_ps(_mm512_set1_ps(hi), raised));
  }
}

// ---- conv1d_silu: one channel block, tokens inner, the inputs in flight in registers.

template <size_t kTaps>
void ConvBlock(const float* weights, const float* bias, size_t tokens, size_t stride, float* state,
               float* x) {
  __m512 w[kTaps];
  __m512 input[kTaps];  // oldest first; the last is the current one
  for (size_t j = 0; j < kTaps; ++j) w[j] = Load(weights + j * kLanes);
  for (size_t j = 0; j + 1 < kTaps; ++j) input[j] = Load(state + j * kLanes);
  const __m512 b = Load(bias);
  for (size_t t = 0; t < tokens; ++t, x += stride) {
    input[kTaps - 1] = Load(x);
    __m512 acc = b;
    for (size_t j = 0; j < kTaps; ++j) acc = _mm512_fmadd_ps(w[j], input[j], acc);
    _mm512_storeu_ps(x, Silu(acc));
    for (size_t j = 0; j + 1 < kTaps; ++j) input[j] = input[j + 1];
  }
  for (size_t j = 0; j + 1 < kTaps; ++j) _mm512_storeu_ps(state + j * kLanes, input[j]);
}

void Conv1dSilu(const float* weights, const float* bias, size_t channel_blocks, size_t d_conv,
                size_t tokens, size_t stride, float* state, float* x) {
  constexpr decltype(&ConvBlock<1>) kByTaps[kMaxConv] = {
      ConvBlock<1>, ConvBlock<2>, ConvBlock<3>, ConvBlock<4>,
      ConvBlock<5>, ConvBlock<6>, ConvBlock<7>, ConvBlock<8>,
  };
  const auto convolve = kByTaps[d_conv - 1];
  for (size_t block = 0; block < channel_blocks; ++block) {
    convolve(weights + block * d_conv * kLanes, bias + block * kLanes, tokens, stride,
             state + block * (d_conv - 1) * kLanes, x + block * kLanes);
  }
}

}  // namespace

constinit const Kernels kAvx512Kernels = {
    .name = "avx512",
    .required = kCpuAvx512 | kCpuAvx512Vnni | kCpuAvx2,
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
    .ssd_scan_16 = Ssd16<Avx512Vector>::Scan,
    .mamba3_rotate = Mamba3<Avx512Vector>::Rotate,
    .mamba3_scan = Mamba3<Avx512Vector>::Scan,
    .mimo_gate = Mamba3<Avx512Vector>::Gate,
};

}  // namespace adder
