// Kernels for AVX-512 (F, BW, DQ, VL) with VNNI. kLanes rows or channels are one register.
#include "kernels_x86/math_avx512.h"
#include "runtime/kernels.h"

namespace adder {
namespace {

constexpr size_t kWidth = 16;
static_assert(kLanes == kWidth && kGroup == 2 * kWidth);

// How far ahead of its use a stream is fetched, bytes. Hardware prefetchers stop at pages; this
// does not. Never faults, so it may run past the end.
constexpr size_t kPrefetch = 4096;

inline void Prefetch(const void* stream) {
  _mm_prefetch(static_cast<const char*>(stream) + kPrefetch, _MM_HINT_T0);
}

inline __m512i LoadInts(const void* p) { return _mm512_loadu_si512(p); }

inline __m512 Load(const float* p) { return _mm512_loadu_ps(p); }
inline __m512 Load(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

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
// two per two products; all tokens share the loaded, unpacked weights. A single token takes one row
// block at a time: one stream of weights, read once.
//
// vpdpbusd multiplies unsigned by signed bytes. The unsigned ones are the weights plus an offset
// (128: the flipped sign bit; 8: nibbles as they are), and the offset times the sum of the
// activations is subtracted.

constexpr size_t kTile = 6;

// The rows of x from token t on.
inline QuantizedRows From(const QuantizedRows* x, size_t t, size_t groups) {
  return {x->values + t * groups * kGroup, x->scales + t * groups, x->sums + t * groups};
}

// 2^kShift times the integer at p, in every lane.
template <unsigned kShift>
inline __m512i Offset(const int32_t* p) {
  return _mm512_slli_epi32(_mm512_set1_epi32(*p), kShift);
}

template <size_t kBlocks, size_t kTokens>
void TileQ8(const int8_t* w, const float* row_scales, size_t groups, const QuantizedRows& x,
            float* y, size_t y_stride) {
  const size_t block_size = groups * kGroup * kLanes;
  const __m512i sign_bits = _mm512_set1_epi8(-128);
  __m512 acc[kTokens][kBlocks];
  for (auto& token : acc) {
    for (__m512& sum : token) sum = _mm512_setzero_ps();
  }
  for (size_t g = 0; g < groups; ++g) {
    const int8_t* a = x.values + g * kGroup;
    __m512i dot[kTokens][kBlocks];
    for (auto& token : dot) {
      for (__m512i& sum : token) sum = _mm512_setzero_si512();
    }
    for (size_t k = 0; k < kGroup; k += 4, w += 4 * kLanes) {
      __m512i u[kBlocks];
      for (size_t b = 0; b < kBlocks; ++b) {
        if constexpr (kTokens < kTile) Prefetch(w + b * block_size);
        u[b] = _mm512_xor_si512(LoadInts(w + b * block_size), sign_bits);
      }
      for (size_t t = 0; t < kTokens; ++t) {
        const __m512i a4 = Broadcast4(a + t * groups * kGroup + k);
        for (size_t b = 0; b < kBlocks; ++b) dot[t][b] = _mm512_dpbusd_epi32(dot[t][b], u[b], a4);
      }
    }
    for (size_t t = 0; t < kTokens; ++t) {
      const __m512 scale = _mm512_set1_ps(x.scales[t * groups + g]);
      const __m512i offset = Offset<7>(x.sums + t * groups + g);
      for (size_t b = 0; b < kBlocks; ++b) {
        const __m512 exact = _mm512_cvtepi32_ps(_mm512_sub_epi32(dot[t][b], offset));
        acc[t][b] = _mm512_fmadd_ps(exact, scale, acc[t][b]);
      }
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t b = 0; b < kBlocks; ++b) {
      _mm512_storeu_ps(y + t * y_stride + b * kLanes,
                       _mm512_mul_ps(Load(row_scales + b * kLanes), acc[t][b]));
    }
  }
}

template <size_t kBlocks, size_t kTokens>
void TileQ4(const uint8_t* w, const uint16_t* scales, size_t groups, const QuantizedRows& x,
            float* y, size_t y_stride) {
  constexpr size_t kHalf = kGroup / 2;  // columns in the low nibbles, then as many in the high ones
  const size_t block_size = groups * kHalf * kLanes;
  const __m512i low_bits = _mm512_set1_epi8(15);
  __m512 acc[kTokens][kBlocks];
  for (auto& token : acc) {
    for (__m512& sum : token) sum = _mm512_setzero_ps();
  }
  for (size_t g = 0; g < groups; ++g, scales += kLanes) {
    const int8_t* a = x.values + g * kGroup;
    __m512i dot[kTokens][kBlocks];
    for (auto& token : dot) {
      for (__m512i& sum : token) sum = _mm512_setzero_si512();
    }
    for (size_t k = 0; k < kHalf; k += 4, w += 4 * kLanes) {
      __m512i low[kBlocks], high[kBlocks];
      for (size_t b = 0; b < kBlocks; ++b) {
        if constexpr (kTokens < kTile) Prefetch(w + b * block_size);
        const __m512i packed = LoadInts(w + b * block_size);
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
      if constexpr (kTokens < kTile) Prefetch(scales + b * groups * kLanes);
      scale[b] = Load(scales + b * groups * kLanes);
    }
    for (size_t t = 0; t < kTokens; ++t) {
      const __m512 a_scale = _mm512_set1_ps(x.scales[t * groups + g]);
      const __m512i offset = Offset<3>(x.sums + t * groups + g);
      for (size_t b = 0; b < kBlocks; ++b) {
        const __m512 exact = _mm512_cvtepi32_ps(_mm512_sub_epi32(dot[t][b], offset));
        acc[t][b] = _mm512_fmadd_ps(exact, _mm512_mul_ps(scale[b], a_scale), acc[t][b]);
      }
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t b = 0; b < kBlocks; ++b) {
      _mm512_storeu_ps(y + t * y_stride + b * kLanes, acc[t][b]);
    }
  }
}

// All tokens of kBlocks row blocks.
template <size_t kBlocks>
void RowsQ8(const int8_t* w, const float* row_scales, size_t groups, const QuantizedRows* x,
            size_t tokens, float* y, size_t y_stride) {
  constexpr decltype(&TileQ8<1, 1>) kTiles[kTile] = {TileQ8<kBlocks, 1>, TileQ8<kBlocks, 2>,
                                                     TileQ8<kBlocks, 3>, TileQ8<kBlocks, 4>,
                                                     TileQ8<kBlocks, 5>, TileQ8<kBlocks, 6>};
  for (size_t t = 0; t < tokens; t += kTile) {
    const size_t count = tokens - t < kTile ? tokens - t : kTile;
    kTiles[count - 1](w, row_scales, groups, From(x, t, groups), y + t * y_stride, y_stride);
  }
}

template <size_t kBlocks>
void RowsQ4(const uint8_t* w, const uint16_t* scales, size_t groups, const QuantizedRows* x,
            size_t tokens, float* y, size_t y_stride) {
  constexpr decltype(&TileQ4<1, 1>) kTiles[kTile] = {TileQ4<kBlocks, 1>, TileQ4<kBlocks, 2>,
                                                     TileQ4<kBlocks, 3>, TileQ4<kBlocks, 4>,
                                                     TileQ4<kBlocks, 5>, TileQ4<kBlocks, 6>};
  for (size_t t = 0; t < tokens; t += kTile) {
    const size_t count = tokens - t < kTile ? tokens - t : kTile;
    kTiles[count - 1](w, scales, groups, From(x, t, groups), y + t * y_stride, y_stride);
  }
}

void MatmulQ8(const int8_t* weights, const float* row_scales, size_t row_blocks, size_t groups,
              const QuantizedRows* x, size_t tokens, float* y, size_t y_stride) {
  for (size_t b = 0; b < row_blocks;) {
    const size_t blocks = tokens > 1 && row_blocks - b > 1 ? 2 : 1;
    (blocks == 2 ? RowsQ8<2> : RowsQ8<1>)(weights + b * groups * kGroup * kLanes,
                                          row_scales + b * kLanes, groups, x, tokens,
                                          y + b * kLanes, y_stride);
    b += blocks;
  }
}

void MatmulQ4(const uint8_t* weights, const uint16_t* scales, size_t row_blocks, size_t groups,
              const QuantizedRows* x, size_t tokens, float* y, size_t y_stride) {
  for (size_t b = 0; b < row_blocks;) {
    const size_t blocks = tokens > 1 && row_blocks - b > 1 ? 2 : 1;
    (blocks == 2 ? RowsQ4<2> : RowsQ4<1>)(weights + b * groups * (kGroup / 2) * kLanes,
                                          scales + b * groups * kLanes, groups, x, tokens,
                                          y + b * kLanes, y_stride);
    b += blocks;
  }
}

// ---- matmul_f16, matmul_f32
//
// Each output is one chain of fmaf; several row blocks or tokens at a time hide its latency.

template <size_t kBlocks, size_t kTokens, typename Weight>
void TileFloat(const Weight* w, size_t cols, const float* x, size_t x_stride, float* y,
               size_t y_stride) {
  __m512 acc[kTokens][kBlocks];
  for (auto& token : acc) {
    for (__m512& sum : token) sum = _mm512_setzero_ps();
  }
  for (size_t k = 0; k < cols; ++k, w += kLanes) {
    __m512 weight[kBlocks];
    for (size_t b = 0; b < kBlocks; ++b) {
      if constexpr (kTokens == 1) Prefetch(w + b * cols * kLanes);
      weight[b] = Load(w + b * cols * kLanes);
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
      _mm512_storeu_ps(y + t * y_stride + b * kLanes, acc[t][b]);
    }
  }
}

template <size_t kBlocks, typename Weight>
void RowsFloat(const Weight* w, size_t cols, const float* x, size_t x_stride, size_t tokens,
               float* y, size_t y_stride) {
  constexpr decltype(&TileFloat<1, 1, Weight>) kTiles[kTile] = {
      TileFloat<kBlocks, 1, Weight>, TileFloat<kBlocks, 2, Weight>, TileFloat<kBlocks, 3, Weight>,
      TileFloat<kBlocks, 4, Weight>, TileFloat<kBlocks, 5, Weight>, TileFloat<kBlocks, 6, Weight>};
  for (size_t t = 0; t < tokens; t += kTile) {
    const size_t count = tokens - t < kTile ? tokens - t : kTile;
    kTiles[count - 1](w, cols, x + t * x_stride, x_stride, y + t * y_stride, y_stride);
  }
}

template <typename Weight>
void MatmulFloat(const Weight* weights, size_t row_blocks, size_t cols, const float* x,
                 size_t x_stride, size_t tokens, float* y, size_t y_stride) {
  for (size_t b = 0; b < row_blocks;) {
    const Weight* w = weights + b * cols * kLanes;
    const size_t left = row_blocks - b;
    if (tokens == 1 && left >= 4) {
      TileFloat<4, 1>(w, cols, x, x_stride, y + b * kLanes, y_stride);
      b += 4;
    } else {
      const size_t blocks = left > 1 ? 2 : 1;
      (blocks == 2 ? RowsFloat<2, Weight> : RowsFloat<1, Weight>)(w, cols, x, x_stride, tokens,
                                                                  y + b * kLanes, y_stride);
      b += blocks;
    }
  }
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

void SiluMul(const float* z, size_t n, float* y) {
  for (size_t i = 0; i < n; i += kWidth) {
    _mm512_storeu_ps(y + i, _mm512_mul_ps(Load(y + i), Silu(Load(z + i))));
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

// ---- selective_scan
//
// One channel block, tokens inner. With 16 states, the width of every published Mamba-1, the state
// stays in 16 registers; other widths keep it in the first cache.

constexpr size_t kScanStates = 16;

// What one token needs besides states.
struct ScanStep {
  __m512 x, dt, u, y;
  const float* b;
  const float* c;
};

inline ScanStep BeginStep(const SelectiveScanArgs* args, size_t t, size_t channel) {
  ScanStep step;
  const size_t row = t * args->stride + channel;
  step.x = Load(args->x + row);
  step.dt = Load(args->dt + row);
  step.u = _mm512_mul_ps(step.dt, step.x);
  step.y = _mm512_setzero_ps();
  step.b = args->b + t * args->bc_stride;
  step.c = args->c + t * args->bc_stride;
  return step;
}

inline void AdvanceState(ScanStep* step, size_t n, const float* a, __m512* s) {
  const __m512 decay = Exp2(_mm512_mul_ps(step->dt, Load(a + n * kLanes)));
  *s = _mm512_fmadd_ps(decay, *s, _mm512_mul_ps(step->u, _mm512_set1_ps(step->b[n])));
  step->y = _mm512_fmadd_ps(*s, _mm512_set1_ps(step->c[n]), step->y);
}

inline void EndStep(const SelectiveScanArgs* args, size_t t, size_t channel, const ScanStep& step) {
  const size_t row = t * args->stride + channel;
  const __m512 y = _mm512_fmadd_ps(Load(args->d + channel), step.x, step.y);
  _mm512_storeu_ps(args->x + row, _mm512_mul_ps(y, Silu(Load(args->z + row))));
}

void SelectiveScan(const SelectiveScanArgs* args) {
  const size_t d_state = args->d_state;
  for (size_t block = 0; block < args->channel_blocks; ++block) {
    const size_t channel = block * kLanes;
    const float* a = args->a + channel * d_state;
    float* state = args->state + channel * d_state;
    if (d_state == kScanStates) {
      __m512 s[kScanStates];
      for (size_t n = 0; n < kScanStates; ++n) s[n] = Load(state + n * kLanes);
      for (size_t t = 0; t < args->tokens; ++t) {
        ScanStep step = BeginStep(args, t, channel);
        for (size_t n = 0; n < kScanStates; ++n) AdvanceState(&step, n, a, &s[n]);
        EndStep(args, t, channel, step);
      }
      for (size_t n = 0; n < kScanStates; ++n) _mm512_storeu_ps(state + n * kLanes, s[n]);
      continue;
    }
    for (size_t t = 0; t < args->tokens; ++t) {
      ScanStep step = BeginStep(args, t, channel);
      for (size_t n = 0; n < d_state; ++n) {
        __m512 s = Load(state + n * kLanes);
        AdvanceState(&step, n, a, &s);
        _mm512_storeu_ps(state + n * kLanes, s);
      }
      EndStep(args, t, channel, step);
    }
  }
}

// ---- ssd_scan
//
// A head takes up to kSsdTokens tokens at a time. For each pair of its channel blocks the loop over
// states is outside and the one over tokens inside, so that a tile of 2 x kSsdStates states lives
// in registers while the sums y of all the tokens pass by; each y still adds its states in order.

constexpr size_t kSsdTokens = 32;
constexpr size_t kSsdStates = 8;
constexpr size_t kSsdBlocks = 2;

struct SsdChunk {
  size_t tokens;
  const float* b;  // of the head's group, row 0 of the chunk
  const float* c;
  size_t bc_stride;
  float decay[kSsdTokens];
  alignas(64) float u[kSsdTokens][kSsdBlocks][kLanes];
  alignas(64) float y[kSsdTokens][kSsdBlocks][kLanes];
};

// kStates states from `first` on of kBlocks channel blocks, whose states are d_state rows apart.
template <size_t kBlocks, size_t kStates>
void SsdTile(SsdChunk* chunk, size_t first, size_t d_state, float* state) {
  state += first * kLanes;
  __m512 s[kStates][kBlocks];
  for (size_t n = 0; n < kStates; ++n) {
    for (size_t i = 0; i < kBlocks; ++i) s[n][i] = Load(state + (i * d_state + n) * kLanes);
  }
  const float* b = chunk->b + first;
  const float* c = chunk->c + first;
  for (size_t t = 0; t < chunk->tokens; ++t, b += chunk->bc_stride, c += chunk->bc_stride) {
    const __m512 decay = _mm512_set1_ps(chunk->decay[t]);
    __m512 u[kBlocks], y[kBlocks];
    for (size_t i = 0; i < kBlocks; ++i) u[i] = Load(chunk->u[t][i]);
    for (size_t i = 0; i < kBlocks; ++i) y[i] = Load(chunk->y[t][i]);
    for (size_t n = 0; n < kStates; ++n) {
      const __m512 bn = _mm512_set1_ps(b[n]);
      const __m512 cn = _mm512_set1_ps(c[n]);
      for (size_t i = 0; i < kBlocks; ++i) {
        s[n][i] = _mm512_fmadd_ps(decay, s[n][i], _mm512_mul_ps(u[i], bn));
        y[i] = _mm512_fmadd_ps(s[n][i], cn, y[i]);
      }
    }
    for (size_t i = 0; i < kBlocks; ++i) _mm512_store_ps(chunk->y[t][i], y[i]);
  }
  for (size_t n = 0; n < kStates; ++n) {
    for (size_t i = 0; i < kBlocks; ++i) {
      _mm512_storeu_ps(state + (i * d_state + n) * kLanes, s[n][i]);
    }
  }
}

// Several tokens of kBlocks channel blocks. dt, x: first row of the chunk.
template <size_t kBlocks>
void SsdTokens(SsdChunk* chunk, const float* dt, size_t dt_stride, const float* d, size_t d_state,
               size_t stride, float* state, float* x) {
  for (size_t t = 0; t < chunk->tokens; ++t) {
    const __m512 step = _mm512_set1_ps(dt[t * dt_stride]);
    for (size_t i = 0; i < kBlocks; ++i) {
      _mm512_store_ps(chunk->u[t][i], _mm512_mul_ps(step, Load(x + t * stride + i * kLanes)));
      _mm512_store_ps(chunk->y[t][i], _mm512_setzero_ps());
    }
  }
  size_t n = 0;
  for (; d_state - n >= kSsdStates; n += kSsdStates) {
    SsdTile<kBlocks, kSsdStates>(chunk, n, d_state, state);
  }
  for (; n < d_state; ++n) SsdTile<kBlocks, 1>(chunk, n, d_state, state);
  for (size_t t = 0; t < chunk->tokens; ++t) {
    for (size_t i = 0; i < kBlocks; ++i) {
      float* out = x + t * stride + i * kLanes;
      _mm512_storeu_ps(out, _mm512_fmadd_ps(Load(d + i * kLanes), Load(out), Load(chunk->y[t][i])));
    }
  }
}

// One token: the state streams through once, kBlocks channel blocks at a time to hide the latency
// of y.
template <size_t kBlocks>
void SsdStep(float dt, float decay, const float* b, const float* c, const float* d, size_t d_state,
             float* state, float* x) {
  __m512 u[kBlocks], y[kBlocks];
  for (size_t i = 0; i < kBlocks; ++i) {
    u[i] = _mm512_mul_ps(_mm512_set1_ps(dt), Load(x + i * kLanes));
    y[i] = _mm512_setzero_ps();
  }
  for (size_t n = 0; n < d_state; ++n) {
    const __m512 bn = _mm512_set1_ps(b[n]);
    const __m512 cn = _mm512_set1_ps(c[n]);
    for (size_t i = 0; i < kBlocks; ++i) {
      float* s = state + (i * d_state + n) * kLanes;
      Prefetch(s);
      const __m512 next = _mm512_fmadd_ps(_mm512_set1_ps(decay), Load(s), _mm512_mul_ps(u[i], bn));
      _mm512_storeu_ps(s, next);
      y[i] = _mm512_fmadd_ps(next, cn, y[i]);
    }
  }
  for (size_t i = 0; i < kBlocks; ++i) {
    float* out = x + i * kLanes;
    _mm512_storeu_ps(out, _mm512_fmadd_ps(Load(d + i * kLanes), Load(out), y[i]));
  }
}

void SsdScan(const SsdScanArgs* args) {
  const size_t d_state = args->d_state;
  SsdChunk chunk;
  chunk.bc_stride = args->bc_stride;
  for (size_t head = args->head_begin; head < args->head_end; ++head) {
    const size_t group = head / args->heads_per_group;
    const __m512 a = _mm512_set1_ps(args->a[head]);
    for (size_t first = 0; first < args->tokens; first += chunk.tokens) {
      const size_t left = args->tokens - first;
      chunk.tokens = left < kSsdTokens ? left : kSsdTokens;
      chunk.b = args->b + first * args->bc_stride + group * d_state;
      chunk.c = args->c + first * args->bc_stride + group * d_state;
      const float* dt = args->dt + first * args->dt_stride + head;
      for (size_t t = 0; t < chunk.tokens; ++t) {
        const __m512 step = _mm512_mul_ps(_mm512_set1_ps(dt[t * args->dt_stride]), a);
        chunk.decay[t] = _mm512_cvtss_f32(Exp2(step));
      }
      for (size_t i = 0; i < args->head_blocks;) {
        const size_t blocks = args->head_blocks - i < kSsdBlocks ? 1 : kSsdBlocks;
        const size_t channel = (head * args->head_blocks + i) * kLanes;
        float* x = args->x + first * args->stride + channel;
        float* state = args->state + channel * d_state;
        const float* d = args->d + channel;
        if (chunk.tokens > 1) {
          (blocks == 1 ? SsdTokens<1> : SsdTokens<kSsdBlocks>)(&chunk, dt, args->dt_stride, d,
                                                               d_state, args->stride, state, x);
        } else {
          (blocks == 1 ? SsdStep<1> : SsdStep<kSsdBlocks>)(*dt, chunk.decay[0], chunk.b, chunk.c, d,
                                                           d_state, state, x);
        }
        i += blocks;
      }
    }
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
    .silu_mul = SiluMul,
    .add = Add,
    .softplus = SoftplusClamped,
    .conv1d_silu = Conv1dSilu,
    .selective_scan = SelectiveScan,
    .ssd_scan = SsdScan,
};

}  // namespace adder
