// Kernels for every AArch64 CPU: nothing beyond ARMv8.0, so no dot product instructions.
#include "kernels_arm/activations_neon.h"
#include "kernels_arm/lanes_neon.h"
#include "kernels_arm/math_neon.h"
#include "kernels_arm/softmax_neon.h"
#include "kernels_arm/vector_neon.h"
#include "kernels_simd/mamba3.h"
#include "kernels_simd/ssd16.h"

namespace adder {
namespace {

// Four consecutive activations, four times.
inline int8x16_t Broadcast4(const int8_t* p) {
  return vreinterpretq_s8_s32(vld1q_dup_s32(reinterpret_cast<const int32_t*>(p)));
}

// The first `count` (at most kLanes) floats at p, then zeros.
struct Padded {
  Padded(const float* p, size_t count) { __builtin_memcpy(lanes, p, count * sizeof(float)); }
  float lanes[kLanes] = {};
};

// ---- quantize_row

void QuantizeRow(const float* x, size_t n, int8_t* values, float* scales, int32_t* sums) {
  constexpr size_t kVectors = kGroup / kWidth;
  for (size_t done = 0; done < n; done += kGroup, x += kGroup, values += kGroup) {
    float32x4_t v[kVectors];
    if (n - done >= kGroup) {
      for (size_t i = 0; i < kVectors; ++i) v[i] = Load(x + i * kWidth);
    } else {
      float group[kGroup] = {};
      __builtin_memcpy(group, x, (n - done) * sizeof(float));
      for (size_t i = 0; i < kVectors; ++i) v[i] = Load(group + i * kWidth);
    }
    uint32x4_t largest = vdupq_n_u32(0);
    for (const float32x4_t& f : v) {
      largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(f)));
    }
    const uint32_t bits = vmaxvq_u32(largest);
    float m;
    __builtin_memcpy(&m, &bits, sizeof(m));
    const bool finite = bits < 0x7f800000u;
    if (!finite || m < kQuantizeMin) {
      vst1q_s8(values, vdupq_n_s8(0));
      vst1q_s8(values + kGroup / 2, vdupq_n_s8(0));
      *sums++ = 0;
      *scales++ = finite ? 0.0f : __builtin_nanf("");
      continue;
    }
    const float inverse = 127.0f / m;
    int32x4_t q[kVectors];
    int32x4_t sum = vdupq_n_s32(0);
    for (size_t i = 0; i < kVectors; ++i) {
      q[i] = vcvtnq_s32_f32(vmulq_n_f32(v[i], inverse));  // to nearest even
      sum = vaddq_s32(sum, q[i]);
    }
    for (size_t i = 0; i < kVectors; i += 4) {
      const int16x8_t low = vcombine_s16(vmovn_s32(q[i]), vmovn_s32(q[i + 1]));
      const int16x8_t high = vcombine_s16(vmovn_s32(q[i + 2]), vmovn_s32(q[i + 3]));
      vst1q_s8(values + i * kWidth, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
    }
    *sums++ = vaddvq_s32(sum);
    *scales++ = m * (1.0f / 127.0f);
  }
}

// ---- matmul_q8, matmul_q4
//
// All products are long multiplications of eight bytes, the one unit of work that no other
// instruction of ARMv8.0 beats; the code around them is arranged to leave nothing else to wait for.
// A tile is kTileRows quads of a row block times kTokens tokens, four quads in all: more would
// spill. Loops are unrolled by hand because clang would keep the arrays in memory.

template <size_t kTokens>
constexpr size_t kTileRows = kQuads / kTokens;

template <size_t kTokens>
void TileQ8(const int8_t* w, const float* row_scales, size_t groups, const int8_t* a,
            const float* a_scales, float* y, size_t y_stride) {
  constexpr size_t kRows = kTileRows<kTokens>;
  float32x4_t acc[kTokens][kRows];
  for (auto& token : acc) {
    for (auto& quad : token) quad = vdupq_n_f32(0.0f);
  }
  for (size_t g = 0; g < groups; ++g, a += kGroup) {
    // Register i: rows 2i and 2i+1, the columns 0, 1 and 2, 3 of each four summed apart.
    int32x4_t dot[kTokens][2 * kRows];
    for (auto& token : dot) {
      for (auto& rows : token) rows = vdupq_n_s32(0);
    }
#pragma GCC unroll 4
    for (size_t k = 0; k < kGroup; k += 8, w += 8 * kLanes) {
      if constexpr (kTokens == 1) {
        Prefetch(w);
        Prefetch(w + 4 * kLanes);
      }
      int8x16_t a0[kTokens], a1[kTokens];
#pragma GCC unroll 4
      for (size_t t = 0; t < kTokens; ++t) {
        a0[t] = Broadcast4(a + t * groups * kGroup + k);
        a1[t] = Broadcast4(a + t * groups * kGroup + k + 4);
      }
#pragma GCC unroll 4
      for (size_t q = 0; q < kRows; ++q) {
        const int8x16_t w0 = vld1q_s8(w + q * 16);
        const int8x16_t w1 = vld1q_s8(w + 4 * kLanes + q * 16);
#pragma GCC unroll 4
        for (size_t t = 0; t < kTokens; ++t) {
          // Two products fit 16 bits, even those of the weight -128: 2 * 128 * 127.
          int16x8_t low = vmull_s8(vget_low_s8(w0), vget_low_s8(a0[t]));
          int16x8_t high = vmull_high_s8(w0, a0[t]);
          low = vmlal_s8(low, vget_low_s8(w1), vget_low_s8(a1[t]));
          high = vmlal_high_s8(high, w1, a1[t]);
          dot[t][2 * q] = vpadalq_s16(dot[t][2 * q], low);
          dot[t][2 * q + 1] = vpadalq_s16(dot[t][2 * q + 1], high);
        }
      }
    }
#pragma GCC unroll 4
    for (size_t t = 0; t < kTokens; ++t) {
      const float scale = a_scales[t * groups + g];
#pragma GCC unroll 4
      for (size_t q = 0; q < kRows; ++q) {
        const int32x4_t exact = vpaddq_s32(dot[t][2 * q], dot[t][2 * q + 1]);
        acc[t][q] = vfmaq_n_f32(acc[t][q], vcvtq_f32_s32(exact), scale);
      }
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t q = 0; q < kRows; ++q) {
      vst1q_f32(y + t * y_stride + q * kWidth, vmulq_f32(Load(row_scales + q * kWidth), acc[t][q]));
    }
  }
}

template <size_t kTokens>
void TileQ4(const uint8_t* w, const uint16_t* scales, size_t groups, const int8_t* a,
            const float* a_scales, const int32_t* a_sums, float* y, size_t y_stride) {
  constexpr size_t kRows = kTileRows<kTokens>;
  float32x4_t acc[kTokens][kRows];
  for (auto& token : acc) {
    for (auto& quad : token) quad = vdupq_n_f32(0.0f);
  }
  for (size_t g = 0; g < groups; ++g, a += kGroup, scales += kLanes) {
    // Register i: rows 2i and 2i+1, each fourth column summed apart. Eight products of a nibble
    // and an activation, at most 15 * 127, fit 16 bits, and so do sixteen.
    int16x8_t dot[kTokens][2 * kRows];
    for (auto& token : dot) {
      for (auto& rows : token) rows = vdupq_n_s16(0);
    }
#pragma GCC unroll 4
    for (size_t k = 0; k < kGroup / 2; k += 4, w += 4 * kLanes) {
      if constexpr (kTokens == 1) Prefetch(w);
      int8x16_t a_low[kTokens], a_high[kTokens];
#pragma GCC unroll 4
      for (size_t t = 0; t < kTokens; ++t) {
        a_low[t] = Broadcast4(a + t * groups * kGroup + k);
        a_high[t] = Broadcast4(a + t * groups * kGroup + k + kGroup / 2);
      }
#pragma GCC unroll 4
      for (size_t q = 0; q < kRows; ++q) {
        const uint8x16_t packed = vld1q_u8(w + q * 16);
        const int8x16_t low = LowNibbles(packed);
        const int8x16_t high = HighNibbles(packed);
#pragma GCC unroll 4
        for (size_t t = 0; t < kTokens; ++t) {
          int16x8_t& even = dot[t][2 * q];
          int16x8_t& odd = dot[t][2 * q + 1];
          even = vmlal_s8(even, vget_low_s8(low), vget_low_s8(a_low[t]));
          odd = vmlal_high_s8(odd, low, a_low[t]);
          even = vmlal_s8(even, vget_low_s8(high), vget_low_s8(a_high[t]));
          odd = vmlal_high_s8(odd, high, a_high[t]);
        }
      }
    }
#pragma GCC unroll 4
    for (size_t t = 0; t < kTokens; ++t) {
      const float32x4_t a_scale = vdupq_n_f32(a_scales[t * groups + g]);
      const int32x4_t offset = vdupq_n_s32(-8 * a_sums[t * groups + g]);
#pragma GCC unroll 4
      for (size_t q = 0; q < kRows; ++q) {
        const int16x8_t pairs = vpaddq_s16(dot[t][2 * q], dot[t][2 * q + 1]);
        const int32x4_t exact = vpadalq_s16(offset, pairs);
        const float32x4_t scale = vmulq_f32(Load(scales + q * kWidth), a_scale);
        acc[t][q] = vfmaq_f32(acc[t][q], vcvtq_f32_s32(exact), scale);
      }
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t q = 0; q < kRows; ++q) vst1q_f32(y + t * y_stride + q * kWidth, acc[t][q]);
  }
}

// One row block times kTokens tokens, in tiles.
template <size_t kTokens>
void BlockQ8(const int8_t* w, const float* row_scales, size_t groups, const int8_t* a,
             const float* a_scales, float* y, size_t y_stride) {
  for (size_t r = 0; r < kLanes; r += kTileRows<kTokens> * kWidth) {
    TileQ8<kTokens>(w + r * 4, row_scales + r, groups, a, a_scales, y + r, y_stride);
  }
}

template <size_t kTokens>
void BlockQ4(const uint8_t* w, const uint16_t* scales, size_t groups, const int8_t* a,
             const float* a_scales, const int32_t* a_sums, float* y, size_t y_stride) {
  for (size_t r = 0; r < kLanes; r += kTileRows<kTokens> * kWidth) {
    TileQ4<kTokens>(w + r * 4, scales + r, groups, a, a_scales, a_sums, y + r, y_stride);
  }
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
      if (tokens - t >= 2) {
        BlockQ8<2>(w, s, groups, a, a_scales, out, y_stride);
        t += 2;
      } else {
        BlockQ8<1>(w, s, groups, a, a_scales, out, y_stride);
        t += 1;
      }
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
      if (tokens - t >= 2) {
        BlockQ4<2>(w, s, groups, a, a_scales, a_sums, out, y_stride);
        t += 2;
      } else {
        BlockQ4<1>(w, s, groups, a, a_scales, a_sums, out, y_stride);
        t += 1;
      }
    }
  }
}

// ---- matmul_f16, matmul_f32
//
// Each output is one chain of fmaf; several row blocks or tokens at a time hide its latency.

template <size_t kBlocks, size_t kTokens, typename Weight>
void TileFloat(const Weight* w, size_t cols, const float* x, size_t x_stride, float* y,
               size_t y_stride) {
  float32x4_t acc[kBlocks][kTokens][kQuads];
  for (auto& block : acc) {
    for (auto& token : block) {
      for (auto& quad : token) quad = vdupq_n_f32(0.0f);
    }
  }
  for (size_t k = 0; k < cols; ++k, w += kLanes) {
    for (size_t b = 0; b < kBlocks; ++b) {
      const Weight* column = w + b * cols * kLanes;
      if constexpr (kTokens == 1) Prefetch(column);
      for (size_t q = 0; q < kQuads; ++q) {
        const float32x4_t weight = Load(column + q * kWidth);
        for (size_t t = 0; t < kTokens; ++t) {
          acc[b][t][q] = vfmaq_n_f32(acc[b][t][q], weight, x[t * x_stride + k]);
        }
      }
    }
  }
  for (size_t b = 0; b < kBlocks; ++b) {
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t q = 0; q < kQuads; ++q) {
        vst1q_f32(y + t * y_stride + b * kLanes + q * kWidth, acc[b][t][q]);
      }
    }
  }
}

template <typename Weight>
void MatmulFloat(const Weight* weights, size_t row_blocks, size_t cols, const float* x,
                 size_t x_stride, size_t tokens, float* y, size_t y_stride) {
  for (size_t b = 0; b < row_blocks;) {
    const Weight* w = weights + b * cols * kLanes;
    float* out = y + b * kLanes;
    if (tokens == 1 && row_blocks - b >= 4) {
      TileFloat<4, 1>(w, cols, x, x_stride, out, y_stride);
      b += 4;
      continue;
    }
    size_t t = 0;
    for (; tokens - t >= 4; t += 4) {
      TileFloat<1, 4>(w, cols, x + t * x_stride, x_stride, out + t * y_stride, y_stride);
    }
    for (; t < tokens; ++t) {
      TileFloat<1, 1>(w, cols, x + t * x_stride, x_stride, out + t * y_stride, y_stride);
    }
    ++b;
  }
}

// ---- norms and elementwise

void RmsNorm(const float* x, const float* weight, size_t n, float count, float eps, float* y) {
  const size_t whole = n - n % kLanes;
  const Padded tail(x + whole, n - whole);
  float32x4_t s[kQuads];
  for (auto& quad : s) quad = vdupq_n_f32(0.0f);
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t q = 0; q < kQuads; ++q) {
      const float32x4_t v = Load(x + i + q * kWidth);
      s[q] = vfmaq_f32(s[q], v, v);
    }
  }
  for (size_t q = 0; q < kQuads; ++q) {
    const float32x4_t v = Load(tail.lanes + q * kWidth);
    s[q] = vfmaq_f32(s[q], v, v);
  }
  const float32x4_t four = vaddq_f32(vaddq_f32(s[0], s[2]), vaddq_f32(s[1], s[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  const float total = vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
  const float32x2_t root = vsqrt_f32(vdup_n_f32(total / count + eps));
  const float inverse = 1.0f / vget_lane_f32(root, 0);

  for (size_t i = 0; i < whole; i += kWidth) {
    float32x4_t v = vmulq_n_f32(Load(x + i), inverse);
    if (weight != nullptr) v = vmulq_f32(v, Load(weight + i));
    vst1q_f32(y + i, v);
  }
  for (size_t i = whole; i < n; ++i) {
    const float v = tail.lanes[i - whole] * inverse;
    y[i] = weight == nullptr ? v : v * weight[i];
  }
}

void Add(const float* x, size_t n, float* y) {
  for (size_t i = 0; i < n; i += kWidth) vst1q_f32(y + i, vaddq_f32(Load(y + i), Load(x + i)));
}

// Comparisons and not vmaxq, vminq: those order -0 below 0.
void SoftplusClamped(const float* bias, size_t n, float lo, float hi, float* x) {
  const float32x4_t least = vdupq_n_f32(lo);
  const float32x4_t most = vdupq_n_f32(hi);
  for (size_t i = 0; i < n; i += kWidth) {
    const float32x4_t value = Softplus(vaddq_f32(Load(x + i), Load(bias + i)));
    const float32x4_t raised = vbslq_f32(vcltq_f32(value, least), least, value);
    vst1q_f32(x + i, vbslq_f32(vcgtq_f32(raised, most), most, raised));
  }
}

// ---- conv1d_silu: eight channels, tokens inner, the inputs in flight in registers.

constexpr size_t kPair = 2;  // registers

template <size_t kTaps>
void ConvPair(const float* weights, const float* bias, size_t tokens, size_t stride, float* state,
              float* x) {
  float32x4_t w[kTaps][kPair];
  float32x4_t input[kTaps][kPair];  // oldest first; the last is the current one
  for (size_t i = 0; i < kPair; ++i) {
    for (size_t j = 0; j < kTaps; ++j) w[j][i] = Load(weights + j * kLanes + i * kWidth);
    for (size_t j = 0; j + 1 < kTaps; ++j) input[j][i] = Load(state + j * kLanes + i * kWidth);
  }
  for (size_t t = 0; t < tokens; ++t, x += stride) {
    for (size_t i = 0; i < kPair; ++i) {
      input[kTaps - 1][i] = Load(x + i * kWidth);
      float32x4_t acc = Load(bias + i * kWidth);
      for (size_t j = 0; j < kTaps; ++j) acc = vfmaq_f32(acc, w[j][i], input[j][i]);
      vst1q_f32(x + i * kWidth, Silu(acc));
      for (size_t j = 0; j + 1 < kTaps; ++j) input[j][i] = input[j + 1][i];
    }
  }
  for (size_t j = 0; j + 1 < kTaps; ++j) {
    for (size_t i = 0; i < kPair; ++i) vst1q_f32(state + j * kLanes + i * kWidth, input[j][i]);
  }
}

void Conv1dSilu(const float* weights, const float* bias, size_t channel_blocks, size_t d_conv,
                size_t tokens, size_t stride, float* state, float* x) {
  constexpr decltype(&ConvPair<1>) kByTaps[kMaxConv] = {
      ConvPair<1>, ConvPair<2>, ConvPair<3>, ConvPair<4>,
      ConvPair<5>, ConvPair<6>, ConvPair<7>, ConvPair<8>,
  };
  const auto convolve = kByTaps[d_conv - 1];
  for (size_t c = 0; c < channel_blocks * kLanes; c += kPair * kWidth) {
    const size_t block = c / kLanes;
    const size_t lane = c % kLanes;
    convolve(weights + block * d_conv * kLanes + lane, bias + c, tokens, stride,
             state + block * (d_conv - 1) * kLanes + lane, x + c);
  }
}

// ---- selective_scan: eight channels, tokens inner. The state stays in the first cache and not in
// registers: its loads and stores hide behind the exponentials, which need the registers.

void ScanPair(const SelectiveScanArgs* args, size_t channel, const float* a, float* state) {
  for (size_t t = 0; t < args->tokens; ++t) {
    const size_t row = t * args->stride + channel;
    const float* b = args->b + t * args->bc_stride;
    const float* c = args->c + t * args->bc_stride;
    float32x4_t x[kPair], dt[kPair], u[kPair], y[kPair];
    for (size_t i = 0; i < kPair; ++i) {
      x[i] = Load(args->x + row + i * kWidth);
      dt[i] = Load(args->dt + row + i * kWidth);
      u[i] = vmulq_f32(dt[i], x[i]);
      y[i] = vdupq_n_f32(0.0f);
    }
    for (size_t n = 0; n < args->d_state; ++n) {
      for (size_t i = 0; i < kPair; ++i) {
        float* s = state + n * kLanes + i * kWidth;
        const float32x4_t decay = Exp2(vmulq_f32(dt[i], Load(a + n * kLanes + i * kWidth)));
        const float32x4_t next = vfmaq_f32(vmulq_n_f32(u[i], b[n]), decay, Load(s));
        vst1q_f32(s, next);
        y[i] = vfmaq_n_f32(y[i], next, c[n]);
      }
    }
    for (size_t i = 0; i < kPair; ++i) {
      y[i] = vfmaq_f32(y[i], Load(args->d + channel + i * kWidth), x[i]);
      const float32x4_t gate = Silu(Load(args->z + row + i * kWidth));
      vst1q_f32(args->x + row + i * kWidth, vmulq_f32(y[i], gate));
    }
  }
}

void SelectiveScan(const SelectiveScanArgs* args) {
  for (size_t channel = 0; channel < args->channel_blocks * kLanes; channel += kPair * kWidth) {
    const size_t first = channel / kLanes * args->d_state * kLanes + channel % kLanes;
    ScanPair(args, channel, args->a + first, args->state + first);
  }
}

// ---- ssd_scan
//
// A head takes up to kSsdTokens tokens at a time. For each of its channel blocks the loop over
// states is outside and the one over tokens inside, so that kSsdStates states live in registers
// while the sums y of all the tokens pass by; each y still adds its states in order.

constexpr size_t kSsdTokens = 32;
constexpr size_t kSsdStates = 4;  // of one channel block: half of the registers

struct SsdChunk {
  size_t tokens;
  const float* b;  // of the head's group, row 0 of the chunk
  const float* c;
  size_t bc_stride;
  float decay[kSsdTokens];
  alignas(16) float u[kSsdTokens][kLanes];
  alignas(16) float y[kSsdTokens][kLanes];
};

template <size_t kStates>
void SsdTile(SsdChunk* chunk, size_t first, float* state) {
  float32x4_t s[kStates][kQuads];
  for (size_t n = 0; n < kStates; ++n) {
    for (size_t q = 0; q < kQuads; ++q) s[n][q] = Load(state + n * kLanes + q * kWidth);
  }
  const float* b = chunk->b + first;
  const float* c = chunk->c + first;
  for (size_t t = 0; t < chunk->tokens; ++t, b += chunk->bc_stride, c += chunk->bc_stride) {
    const float decay = chunk->decay[t];
    for (size_t q = 0; q < kQuads; ++q) {
      const float32x4_t u = Load(chunk->u[t] + q * kWidth);
      float32x4_t y = Load(chunk->y[t] + q * kWidth);
      for (size_t n = 0; n < kStates; ++n) {
        s[n][q] = vfmaq_n_f32(vmulq_n_f32(u, b[n]), s[n][q], decay);
        y = vfmaq_n_f32(y, s[n][q], c[n]);
      }
      vst1q_f32(chunk->y[t] + q * kWidth, y);
    }
  }
  for (size_t n = 0; n < kStates; ++n) {
    for (size_t q = 0; q < kQuads; ++q) vst1q_f32(state + n * kLanes + q * kWidth, s[n][q]);
  }
}

// One token: nothing to keep in registers, and two channel blocks at a time hide the latency of y.
template <size_t kBlocks>
void SsdStep(float dt, float decay, const float* b, const float* c, const float* d, size_t d_state,
             float* state, float* x) {
  constexpr size_t kVectors = kBlocks * kQuads;
  float32x4_t u[kVectors], y[kVectors];
  for (size_t i = 0; i < kVectors; ++i) {
    u[i] = vmulq_n_f32(Load(x + i * kWidth), dt);
    y[i] = vdupq_n_f32(0.0f);
  }
  for (size_t n = 0; n < d_state; ++n) {
    for (size_t i = 0; i < kVectors; ++i) {
      float* s = state + (i / kQuads * d_state + n) * kLanes + i % kQuads * kWidth;
      const float32x4_t next = vfmaq_n_f32(vmulq_n_f32(u[i], b[n]), Load(s), decay);
      vst1q_f32(s, next);
      y[i] = vfmaq_n_f32(y[i], next, c[n]);
    }
  }
  for (size_t i = 0; i < kVectors; ++i) {
    vst1q_f32(x + i * kWidth, vfmaq_f32(y[i], Load(d + i * kWidth), Load(x + i * kWidth)));
  }
}

// Several tokens of one channel block. dt, x: first row of the chunk.
void SsdBlock(SsdChunk* chunk, const float* dt, size_t dt_stride, const float* d, size_t d_state,
              size_t stride, float* state, float* x) {
  for (size_t t = 0; t < chunk->tokens; ++t) {
    for (size_t l = 0; l < kLanes; l += kWidth) {
      vst1q_f32(chunk->u[t] + l, vmulq_n_f32(Load(x + t * stride + l), dt[t * dt_stride]));
      vst1q_f32(chunk->y[t] + l, vdupq_n_f32(0.0f));
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
      vst1q_f32(out, vfmaq_f32(Load(chunk->y[t] + l), Load(d + l), Load(out)));
    }
  }
}

void SsdScan(const SsdScanArgs* args) {
  const size_t d_state = args->d_state;
  SsdChunk chunk;
  chunk.bc_stride = args->bc_stride;
  for (size_t head = args->head_begin; head < args->head_end; ++head) {
    const size_t group = head / args->heads_per_group;
    for (size_t first = 0; first < args->tokens; first += chunk.tokens) {
      const size_t left = args->tokens - first;
      chunk.tokens = left < kSsdTokens ? left : kSsdTokens;
      chunk.b = args->b + first * args->bc_stride + group * d_state;
      chunk.c = args->c + first * args->bc_stride + group * d_state;
      const float* dt = args->dt + first * args->dt_stride + head;
      for (size_t t = 0; t < chunk.tokens; ++t) {
        const float step = dt[t * args->dt_stride] * args->a[head];
        chunk.decay[t] = vgetq_lane_f32(Exp2(vdupq_n_f32(step)), 0);
      }
      for (size_t i = 0; i < args->head_blocks;) {
        const size_t channel = (head * args->head_blocks + i) * kLanes;
        float* x = args->x + first * args->stride + channel;
        float* state = args->state + channel * d_state;
        const float* d = args->d + channel;
        if (chunk.tokens > 1) {
          SsdBlock(&chunk, dt, args->dt_stride, d, d_state, args->stride, state, x);
          i += 1;
        } else if (args->head_blocks - i >= 2) {
          SsdStep<2>(*dt, chunk.decay[0], chunk.b, chunk.c, d, d_state, state, x);
          i += 2;
        } else {
          SsdStep<1>(*dt, chunk.decay[0], chunk.b, chunk.c, d, d_state, state, x);
          i += 1;
        }
      }
    }
  }
}

}  // namespace

constinit const Kernels kNeonKernels = {
    .name = "neon",
    .required = kCpuNeon,
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
    .ssd_scan_16 = Ssd16<NeonVector>::Scan,
    .mamba3_rotate = Mamba3<NeonVector>::Rotate,
    .mamba3_scan = Mamba3<NeonVector>::Scan,
    .mimo_gate = Mamba3<NeonVector>::Gate,
};

}  // namespace adder
