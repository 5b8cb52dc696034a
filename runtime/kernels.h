// The table of kernels and the numeric contract of each slot.
//
// kernels_scalar.cc is the definition: every other table must give the same bits for the same
// inputs (DESIGN.md section 5; tests/kernels_parity_test.cc compares with memcmp). What makes that
// possible:
//   - output rows or channels lie in the kLanes lanes and the summed axis is the loop, so every sum
//     is taken in one stated order; a sum across lanes (rms_norm) is kLanes strided partial sums
//     and one fixed tree;
//   - integer dot products are exact; floats are fused exactly where the text says fmaf and nowhere
//     else (-ffp-contract=off); division and square root are the correctly rounded ones;
//   - exp, softplus, silu, gelu, tanh, sin and so on are the polynomials of runtime/scalar_math.h,
//     operation by operation;
//   - rounding is to nearest even; flush-to-zero is off;
//   - NaN in, NaN out: comparisons and clamps keep it.
// Which NaN a NaN is (sign, payload) is the one thing left open.
//
// Kernels never allocate, throw, print or start threads. Pointers are aligned to kAlignment unless
// said otherwise, row strides are multiples of kLanes floats, and channel counts are padded to
// kLanes by the model file. Work is split between threads by giving each call a range of row
// blocks, channel blocks or heads; results do not depend on the split.
//
// Files of kernels_x86/ and kernels_arm/ include this header and intrinsics, nothing else.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "quant/qtypes.h"
#include "runtime/math_constants.h"

namespace adder {

enum CpuFeature : uint32_t {
  kCpuAvx2 = 1u << 0,  // AVX2, FMA and F16C together
  kCpuAvxVnni = 1u << 1,
  kCpuAvx512 = 1u << 2,  // F, BW, DQ, VL
  kCpuAvx512Vnni = 1u << 3,
  kCpuNeon = 1u << 8,
  kCpuDotProd = 1u << 9,
  kCpuI8mm = 1u << 10,
};

// Rows of activations in groups of kGroup columns: x ~= scale * value. `sums` is the sum of the
// group's values, which kernels with offset weights subtract. cols are padded to kGroup.
// Values are -127..127, as quantize_row makes them: matmul kernels need not handle -128. Weights
// come from a file and may be any byte, -128 too.
struct QuantizedRows {
  int8_t* values;  // [tokens][groups * kGroup]
  float* scales;   // [tokens][groups]; not aligned
  int32_t* sums;   // [tokens][groups]; not aligned
};

// Mamba-1 selective scan with gate. Channels lie in blocks of kLanes.
struct SelectiveScanArgs {
  size_t tokens, channel_blocks, d_state;
  size_t stride;     // between rows of x, dt and z, floats
  size_t bc_stride;  // between rows of b and c, floats
  float* x;          // [tokens][channels] in: after convolution and SiLU; out: y
  const float* dt;   // [tokens][channels] after softplus
  const float* z;    // [tokens][channels] gate before SiLU
  const float* b;    // [tokens][d_state] not aligned
  const float* c;    // [tokens][d_state] not aligned
  const float* a;    // [channel_blocks][d_state][kLanes], A * log2(e)
  const float* d;    // [channels]
  float* state;      // [channel_blocks][d_state][kLanes]
};

// Mamba-2 recurrence (state-space duality, without the chunked form), heads [head_begin, head_end).
// Each head is head_blocks * kLanes channels wide.
struct SsdScanArgs {
  size_t tokens, head_begin, head_end, head_blocks, d_state;
  size_t heads_per_group;  // head h reads group h / heads_per_group of b and c
  size_t stride;           // between rows of x, floats
  size_t dt_stride;        // between rows of dt, floats
  size_t bc_stride;        // between rows of b and c, floats
  float* x;                // [tokens][heads * head_blocks * kLanes] in: after conv, SiLU; out: y
  const float* dt;         // [tokens][heads] after softplus and clamp
  const float* b;          // [tokens][groups][d_state] not aligned
  const float* c;          // [tokens][groups][d_state] not aligned
  const float* a;          // [heads], A * log2(e)
  const float* d;          // [heads * head_blocks * kLanes]
  float* state;            // [heads * head_blocks][d_state][kLanes]; ssd_scan_16: unused
  int16_t* values;         // ssd_scan_16: as state, S = value * limit / 32767 of its channel
  float* limits;           // ssd_scan_16: [heads * head_blocks][kLanes], at least |S|
};

// Keys and queries of a Mamba-3 mixer for heads [head_begin, head_end): B and C of their group plus
// a bias of the head, rotated by angles that every token advances.
struct Mamba3RotateArgs {
  size_t tokens, head_begin, head_end, d_state, rank, groups, n_angles;
  size_t heads_per_group;
  size_t bc_stride;     // between rows of b and c, floats
  size_t dt_stride;     // between rows of dt, floats
  size_t angle_stride;  // between rows of angle, floats
  size_t kq_stride;     // between tokens of k and q, floats
  const float* b;       // [tokens][rank][groups][d_state] after their norm; not aligned
  const float* c;       // likewise
  const float* b_bias;  // [heads][rank][d_state] not aligned
  const float* c_bias;  // likewise
  const float* dt;      // [tokens][heads] after softplus
  const float* angle;   // [tokens][n_angles], as projected
  float* turns;         // [heads][n_angles padded to kLanes] state
  float* k;             // [tokens][heads][rank][d_state] out; not aligned
  float* q;             // likewise
};

// Mamba-3 recurrence, heads [head_begin, head_end). Each head is head_blocks * kLanes channels
// wide.
struct Mamba3ScanArgs {
  size_t tokens, head_begin, head_end, head_blocks, d_state, rank;
  size_t stride;        // between rows of x, and between the ranks of y, floats
  size_t heads_stride;  // between rows of dt, a and trap, floats
  size_t kq_stride;     // between tokens of k and q, floats
  float a_floor;
  const float* x;       // [tokens][channels]
  const float* dt;      // [tokens][heads] after softplus
  const float* a;       // [tokens][heads] as projected
  const float* trap;    // [tokens][heads] as projected
  const float* k;       // [tokens][heads][rank][d_state] not aligned
  const float* q;       // likewise
  const float* mimo_x;  // [rank][channels]; nullptr with rank 1: ones
  const float* d;       // [channels]
  float* state;         // [heads * head_blocks][d_state][kLanes]
  float* k_last;        // [heads][rank][d_state] k of the token before; not aligned
  float* x_last;        // [channels] x of the token before
  float* y;             // [tokens][rank][stride] out
};

struct Kernels {
  const char* name = nullptr;  // "scalar", "avx2", ...: file, table, test and ADDER_ISA value
  uint32_t required = 0;       // CpuFeature bits, all needed

  // Quantizes one row of n floats (any n; the rest of the last group counts as zeros).
  // Per group, with m the largest |x|:
  //   m not finite:         values = 0, scale = NaN, sum = 0 (so that the fault reaches the logits)
  //   m < 2^-100:           values = 0, scale = 0, sum = 0
  //   else:                 inverse = 127 / m; value = round_to_even(x * inverse);
  //                         scale = m * (1.0f / 127.0f)
  void (*quantize_row)(const float* x, size_t n, int8_t* values, float* scales,
                       int32_t* sums) = nullptr;

  // y[t][16 b + r] = row_scale[16 b + r] * acc, where over groups g in order
  //   acc = fmaf(float(dot(weights of row, group g; x values)), x scale[t][g], acc), acc = 0 first.
  void (*matmul_q8)(const int8_t* weights, const float* row_scales, size_t row_blocks,
                    size_t groups, const QuantizedRows* x, size_t tokens, float* y,
                    size_t y_stride) = nullptr;

  // y[t][16 b + r] = acc, where over groups g in order
  //   acc = fmaf(float(dot(nibble - 8; x values)), float(scale[b][g][r]) * x scale[t][g], acc).
  void (*matmul_q4)(const uint8_t* weights, const uint16_t* scales, size_t row_blocks,
                    size_t groups, const QuantizedRows* x, size_t tokens, float* y,
                    size_t y_stride) = nullptr;

  // y[t][16 b + r] = acc, where over columns k in order acc = fmaf(weight[b][k][r], x[t][k], acc).
  void (*matmul_f16)(const uint16_t* weights, size_t row_blocks, size_t cols, const float* x,
                     size_t x_stride, size_t tokens, float* y, size_t y_stride) = nullptr;
  void (*matmul_f32)(const float* weights, size_t row_blocks, size_t cols, const float* x,
                     size_t x_stride, size_t tokens, float* y, size_t y_stride) = nullptr;

  // RMS norm of one row of n floats (any n), y = (x * inverse) * weight, y may be x.
  //   s[l] = fmaf(x[16 i + l], x[16 i + l], s[l]) over i in order, missing elements 0;
  //   total = tree of s: l and l+8, then l and l+4, l+2, l+1;
  //   inverse = 1 / sqrt(total / count + eps).
  // count is the number of real elements among the n (padding channels hold zeros).
  // weight may be nullptr: all ones. Nothing needs to be aligned.
  void (*rms_norm)(const float* x, const float* weight, size_t n, float count, float eps,
                   float* y) = nullptr;

  // Part of the softmax of a row: n scores, a multiple of kLanes, and the largest of those before.
  //   m[l] = *largest; over i in order m[l] = x[16 i + l] > m[l] ? x[16 i + l] : m[l];
  //   *largest = tree of m, by the same comparison of the upper lane with the lower;
  //   x[i] = exp(x[i] - *largest); s[l] = s[l] + x[16 i + l] over i in order, 0 first.
  // Returns the tree of s. Trees as in rms_norm. A score of -infinity becomes 0 (unless all are).
  float (*softmax)(float* x, size_t n, float* largest) = nullptr;

  // Gates: y = y * act(z), or y = act(y) where z is nullptr; n a multiple of kLanes.
  void (*silu_mul)(const float* z, size_t n, float* y) = nullptr;
  void (*relu2_mul)(const float* z, size_t n, float* y) = nullptr;
  void (*gelu_mul)(const float* z, size_t n, float* y) = nullptr;

  // y = y + x; n a multiple of kLanes.
  void (*add)(const float* x, size_t n, float* y) = nullptr;

  // y = fmaf(scale, x, y); n a multiple of kLanes.
  void (*add_scaled)(const float* x, float scale, size_t n, float* y) = nullptr;

  // x = min(max(softplus(x + bias), lo), hi); n a multiple of kLanes; lo <= hi, neither NaN.
  void (*softplus)(const float* bias, size_t n, float lo, float hi, float* x) = nullptr;

  // Causal depthwise convolution of d_conv taps (1..kMaxConv) with SiLU, in place. Per channel:
  //   acc = bias[channel]; acc = fmaf(weight[j], input j tokens after the oldest, acc), j in order;
  //   y = silu(acc). The newest d_conv - 1 raw inputs are left in state, oldest first.
  // weights [channel_blocks][d_conv][kLanes], bias [channels],
  // state [channel_blocks][d_conv - 1][kLanes].
  void (*conv1d_silu)(const float* weights, const float* bias, size_t channel_blocks, size_t d_conv,
                      size_t tokens, size_t stride, float* state, float* x) = nullptr;

  // Per channel and token: u = dt * x; y = 0; over n in order
  //   S[n] = fmaf(exp2(dt * a[n]), S[n], u * b[n]);  y = fmaf(S[n], c[n], y);
  // then y = fmaf(d, x, y); x := y * silu(z).
  void (*selective_scan)(const SelectiveScanArgs* args) = nullptr;

  // Per head and token: decay = exp2(dt * a); per channel u = dt * x; y = 0; over n in order
  //   S[n] = fmaf(decay, S[n], u * b[n]);  y = fmaf(S[n], c[n], y);
  // then x := fmaf(d, x, y).
  void (*ssd_scan)(const SsdScanArgs* args) = nullptr;

  // The same with a state of 16-bit values, rounded after every token. A channel's limit follows
  // from bounds, so that the state is read and written once:
  //   m = max of |b[n]| over n;  scale = limit * (1 / 32767);
  //   limit := fmaf(decay, limit, |u| * m);
  //   inverse = 32767 / limit if 2^-100 <= limit < infinity, else 0;  over n in order
  //   s = fmaf(decay, value[n] * scale, u * b[n]);  y = fmaf(s, c[n], y);
  //   value[n] := inverse == 0 ? 0 : round_even(s * inverse)
  void (*ssd_scan_16)(const SsdScanArgs* args) = nullptr;

  // Per token, and per head h of group g = h / heads_per_group:
  //   k[r][n] = b[r][g][n] + b_bias[h][r][n], and q likewise;
  //   for angle s: t = fmaf(tanh(angle[s]) * 0.5f, dt, turns[h][s]); turns[h][s] = t - round(t);
  //     for k and q of every rank, with t0, t1 at s and s + d_state / 2, sin and cos of
  //     turns[h][s]:
  //       t0 := fmaf(t0, cos, -(t1 * sin)); t1 := fmaf(t0, sin, t1 * cos), t0 the old one.
  // n_angles <= d_state / 2.
  void (*mamba3_rotate)(const Mamba3RotateArgs* args) = nullptr;

  // Per head and token, with f = a >= 0 ? 1 + |a| : 1 / (1 + |a|), w = sigmoid(trap):
  //   decay = exp(-(max(f, a_floor) * dt)); now = w * dt; before = ((1 - w) * dt) * decay.
  // Per channel, with v[r] = x * mimo_x[r], or x: u[r] = now * v[r]; p[r] = before * (v[r] of the
  // token before); y[r] = 0; over n in order
  //   s = decay * S[n]; s = fmaf(p[r], k_last[r][n], s), r in order; s = fmaf(u[r], k[r][n], s), r
  //   in order; S[n] = s; y[r] = fmaf(s, q[r][n], y[r]);
  // then y[r] := fmaf(d, v[r], y[r]). x_last and k_last are left at the last token's. rank is at
  // most kMaxMimoRank.
  void (*mamba3_scan)(const Mamba3ScanArgs* args) = nullptr;

  // out = acc, where over ranks r in order acc = fmaf(y[r] * silu(z * mimo_z[r]), mimo_o[r], acc),
  // acc = 0 first. y, mimo_z, mimo_o [rank][n]; z, out [n]; n a multiple of kLanes.
  void (*mimo_gate)(const float* y, const float* z, const float* mimo_z, const float* mimo_o,
                    size_t rank, size_t n, float* out) = nullptr;
};

inline constexpr size_t kMaxConv = 8;       // taps of conv1d_silu
inline constexpr size_t kMaxMimoRank = 64;  // of mamba3_scan

inline constexpr float kStateSteps = 32767.0f;  // of ssd_scan_16
inline constexpr float kStateLimitMin = 0x1p-100f;

// The table that defines every slot.
extern const Kernels kScalarKernels;
#if defined(ADDER_KERNELS_X86)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvxVnniKernels;
extern const Kernels kAvx512Kernels;
#elif defined(ADDER_KERNELS_ARM)
extern const Kernels kNeonKernels;
extern const Kernels kDotprodKernels;
extern const Kernels kI8mmKernels;
#endif

}  // namespace adder
