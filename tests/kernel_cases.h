// One function per slot of Kernels: makes inputs from a seed, runs the slot of the given table on
// guarded buffers and returns what it wrote. The parity test compares tables with it, the golden
// test hashes it; both therefore see the same inputs on every machine and compiler.
#pragma once

#include <bit>
#include <cfloat>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <vector>

#include "runtime/kernels.h"
#include "tests/guarded_buffer.h"

namespace adder {

// What the floats of a case are made of.
enum class Fill {
  kNormal,     // -2..2
  kExtreme,    // the largest and smallest floats
  kSubnormal,  // below 2^-126
  kNearZero,   // around the 2^-100 below which quantize_row gives zeros
  kOutliers,   // kNormal with 2^40 times larger ones
  kZeros,      // long runs of 0 and -0 between values
  kWide,       // any finite float
  kEdges,      // where the polynomials clamp, change their power of two or cut to 0
  kNonFinite,  // kNormal with infinities and NaN
};
inline constexpr Fill kAllFills[] = {Fill::kNormal,   Fill::kExtreme,  Fill::kSubnormal,
                                     Fill::kNearZero, Fill::kOutliers, Fill::kZeros,
                                     Fill::kWide,     Fill::kEdges,    Fill::kNonFinite};

using Sizes = std::initializer_list<size_t>;

struct Inputs {
  Fill fill = Fill::kNormal;
  uint64_t seed = 1;
  Guard guard = Guard::kAfter;
};

// Everything that a slot wrote.
struct Outputs {
  std::vector<uint32_t> floats;  // bits; every NaN is 0x7fc00000
  std::vector<int32_t> ints;

  void Append(GuardedBuffer<float>& buffer) {
    for (const float v : buffer)
      floats.push_back(v != v ? 0x7fc00000u : std::bit_cast<uint32_t>(v));
  }
  template <typename T>
  void Append(GuardedBuffer<T>& buffer) {
    for (const T v : buffer) ints.push_back(v);
  }
  bool operator==(const Outputs&) const = default;
};

// Seeded numbers (SplitMix64), the same everywhere.
class Source {
 public:
  explicit Source(const Inputs& inputs) : fill_(inputs.fill), state_(inputs.seed) {}

  uint64_t Bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>((Bits() >> 32) * n >> 32); }
  float Uniform() { return static_cast<float>(static_cast<int32_t>(Bits() >> 32)) * 0x1p-30f; }

  float Float() {
    const float sign = (Bits() & 1) != 0 ? 1.0f : -1.0f;
    switch (fill_) {
      case Fill::kNormal:
        return Uniform();
      case Fill::kExtreme:
        return sign * (Below(2) == 0 ? FLT_MAX : FLT_MIN);
      case Fill::kSubnormal:
        return sign * std::bit_cast<float>(Below(1u << 23));
      case Fill::kNearZero:
        return Uniform() * 0x1p-101f;
      case Fill::kOutliers:
        return Uniform() * (Below(37) == 0 ? 0x1p40f : 1.0f);
      case Fill::kZeros:
        if (Below(50) == 0) zeros_ = !zeros_;
        return zeros_ ? sign * 0.0f : Uniform();
      case Fill::kWide:
        return sign * std::bit_cast<float>(Below(0x7f800000u));
      case Fill::kEdges: {
        // The scans take a = -8 v: 15.75 and 1 make Exp2(-126), -15.875 and 1 Exp2(127).
        static constexpr float kEdge[] = {1.0f, 0.5f,     15.75f,  15.875f, kExp2Min,
                                          1.5f, kExp2Max, kExpMin, kExpMax, kQuantizeMin};
        const float edge = kEdge[Below(10)];
        const uint32_t step = Below(3);
        return sign * (step == 0 ? edge : std::nextafter(edge, step == 1 ? 0.0f : 2 * edge));
      }
      case Fill::kNonFinite:
        switch (Below(60)) {
          case 0:
            return std::numeric_limits<float>::quiet_NaN();
          case 1:
            return sign * std::numeric_limits<float>::infinity();
          default:
            return Uniform();
        }
    }
    return 0.0f;
  }

  // Weights: all of int8; for the extreme fill only its ends.
  int8_t Weight() {
    if (fill_ == Fill::kExtreme) return Below(2) == 0 ? -128 : 127;
    return static_cast<int8_t>(Bits() >> 56);
  }
  int8_t Activation() {
    if (fill_ == Fill::kExtreme) return Below(2) == 0 ? -127 : 127;
    return static_cast<int8_t>(static_cast<int>(Below(255)) - 127);
  }
  uint8_t Nibbles() {
    if (fill_ == Fill::kExtreme) return Below(2) == 0 ? 0x00 : 0xff;
    return static_cast<uint8_t>(Bits() >> 56);
  }
  // Finite halves but for kNonFinite; subnormal ones for kSubnormal.
  uint16_t Half() {
    uint32_t half = static_cast<uint32_t>(Bits() >> 48);
    if (fill_ == Fill::kSubnormal) half &= 0x83ffu;
    if (fill_ == Fill::kNormal) half = (half & 0x83ffu) | (10 + Below(7)) << 10;
    if (fill_ != Fill::kNonFinite && (half & 0x7c00u) == 0x7c00u) half &= 0xbfffu;
    return static_cast<uint16_t>(half);
  }

 private:
  Fill fill_;
  bool zeros_ = false;
  uint64_t state_;
};

inline void FillFloats(Source* source, GuardedBuffer<float>* buffer) {
  for (float& v : *buffer) v = source->Float();
}

inline Outputs RunQuantizeRow(const Kernels& kernels, const Inputs& inputs, size_t n) {
  Source source(inputs);
  GuardedBuffer<float> x(n, inputs.guard);
  GuardedBuffer<int8_t> values(Groups(n) * kGroup, inputs.guard);
  GuardedBuffer<float> scales(Groups(n), inputs.guard, alignof(float));
  GuardedBuffer<int32_t> sums(Groups(n), inputs.guard, alignof(int32_t));
  FillFloats(&source, &x);
  x.MakeReadOnly();
  kernels.quantize_row(x.data(), n, values.data(), scales.data(), sums.data());
  Outputs outputs;
  outputs.Append(values);
  outputs.Append(scales);
  outputs.Append(sums);
  return outputs;
}

struct MatmulShape {
  size_t row_blocks, cols, tokens;  // cols a multiple of kGroup for q8 and q4
  size_t gap = 0;                   // floats between the rows of y, a multiple of kLanes
};

// Quantized activations with scales of any kind and sums that fit the values.
struct Activations {
  GuardedBuffer<int8_t> values;
  GuardedBuffer<float> scales;
  GuardedBuffer<int32_t> sums;

  Activations(Source* source, size_t groups, const Inputs& inputs)
      : values(groups * kGroup, inputs.guard),
        scales(groups, inputs.guard, alignof(float)),
        sums(groups, inputs.guard, alignof(int32_t)) {
    for (int8_t& v : values) v = source->Activation();
    FillFloats(source, &scales);
    for (size_t g = 0; g < groups; ++g) {
      sums[g] = 0;
      for (size_t k = 0; k < kGroup; ++k) sums[g] += values[g * kGroup + k];
    }
    values.MakeReadOnly();
    scales.MakeReadOnly();
    sums.MakeReadOnly();
  }
  QuantizedRows rows() { return {values.data(), scales.data(), sums.data()}; }
};

// Rows of y are stride apart, and what lies between them must stay as it is.
inline GuardedBuffer<float> MatmulOutput(const Inputs& inputs, const MatmulShape& shape) {
  return GuardedBuffer<float>((shape.row_blocks * kLanes + shape.gap) * shape.tokens, inputs.guard);
}

inline Outputs RunMatmulQ8(const Kernels& kernels, const Inputs& inputs, const MatmulShape& shape) {
  Source source(inputs);
  const size_t groups = shape.cols / kGroup;
  GuardedBuffer<int8_t> weights(shape.row_blocks * kLanes * shape.cols, inputs.guard);
  GuardedBuffer<float> row_scales(shape.row_blocks * kLanes, inputs.guard);
  for (int8_t& w : weights) w = source.Weight();
  FillFloats(&source, &row_scales);
  weights.MakeReadOnly();
  row_scales.MakeReadOnly();
  Activations activations(&source, shape.tokens * groups, inputs);
  const QuantizedRows x = activations.rows();
  GuardedBuffer<float> y = MatmulOutput(inputs, shape);
  kernels.matmul_q8(weights.data(), row_scales.data(), shape.row_blocks, groups, &x, shape.tokens,
                    y.data(), shape.row_blocks * kLanes + shape.gap);
  Outputs outputs;
  outputs.Append(y);
  return outputs;
}

inline Outputs RunMatmulQ4(const Kernels& kernels, const Inputs& inputs, const MatmulShape& shape) {
  Source source(inputs);
  const size_t groups = shape.cols / kGroup;
  GuardedBuffer<uint8_t> weights(shape.row_blocks * kLanes * shape.cols / 2, inputs.guard);
  GuardedBuffer<uint16_t> scales(shape.row_blocks * kLanes * groups, inputs.guard);
  for (uint8_t& w : weights) w = source.Nibbles();
  for (uint16_t& s : scales) s = source.Half();
  weights.MakeReadOnly();
  scales.MakeReadOnly();
  Activations activations(&source, shape.tokens * groups, inputs);
  const QuantizedRows x = activations.rows();
  GuardedBuffer<float> y = MatmulOutput(inputs, shape);
  kernels.matmul_q4(weights.data(), scales.data(), shape.row_blocks, groups, &x, shape.tokens,
                    y.data(), shape.row_blocks * kLanes + shape.gap);
  Outputs outputs;
  outputs.Append(y);
  return outputs;
}

inline Outputs RunMatmulF16(const Kernels& kernels, const Inputs& inputs,
                            const MatmulShape& shape) {
  Source source(inputs);
  const size_t x_stride = RoundUp(shape.cols, kLanes) + shape.gap;
  GuardedBuffer<uint16_t> weights(shape.row_blocks * kLanes * shape.cols, inputs.guard);
  GuardedBuffer<float> x(x_stride * shape.tokens, inputs.guard);
  for (uint16_t& w : weights) w = source.Half();
  FillFloats(&source, &x);
  weights.MakeReadOnly();
  x.MakeReadOnly();
  GuardedBuffer<float> y = MatmulOutput(inputs, shape);
  kernels.matmul_f16(weights.data(), shape.row_blocks, shape.cols, x.data(), x_stride, shape.tokens,
                     y.data(), shape.row_blocks * kLanes + shape.gap);
  Outputs outputs;
  outputs.Append(y);
  return outputs;
}

inline Outputs RunMatmulF32(const Kernels& kernels, const Inputs& inputs,
                            const MatmulShape& shape) {
  Source source(inputs);
  const size_t x_stride = RoundUp(shape.cols, kLanes) + shape.gap;
  GuardedBuffer<float> weights(shape.row_blocks * kLanes * shape.cols, inputs.guard);
  GuardedBuffer<float> x(x_stride * shape.tokens, inputs.guard);
  FillFloats(&source, &weights);
  FillFloats(&source, &x);
  weights.MakeReadOnly();
  x.MakeReadOnly();
  GuardedBuffer<float> y = MatmulOutput(inputs, shape);
  kernels.matmul_f32(weights.data(), shape.row_blocks, shape.cols, x.data(), x_stride, shape.tokens,
                     y.data(), shape.row_blocks * kLanes + shape.gap);
  Outputs outputs;
  outputs.Append(y);
  return outputs;
}

inline Outputs RunRmsNorm(const Kernels& kernels, const Inputs& inputs, size_t n, bool weighted,
                          bool in_place) {
  Source source(inputs);
  GuardedBuffer<float> x(n, inputs.guard), weight(n, inputs.guard), y(n, inputs.guard);
  FillFloats(&source, &x);
  FillFloats(&source, &weight);
  weight.MakeReadOnly();
  if (!in_place) x.MakeReadOnly();
  kernels.rms_norm(x.data(), weighted ? weight.data() : nullptr, n, static_cast<float>(n), 1e-5f,
                   in_place ? x.data() : y.data());
  Outputs outputs;
  outputs.Append(x);
  outputs.Append(y);
  return outputs;
}

inline Outputs RunSoftmax(const Kernels& kernels, const Inputs& inputs, size_t n, float before) {
  Source source(inputs);
  GuardedBuffer<float> x(n, inputs.guard), results(2, inputs.guard, alignof(float));
  FillFloats(&source, &x);
  for (float& v : x) {
    if (source.Below(9) == 0) v = -std::numeric_limits<float>::infinity();  // masked
    if (inputs.fill == Fill::kNormal) v *= 40.0f;  // so that the exponential meets its end
  }
  results[0] = before;
  results[1] = kernels.softmax(x.data(), n, &results[0]);
  Outputs outputs;
  outputs.Append(x);
  outputs.Append(results);
  return outputs;
}

// silu_mul, add and softplus.
inline Outputs RunElementwise(const Kernels& kernels, const Inputs& inputs, size_t n) {
  Source source(inputs);
  GuardedBuffer<float> x(n, inputs.guard);
  GuardedBuffer<float> gated(n, inputs.guard), sum(n, inputs.guard), step(n, inputs.guard);
  FillFloats(&source, &x);
  FillFloats(&source, &gated);
  FillFloats(&source, &sum);
  FillFloats(&source, &step);
  if (inputs.fill != Fill::kEdges) {
    for (float& v : x) v *= 40.0f;  // so that the exponentials meet their ends
  } else {
    for (float& v : step) v = 0.0f;  // so that softplus sees x itself
  }
  x.MakeReadOnly();
  kernels.silu_mul(x.data(), n, gated.data());
  kernels.add(x.data(), n, sum.data());
  kernels.softplus(x.data(), n, 0x1p-10f, 50.0f, step.data());
  Outputs outputs;
  outputs.Append(gated);
  outputs.Append(sum);
  outputs.Append(step);
  return outputs;
}

// The gates, with and without a factor, and add_scaled.
inline Outputs RunGates(const Kernels& kernels, const Inputs& inputs, size_t n) {
  Source source(inputs);
  GuardedBuffer<float> x(n, inputs.guard), fresh(n, inputs.guard);
  FillFloats(&source, &x);
  FillFloats(&source, &fresh);
  if (inputs.fill == Fill::kEdges) {
    // Where gelu clamps its argument, and where its exponential becomes 0.
    const float zero = std::sqrt(-2 * kExpMin);
    for (size_t i = 0; i < n; i += 3) {
      const float edge = std::copysign(i % 2 == 0 ? kGeluMax : zero, x[i]);
      x[i] = std::nextafter(edge, source.Below(2) == 0 ? 0.0f : 2 * edge);
    }
  } else {
    for (float& v : x) v *= 8.0f;  // so that the exponentials meet their ends
  }
  x.MakeReadOnly();
  fresh.MakeReadOnly();
  Outputs outputs;
  const auto run = [&](const float* from, auto slot) {
    GuardedBuffer<float> y(n, inputs.guard);
    std::copy(from, from + n, y.data());
    slot(y.data());
    outputs.Append(y);
  };
  for (const auto gate : {kernels.silu_mul, kernels.relu2_mul, kernels.gelu_mul}) {
    run(fresh.data(), [&](float* y) { gate(x.data(), n, y); });
    run(x.data(), [&](float* y) { gate(nullptr, n, y); });
  }
  run(fresh.data(), [&](float* y) { kernels.add_scaled(x.data(), source.Float(), n, y); });
  return outputs;
}

inline Outputs RunConv1dSilu(const Kernels& kernels, const Inputs& inputs, size_t channel_blocks,
                             size_t d_conv, size_t tokens, size_t gap) {
  Source source(inputs);
  const size_t channels = channel_blocks * kLanes;
  GuardedBuffer<float> weights(channels * d_conv, inputs.guard), bias(channels, inputs.guard);
  GuardedBuffer<float> state(channels * (d_conv - 1), inputs.guard);
  GuardedBuffer<float> x((channels + gap) * tokens, inputs.guard);
  for (auto* buffer : {&weights, &bias, &state, &x}) FillFloats(&source, buffer);
  weights.MakeReadOnly();
  bias.MakeReadOnly();
  kernels.conv1d_silu(weights.data(), bias.data(), channel_blocks, d_conv, tokens, channels + gap,
                      state.data(), x.data());
  Outputs outputs;
  outputs.Append(state);
  outputs.Append(x);
  return outputs;
}

struct ScanShape {
  size_t tokens, channel_blocks, d_state;
  size_t gap = 0;  // floats between rows, a multiple of kLanes
};

inline Outputs RunSelectiveScan(const Kernels& kernels, const Inputs& inputs,
                                const ScanShape& shape) {
  Source source(inputs);
  const size_t channels = shape.channel_blocks * kLanes;
  const size_t stride = channels + shape.gap;
  const size_t bc_stride = RoundUp(shape.d_state, kLanes) + shape.gap;
  const size_t last_bc = (shape.tokens - 1) * bc_stride + shape.d_state;
  GuardedBuffer<float> x(stride * shape.tokens, inputs.guard);
  GuardedBuffer<float> dt(stride * shape.tokens, inputs.guard);
  GuardedBuffer<float> z(stride * shape.tokens, inputs.guard);
  GuardedBuffer<float> b(last_bc, inputs.guard, alignof(float));
  GuardedBuffer<float> c(last_bc, inputs.guard, alignof(float));
  GuardedBuffer<float> a(channels * shape.d_state, inputs.guard), d(channels, inputs.guard);
  GuardedBuffer<float> state(channels * shape.d_state, inputs.guard);
  for (auto* buffer : {&x, &dt, &z, &b, &c, &a, &d, &state}) FillFloats(&source, buffer);
  for (float& v : dt) v = std::fabs(v);
  for (float& v : a) v *= -8.0f * (inputs.fill == Fill::kEdges ? 1.0f : std::copysign(1.0f, v));
  for (auto* buffer : {&dt, &z, &b, &c, &a, &d}) buffer->MakeReadOnly();
  const SelectiveScanArgs args = {.tokens = shape.tokens,
                                  .channel_blocks = shape.channel_blocks,
                                  .d_state = shape.d_state,
                                  .stride = stride,
                                  .bc_stride = bc_stride,
                                  .x = x.data(),
                                  .dt = dt.data(),
                                  .z = z.data(),
                                  .b = b.data(),
                                  .c = c.data(),
                                  .a = a.data(),
                                  .d = d.data(),
                                  .state = state.data()};
  kernels.selective_scan(&args);
  Outputs outputs;
  outputs.Append(x);
  outputs.Append(state);
  return outputs;
}

struct SsdShape {
  size_t tokens, heads, head_begin, head_end, head_blocks, d_state, heads_per_group;
  size_t gap = 0;
};

inline Outputs RunSsdScan(const Kernels& kernels, const Inputs& inputs, const SsdShape& shape) {
  Source source(inputs);
  const size_t channels = shape.heads * shape.head_blocks * kLanes;
  const size_t groups = (shape.heads - 1) / shape.heads_per_group + 1;
  const size_t stride = channels + shape.gap;
  const size_t dt_stride = RoundUp(shape.heads, kLanes) + shape.gap;
  const size_t bc_stride = RoundUp(groups * shape.d_state, kLanes) + shape.gap;
  const size_t last_bc = (shape.tokens - 1) * bc_stride + groups * shape.d_state;
  GuardedBuffer<float> x(stride * shape.tokens, inputs.guard);
  GuardedBuffer<float> dt((shape.tokens - 1) * dt_stride + shape.heads, inputs.guard,
                          sizeof(float));
  GuardedBuffer<float> b(last_bc, inputs.guard, alignof(float));
  GuardedBuffer<float> c(last_bc, inputs.guard, alignof(float));
  GuardedBuffer<float> a(shape.heads, inputs.guard, alignof(float)), d(channels, inputs.guard);
  GuardedBuffer<float> state(channels * shape.d_state, inputs.guard);
  for (auto* buffer : {&x, &dt, &b, &c, &a, &d, &state}) FillFloats(&source, buffer);
  for (float& v : dt) v = std::fabs(v);
  for (float& v : a) v *= -8.0f * (inputs.fill == Fill::kEdges ? 1.0f : std::copysign(1.0f, v));
  for (auto* buffer : {&dt, &b, &c, &a, &d}) buffer->MakeReadOnly();
  const SsdScanArgs args = {.tokens = shape.tokens,
                            .head_begin = shape.head_begin,
                            .head_end = shape.head_end,
                            .head_blocks = shape.head_blocks,
                            .d_state = shape.d_state,
                            .heads_per_group = shape.heads_per_group,
                            .stride = stride,
                            .dt_stride = dt_stride,
                            .bc_stride = bc_stride,
                            .x = x.data(),
                            .dt = dt.data(),
                            .b = b.data(),
                            .c = c.data(),
                            .a = a.data(),
                            .d = d.data(),
                            .state = state.data(),
                            .values = nullptr,
                            .limits = nullptr};
  kernels.ssd_scan(&args);
  Outputs outputs;
  outputs.Append(x);
  outputs.Append(state);
  return outputs;
}

// State in 16 bits.
inline Outputs RunSsdScan16(const Kernels& kernels, const Inputs& inputs, const SsdShape& shape) {
  Source source(inputs);
  const size_t channels = shape.heads * shape.head_blocks * kLanes;
  const size_t groups = (shape.heads - 1) / shape.heads_per_group + 1;
  const size_t stride = channels + shape.gap;
  const size_t dt_stride = RoundUp(shape.heads, kLanes) + shape.gap;
  const size_t bc_stride = RoundUp(groups * shape.d_state, kLanes) + shape.gap;
  const size_t last_bc = (shape.tokens - 1) * bc_stride + groups * shape.d_state;
  GuardedBuffer<float> x(stride * shape.tokens, inputs.guard);
  GuardedBuffer<float> dt((shape.tokens - 1) * dt_stride + shape.heads, inputs.guard,
                          sizeof(float));
  GuardedBuffer<float> b(last_bc, inputs.guard, alignof(float));
  GuardedBuffer<float> c(last_bc, inputs.guard, alignof(float));
  GuardedBuffer<float> a(shape.heads, inputs.guard, alignof(float)), d(channels, inputs.guard);
  GuardedBuffer<int16_t> values(channels * shape.d_state, inputs.guard);
  GuardedBuffer<float> limits(channels, inputs.guard);
  for (auto* buffer : {&x, &dt, &b, &c, &a, &d, &limits}) FillFloats(&source, buffer);
  for (float& v : dt) v = std::fabs(v);
  for (float& v : a) v *= -8.0f * (inputs.fill == Fill::kEdges ? 1.0f : std::copysign(1.0f, v));
  for (float& v : limits) v = std::fabs(v);  // no value is beyond the limit
  for (int16_t& v : values) v = static_cast<int16_t>(static_cast<int>(source.Below(65535)) - 32767);
  for (auto* buffer : {&dt, &b, &c, &a, &d}) buffer->MakeReadOnly();
  const SsdScanArgs args = {.tokens = shape.tokens,
                            .head_begin = shape.head_begin,
                            .head_end = shape.head_end,
                            .head_blocks = shape.head_blocks,
                            .d_state = shape.d_state,
                            .heads_per_group = shape.heads_per_group,
                            .stride = stride,
                            .dt_stride = dt_stride,
                            .bc_stride = bc_stride,
                            .x = x.data(),
                            .dt = dt.data(),
                            .b = b.data(),
                            .c = c.data(),
                            .a = a.data(),
                            .d = d.data(),
                            .state = nullptr,
                            .values = values.data(),
                            .limits = limits.data()};
  kernels.ssd_scan_16(&args);
  Outputs outputs;
  outputs.Append(x);
  outputs.Append(values);
  outputs.Append(limits);
  return outputs;
}

}  // namespace adder
