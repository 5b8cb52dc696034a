// kScalarKernels, the definition of every slot: against the equations in double precision, and
// against one hash that must come out on every compiler and processor.
//
// Tolerances. One float operation has relative error u = 2^-24. A chain of n fmaf has an error of
// at most n u times the sum of the magnitudes of its terms ("scale" below); the inputs lie within
// -2..2, so u also covers what magnitudes below 1 round to. Exp2, Silu and Softplus add 4e-7 < 8 u.
#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "runtime/scalar_math.h"
#include "tests/kernel_cases.h"

namespace adder {
namespace {

constexpr double kUnit = 0x1p-24;
const Kernels& kernels = kScalarKernels;

std::vector<float> Floats(Source* source, size_t n) {
  std::vector<float> v(n);
  for (float& x : v) x = source->Float();
  return v;
}

double Silu64(double x) { return x / (1 + std::exp(-x)); }

TEST(KernelsScalar, QuantizeRowKeepsEachGroupWithinHalfAStep) {
  Source source({});
  for (const size_t n : Sizes{1, 31, 32, 33, 100}) {
    const std::vector<float> x = Floats(&source, n);
    std::vector<int8_t> values(Groups(n) * kGroup, 99);
    std::vector<float> scales(Groups(n));
    std::vector<int32_t> sums(Groups(n));
    kernels.quantize_row(x.data(), n, values.data(), scales.data(), sums.data());
    for (size_t g = 0; g < Groups(n); ++g) {
      int32_t sum = 0, largest = 0;
      for (size_t i = g * kGroup; i < (g + 1) * kGroup; ++i) {
        const double expected = i < n ? x[i] : 0.0;
        // Half a step, and the roundings of the inverse, the product and the scale.
        EXPECT_NEAR(values[i] * double{scales[g]}, expected, scales[g] * (0.5 + 127 * 4 * kUnit));
        sum += values[i];
        largest = std::max(largest, std::abs(int32_t{values[i]}));
      }
      EXPECT_EQ(sums[g], sum);
      EXPECT_EQ(largest, 127);
    }
  }
}

TEST(KernelsScalar, QuantizeRowOfSpecialGroups) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const float least = kQuantizeMin;
  struct Row {
    float odd_one, scale;
    int8_t value;
  };
  for (const Row& row :
       {Row{kNan, kNan, 0}, Row{-kInfinity, kNan, 0}, Row{0.0f, 0.0f, 0},
        Row{std::nextafter(least, 0.0f), 0.0f, 0}, Row{least, least * (1.0f / 127.0f), 127},
        Row{-FLT_MAX, FLT_MAX * (1.0f / 127.0f), -127}}) {
    std::vector<float> x(kGroup, 0.0f);
    x[5] = row.odd_one;
    int8_t values[kGroup];
    float scale;
    int32_t sum;
    kernels.quantize_row(x.data(), kGroup, values, &scale, &sum);
    if (std::isnan(row.scale)) {
      EXPECT_TRUE(std::isnan(scale));
    } else {
      EXPECT_EQ(scale, row.scale);
    }
    EXPECT_EQ(sum, row.value);
    for (size_t i = 0; i < kGroup; ++i) EXPECT_EQ(values[i], i == 5 ? row.value : 0);
  }
}

TEST(KernelsScalar, QuantizeRowRoundsTiesToEven) {
  std::vector<float> x = {127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 126.5f, 125.5f};  // inverse is 1
  int8_t values[kGroup];
  float scale;
  int32_t sum;
  kernels.quantize_row(x.data(), x.size(), values, &scale, &sum);
  const int8_t expected[] = {127, 0, 2, 2, 0, -2, 126, 126};
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(values[i], expected[i]) << x[i];
}

// What a matmul test needs of its shape and outputs.
struct Product {
  size_t row_blocks = 3, groups = 4, tokens = 3;
  size_t rows() const { return row_blocks * kLanes; }
  size_t cols() const { return groups * kGroup; }
};

TEST(KernelsScalar, QuantizedMatmulsAreSumsOfWeightsTimesActivations) {
  const Product p;
  Source source({});
  // Row-major matrices first, then the layouts of quant/qtypes.h from them.
  std::vector<int> q8(p.rows() * p.cols()), q4(p.rows() * p.cols());
  for (int& w : q8) w = source.Weight();
  for (int& w : q4) w = static_cast<int>(source.Below(16));
  std::vector<int8_t> packed8(q8.size());
  std::vector<uint8_t> packed4(q4.size() / 2);
  for (size_t row = 0; row < p.rows(); ++row) {
    for (size_t col = 0; col < p.cols(); ++col) {
      const size_t b = row / kLanes, r = row % kLanes, i = row * p.cols() + col;
      packed8[((b * p.cols() / 4 + col / 4) * kLanes + r) * 4 + col % 4] =
          static_cast<int8_t>(q8[i]);
      const size_t g = col / kGroup, k = col % kGroup % 16;
      const int shift = col % kGroup < 16 ? 0 : 4;
      uint8_t& byte = packed4[(((b * p.groups + g) * 4 + k / 4) * kLanes + r) * 4 + k % 4];
      byte = static_cast<uint8_t>(byte | q4[i] << shift);
    }
  }
  const std::vector<float> row_scales = Floats(&source, p.rows());
  std::vector<uint16_t> scales(p.rows() * p.groups);
  for (uint16_t& s : scales) s = source.Half();
  Activations activations(&source, p.tokens * p.groups, {});
  const QuantizedRows x = activations.rows();
  std::vector<float> y8(p.tokens * p.rows()), y4(p.tokens * p.rows());
  kernels.matmul_q8(packed8.data(), row_scales.data(), p.row_blocks, p.groups, &x, p.tokens,
                    y8.data(), p.rows());
  kernels.matmul_q4(packed4.data(), scales.data(), p.row_blocks, p.groups, &x, p.tokens, y4.data(),
                    p.rows());

  for (size_t t = 0; t < p.tokens; ++t) {
    for (size_t row = 0; row < p.rows(); ++row) {
      double sum8 = 0, scale8 = 0, sum4 = 0, scale4 = 0;
      for (size_t col = 0; col < p.cols(); ++col) {
        const size_t g = col / kGroup, i = row * p.cols() + col;
        const double a = double{x.scales[t * p.groups + g]} * x.values[t * p.cols() + col];
        const double w8 = double{row_scales[row]} * q8[i];
        const double w4 =
            double{F16ToF32(scales[(row / kLanes * p.groups + g) * kLanes + row % kLanes])} *
            (q4[i] - 8);
        sum8 += w8 * a;
        scale8 += std::fabs(w8 * a);
        sum4 += w4 * a;
        scale4 += std::fabs(w4 * a);
      }
      const double steps = static_cast<double>(p.groups) + 2;
      EXPECT_NEAR(y8[t * p.rows() + row], sum8, steps * kUnit * scale8);
      EXPECT_NEAR(y4[t * p.rows() + row], sum4, steps * kUnit * scale4);
    }
  }
}

TEST(KernelsScalar, FloatMatmulsAreSumsOfWeightsTimesActivations) {
  constexpr size_t kBlocks = 3, kCols = 37, kTokens = 2, kRows = kBlocks * kLanes;
  Source source({});
  const std::vector<float> w32 = Floats(&source, kRows * kCols);
  std::vector<uint16_t> w16(w32.size());
  for (size_t i = 0; i < w16.size(); ++i) w16[i] = F32ToF16(w32[i]);
  const std::vector<float> x = Floats(&source, kTokens * 48);
  std::vector<float> y32(kTokens * kRows), y16(kTokens * kRows);
  kernels.matmul_f32(w32.data(), kBlocks, kCols, x.data(), 48, kTokens, y32.data(), kRows);
  kernels.matmul_f16(w16.data(), kBlocks, kCols, x.data(), 48, kTokens, y16.data(), kRows);
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t row = 0; row < kRows; ++row) {
      double sum32 = 0, sum16 = 0, scale = 0;
      for (size_t k = 0; k < kCols; ++k) {
        const size_t i = (row / kLanes * kCols + k) * kLanes + row % kLanes;
        sum32 += double{w32[i]} * x[t * 48 + k];
        sum16 += double{F16ToF32(w16[i])} * x[t * 48 + k];
        scale += std::fabs(double{w32[i]} * x[t * 48 + k]);
      }
      EXPECT_NEAR(y32[t * kRows + row], sum32, kCols * kUnit * scale);
      EXPECT_NEAR(y16[t * kRows + row], sum16, kCols * kUnit * scale);
    }
  }
}

TEST(KernelsScalar, RmsNorm) {
  constexpr size_t kN = 75, kCount = 70;  // five channels of padding
  Source source({});
  std::vector<float> x = Floats(&source, kN);
  std::fill(x.begin() + kCount, x.end(), 0.0f);
  const std::vector<float> weight = Floats(&source, kN);
  std::vector<float> y(kN), plain(kN);
  kernels.rms_norm(x.data(), weight.data(), kN, kCount, 1e-5f, y.data());
  kernels.rms_norm(x.data(), nullptr, kN, kCount, 1e-5f, plain.data());
  double squares = 0;
  for (const float v : x) squares += double{v} * v;
  const double inverse = 1 / std::sqrt(squares / kCount + 1e-5);
  for (size_t i = 0; i < kN; ++i) {
    const double expected = x[i] * inverse;
    EXPECT_NEAR(plain[i], expected, 16 * kUnit * std::fabs(expected));
    EXPECT_NEAR(y[i], expected * weight[i], 16 * kUnit * std::fabs(expected * weight[i]));
  }
}

TEST(KernelsScalar, Elementwise) {
  constexpr size_t kN = 64;
  Source source({});
  const std::vector<float> x = Floats(&source, kN), y = Floats(&source, kN);
  std::vector<float> gated = y, sum = y, step = y;
  kernels.silu_mul(x.data(), kN, gated.data());
  kernels.add(x.data(), kN, sum.data());
  kernels.softplus(x.data(), kN, 0.25f, 1.5f, step.data());
  for (size_t i = 0; i < kN; ++i) {
    EXPECT_NEAR(gated[i], y[i] * Silu64(x[i]), 10 * kUnit * std::fabs(y[i] * Silu64(x[i])));
    EXPECT_EQ(sum[i], x[i] + y[i]);
    const double softplus = std::log1p(std::exp(double{x[i]} + y[i]));
    // The rounding of x + y is at most 2 u and softplus' slope at most 1.
    EXPECT_NEAR(step[i], std::clamp(softplus, 0.25, 1.5), 12 * kUnit * softplus + 2 * kUnit);
  }
}

TEST(KernelsScalar, GatesMultiplyOrReplace) {
  constexpr size_t kN = 64;
  Source source({});
  const std::vector<float> z = Floats(&source, kN), y = Floats(&source, kN);
  const auto gated = [&](auto gate, const float* factor) {
    std::vector<float> out = y;
    gate(factor, kN, out.data());
    return out;
  };
  const auto relu2 = [](double x) { return x > 0 ? x * x : 0.0; };
  const auto gelu = [](double x) { return 0.5 * x * std::erfc(-x * std::sqrt(0.5)); };
  const auto silu_mul = gated(kernels.silu_mul, z.data()), silu = gated(kernels.silu_mul, nullptr);
  const auto relu2_mul = gated(kernels.relu2_mul, z.data());
  const auto relu2_only = gated(kernels.relu2_mul, nullptr);
  const auto gelu_mul = gated(kernels.gelu_mul, z.data()),
             gelu_only = gated(kernels.gelu_mul, nullptr);
  std::vector<float> sum = y;
  kernels.add_scaled(z.data(), 0.75f, kN, sum.data());
  for (size_t i = 0; i < kN; ++i) {
    EXPECT_NEAR(silu_mul[i], y[i] * Silu64(z[i]), 20 * kUnit);
    EXPECT_NEAR(silu[i], Silu64(y[i]), 10 * kUnit);
    EXPECT_NEAR(relu2_mul[i], y[i] * relu2(z[i]), 8 * kUnit);
    EXPECT_NEAR(relu2_only[i], relu2(y[i]), 4 * kUnit);
    EXPECT_NEAR(gelu_mul[i], y[i] * gelu(z[i]), 10 * kUnit);
    EXPECT_NEAR(gelu_only[i], gelu(y[i]), 5 * kUnit);
    EXPECT_EQ(sum[i], std::fmaf(0.75f, z[i], y[i]));
  }
}

TEST(KernelsScalar, Conv1dSiluSeesTheInputsBeforeTheCall) {
  constexpr size_t kBlocks = 2, kTaps = 4, kTokens = 6, kChannels = kBlocks * kLanes;
  Source source({});
  const std::vector<float> weights = Floats(&source, kChannels * kTaps);
  const std::vector<float> bias = Floats(&source, kChannels);
  const std::vector<float> old = Floats(&source, kChannels * (kTaps - 1));
  const std::vector<float> x = Floats(&source, kChannels * kTokens);
  std::vector<float> state = old, y = x;
  kernels.conv1d_silu(weights.data(), bias.data(), kBlocks, kTaps, kTokens, kChannels, state.data(),
                      y.data());
  for (size_t channel = 0; channel < kChannels; ++channel) {
    const size_t b = channel / kLanes, l = channel % kLanes;
    std::vector<double> inputs;
    for (size_t j = 0; j < kTaps - 1; ++j) {
      inputs.push_back(old[(b * (kTaps - 1) + j) * kLanes + l]);
    }
    for (size_t t = 0; t < kTokens; ++t) inputs.push_back(x[t * kChannels + channel]);
    for (size_t t = 0; t < kTokens; ++t) {
      double sum = bias[channel], scale = std::fabs(sum);
      for (size_t j = 0; j < kTaps; ++j) {
        const double term = weights[(b * kTaps + j) * kLanes + l] * inputs[t + j];
        sum += term;
        scale += std::fabs(term);
      }
      // SiLU's slope is at most 1.1.
      EXPECT_NEAR(y[t * kChannels + channel], Silu64(sum), 1.1 * (kTaps + 8) * kUnit * scale);
    }
    for (size_t j = 0; j < kTaps - 1; ++j) {
      EXPECT_EQ(state[(b * (kTaps - 1) + j) * kLanes + l], inputs[kTokens + j]);
    }
  }
}

// exp(dt A) S + dt x B and C S + D x in double precision, for one channel of either scan. Returns y
// of every token and leaves S. `scale` is the sum of magnitudes behind the last y.
struct ReferenceScan {
  std::vector<double> state, magnitude;
  double scale = 0;

  double Step(double dt, double x, const std::vector<double>& log2_decay, const float* b,
              const float* c, double d) {
    double y = d * x;
    scale = std::fabs(y);
    for (size_t n = 0; n < state.size(); ++n) {
      const double decay = std::exp2(dt * log2_decay[n]);
      state[n] = decay * state[n] + dt * x * b[n];
      magnitude[n] = decay * magnitude[n] + std::fabs(dt * x * b[n]);
      y += state[n] * c[n];
      scale += magnitude[n] * std::fabs(c[n]);
    }
    return y;
  }
};

// Of each token the decay has the error of Exp2 and of dt * a (at most 16 in magnitude here), its
// update a few roundings; the sum over states one per state.
double ScanTolerance(size_t tokens, size_t d_state) {
  return kUnit * static_cast<double>(tokens * 32 + d_state + 12);
}

TEST(KernelsScalar, SelectiveScan) {
  constexpr size_t kBlocks = 2, kStates = 5, kTokens = 7, kChannels = kBlocks * kLanes;
  constexpr size_t kBcStride = kLanes;
  Source source({});
  const std::vector<float> x = Floats(&source, kTokens * kChannels);
  const std::vector<float> z = Floats(&source, kTokens * kChannels);
  std::vector<float> dt = Floats(&source, kTokens * kChannels);
  for (float& v : dt) v = std::fabs(v);
  const std::vector<float> b = Floats(&source, kTokens * kBcStride);
  const std::vector<float> c = Floats(&source, kTokens * kBcStride);
  std::vector<float> a = Floats(&source, kChannels * kStates);
  for (float& v : a) v = -4 * std::fabs(v);
  const std::vector<float> d = Floats(&source, kChannels);
  const std::vector<float> old = Floats(&source, kChannels * kStates);
  std::vector<float> state = old, y = x;
  const SelectiveScanArgs args = {kTokens,  kBlocks,   kStates,     kChannels, kBcStride,
                                  y.data(), dt.data(), z.data(),    b.data(),  c.data(),
                                  a.data(), d.data(),  state.data()};
  kernels.selective_scan(&args);
  for (size_t channel = 0; channel < kChannels; ++channel) {
    const size_t first = channel / kLanes * kStates * kLanes + channel % kLanes;
    ReferenceScan scan;
    std::vector<double> log2_decay;
    for (size_t n = 0; n < kStates; ++n) {
      scan.state.push_back(old[first + n * kLanes]);
      scan.magnitude.push_back(std::fabs(old[first + n * kLanes]));
      log2_decay.push_back(a[first + n * kLanes]);
    }
    for (size_t t = 0; t < kTokens; ++t) {
      const size_t i = t * kChannels + channel;
      const double sum =
          scan.Step(dt[i], x[i], log2_decay, &b[t * kBcStride], &c[t * kBcStride], d[channel]);
      const double gate = Silu64(z[i]);
      EXPECT_NEAR(y[i], sum * gate, ScanTolerance(kTokens, kStates) * scan.scale * std::fabs(gate));
    }
    for (size_t n = 0; n < kStates; ++n) {
      EXPECT_NEAR(state[first + n * kLanes], scan.state[n],
                  ScanTolerance(kTokens, kStates) * scan.magnitude[n]);
    }
  }
}

TEST(KernelsScalar, SoftmaxInPartsGivesShares) {
  constexpr size_t kScores = 5 * kLanes, kPart = 2 * kLanes;
  Source source({});
  std::vector<float> x = Floats(&source, kScores);
  for (float& v : x) v *= 4;
  for (const size_t masked : {size_t{0}, size_t{3}, kPart + 7}) {
    x[masked] = -std::numeric_limits<float>::infinity();
  }
  double expected_sum = 0;
  for (const float v : x) expected_sum += std::exp(double{v});

  std::vector<float> y = x;
  float largest = -std::numeric_limits<float>::infinity();
  double sum = 0;
  for (size_t begin = 0; begin < kScores; begin += kPart) {
    const float before = largest;
    const size_t n = std::min(kPart, kScores - begin);
    const float part = kernels.softmax(&y[begin], n, &largest);
    const double rescale = std::exp(double{before} - largest);
    for (size_t i = 0; i < begin; ++i) y[i] = static_cast<float>(y[i] * rescale);
    sum = sum * rescale + part;
  }
  EXPECT_EQ(largest, *std::max_element(x.begin(), x.end()));
  for (size_t i = 0; i < kScores; ++i) {
    const double share = std::exp(double{x[i]}) / expected_sum;
    EXPECT_NEAR(y[i] / sum, share, 1e-6 * share);
  }
}

TEST(KernelsScalar, SsdScanTouchesOnlyItsHeads) {
  constexpr size_t kHeads = 4, kHeadBlocks = 2, kStates = 6, kTokens = 5, kHeadsPerGroup = 2;
  constexpr size_t kHeadDim = kHeadBlocks * kLanes, kChannels = kHeads * kHeadDim;
  constexpr size_t kStride = kLanes;  // of dt, b and c
  Source source({});
  const std::vector<float> x = Floats(&source, kTokens * kChannels);
  std::vector<float> dt = Floats(&source, kTokens * kStride), a = Floats(&source, kHeads);
  for (float& v : dt) v = std::fabs(v);
  for (float& v : a) v = -4 * std::fabs(v);
  const std::vector<float> b = Floats(&source, kTokens * kStride);
  const std::vector<float> c = Floats(&source, kTokens * kStride);
  const std::vector<float> d = Floats(&source, kChannels);
  const std::vector<float> old = Floats(&source, kChannels * kStates);
  std::vector<float> state = old, y = x;
  const SsdScanArgs args = {kTokens,   1,        3,        kHeadBlocks,  kStates,   kHeadsPerGroup,
                            kChannels, kStride,  kStride,  y.data(),     dt.data(), b.data(),
                            c.data(),  a.data(), d.data(), state.data(), nullptr,   nullptr};
  kernels.ssd_scan(&args);
  for (size_t channel = 0; channel < kChannels; ++channel) {
    const size_t head = channel / kHeadDim, group = head / kHeadsPerGroup;
    const size_t first = channel / kLanes * kStates * kLanes + channel % kLanes;
    ReferenceScan scan;
    for (size_t n = 0; n < kStates; ++n) {
      scan.state.push_back(old[first + n * kLanes]);
      scan.magnitude.push_back(std::fabs(old[first + n * kLanes]));
    }
    const bool ours = head >= 1 && head < 3;
    const std::vector<double> log2_decay(kStates, a[head]);
    for (size_t t = 0; t < kTokens; ++t) {
      const size_t i = t * kChannels + channel, bc = t * kStride + group * kStates;
      if (!ours) {
        EXPECT_EQ(y[i], x[i]);
        continue;
      }
      const double sum =
          scan.Step(dt[t * kStride + head], x[i], log2_decay, &b[bc], &c[bc], d[channel]);
      EXPECT_NEAR(y[i], sum, ScanTolerance(kTokens, kStates) * scan.scale);
    }
    for (size_t n = 0; n < kStates; ++n) {
      EXPECT_NEAR(state[first + n * kLanes], scan.state[n],
                  ours ? ScanTolerance(kTokens, kStates) * scan.magnitude[n] : 0.0);
    }
  }
}

// XXH64 of the outputs of run(add, inputs) for every fill: equal for gcc and clang, x86 and Arm,
// debug and release, or the numeric contract is broken. Changes only with the contract itself.
template <typename Run>
std::string HashOfFills(const Run& run) {
  XXH64_state_t* hash = XXH64_createState();
  XXH64_reset(hash, 0);
  const auto add = [&](const Outputs& outputs) {
    XXH64_update(hash, outputs.floats.data(), outputs.floats.size() * sizeof(uint32_t));
    XXH64_update(hash, outputs.ints.data(), outputs.ints.size() * sizeof(int32_t));
  };
  for (const Fill fill : kAllFills) run(add, Inputs{fill, 7});
  const uint64_t digest = XXH64_digest(hash);
  XXH64_freeState(hash);
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(digest));
  return text;
}

TEST(KernelsScalar, GoldenHash) {
  EXPECT_EQ(HashOfFills([](const auto& add, const Inputs& inputs) {
              add(RunQuantizeRow(kernels, inputs, 1000));
              add(RunMatmulQ8(kernels, inputs, {3, 5 * kGroup, 3}));
              add(RunMatmulQ4(kernels, inputs, {3, 5 * kGroup, 3}));
              add(RunMatmulF16(kernels, inputs, {3, 77, 3}));
              add(RunMatmulF32(kernels, inputs, {3, 77, 3}));
              add(RunRmsNorm(kernels, inputs, 1001, true, false));
              add(RunElementwise(kernels, inputs, 4096));
              add(RunConv1dSilu(kernels, inputs, 3, 4, 9, 0));
              add(RunSelectiveScan(kernels, inputs, {9, 3, 16}));
              add(RunSsdScan(kernels, inputs, {9, 4, 0, 4, 2, 16, 2}));
            }),
            "6f36708873ea9c54");
}

TEST(KernelsScalar, GoldenHashOfSoftmax) {
  EXPECT_EQ(HashOfFills([](const auto& add, const Inputs& inputs) {
              add(RunSoftmax(kernels, inputs, 256, 0.5f));
            }),
            "5425f7a5b3d98e13");
}

TEST(KernelsScalar, GoldenHashOfGates) {
  EXPECT_EQ(HashOfFills([](const auto& add, const Inputs& inputs) {
              add(RunGates(kernels, inputs, 4096));
            }),
            "e77c7b07c44460f5");
}

}  // namespace
}  // namespace adder
