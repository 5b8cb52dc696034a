// The Mamba-3 slots of kScalarKernels against their equations in double precision, and against one
// hash that must come out on every compiler and processor. Tolerances as in kernels_scalar_test.cc.
#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdio>

#include "tests/kernel_cases_mamba3.h"

namespace adder {
namespace {

constexpr double kUnit = 0x1p-24;
constexpr double kTurn = 6.283185307179586;
const Kernels& kernels = kScalarKernels;

std::vector<float> Floats(Source* source, size_t n) {
  std::vector<float> v(n);
  for (float& x : v) x = source->Float();
  return v;
}

double Sigmoid64(double x) { return 1 / (1 + std::exp(-x)); }

// Angles in radians are summed without ever taking turns off; the pairs of B and C rotate by them.
TEST(KernelsMamba3, RotateAddsBiasesAndTurnsPairs) {
  constexpr size_t kTokens = 40, kHeads = 4, kHeadsPerGroup = 2, kGroups = 2, kRank = 2;
  constexpr size_t kStates = 11, kPairs = kStates / 2, kAngles = 4;
  constexpr size_t kBc = kRank * kGroups * kStates, kKq = kHeads * kRank * kStates;
  Source source({});
  const std::vector<float> b = Floats(&source, kTokens * kBc), c = Floats(&source, kTokens * kBc);
  const std::vector<float> b_bias = Floats(&source, kKq), c_bias = Floats(&source, kKq);
  const std::vector<float> angle = Floats(&source, kTokens * kLanes);
  std::vector<float> dt = Floats(&source, kTokens * kHeads);
  for (float& v : dt) v = std::fabs(v);
  std::vector<float> turns(kHeads * kLanes, 0.25f);
  std::vector<float> k(kTokens * kKq, 7.0f), q(kTokens * kKq, 7.0f);
  const Mamba3RotateArgs args = {kTokens,       1,         3,
                                 kStates,       kRank,     kGroups,
                                 kAngles,       2,         kBc,
                                 kHeads,        kLanes,    kKq,
                                 b.data(),      c.data(),  b_bias.data(),
                                 c_bias.data(), dt.data(), angle.data(),
                                 turns.data(),  k.data(),  q.data()};
  kernels.mamba3_rotate(&args);

  std::vector<double> radians(kHeads * kAngles, kTurn / 4);
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t h = 0; h < kHeads; ++h) {
      const bool ours = h >= 1 && h < 3;
      for (size_t s = 0; s < kAngles; ++s) {
        radians[h * kAngles + s] +=
            kTurn / 2 * std::tanh(double{angle[t * kLanes + s]}) * dt[t * kHeads + h];
      }
      for (size_t r = 0; r < kRank; ++r) {
        const size_t to = t * kKq + (h * kRank + r) * kStates;
        const size_t from = t * kBc + (r * kGroups + h / kHeadsPerGroup) * kStates;
        const size_t bias = (h * kRank + r) * kStates;
        for (const bool key : {true, false}) {
          const auto& [in, add, out] = key ? std::tie(b, b_bias, k) : std::tie(c, c_bias, q);
          for (size_t n = 0; n < kStates; ++n) {
            if (!ours) {
              ASSERT_EQ(out[to + n], 7.0f);
              continue;
            }
            const double value = double{in[from + n]} + add[bias + n];
            double expected = value;
            if (n % kPairs < kAngles && n < 2 * kPairs) {
              const double th = radians[h * kAngles + n % kPairs];
              const size_t other = n < kPairs ? n + kPairs : n - kPairs;
              const double partner = double{in[from + other]} + add[bias + other];
              expected = n < kPairs ? value * std::cos(th) - partner * std::sin(th)
                                    : partner * std::sin(th) + value * std::cos(th);
            }
            // Every token adds up to 2 turns with the error of tanh and rounds a sum of 2.5 turns.
            const double tolerance = kUnit * (20 + 40 * kTurn * static_cast<double>(t + 1));
            ASSERT_NEAR(out[to + n], expected, tolerance) << t << " " << h << " " << n;
          }
        }
      }
      for (size_t s = 0; s < kAngles; ++s) ASSERT_LE(std::fabs(turns[h * kLanes + s]), 0.5f);
    }
  }
}

TEST(KernelsMamba3, ScanLooksOneTokenBack) {
  constexpr size_t kTokens = 5, kHeads = 4, kHeadBlocks = 2, kStates = 6;
  constexpr size_t kHeadDim = kHeadBlocks * kLanes, kChannels = kHeads * kHeadDim;
  constexpr float kFloor = 0.6f;
  for (const size_t rank : Sizes{1, 3}) {
    const size_t kq = kHeads * rank * kStates;
    Source source({});
    const std::vector<float> x = Floats(&source, kTokens * kChannels);
    std::vector<float> dt = Floats(&source, kTokens * kHeads);
    for (float& v : dt) v = std::fabs(v);
    const std::vector<float> a = Floats(&source, kTokens * kHeads);
    const std::vector<float> trap = Floats(&source, kTokens * kHeads);
    const std::vector<float> k = Floats(&source, kTokens * kq), q = Floats(&source, kTokens * kq);
    const std::vector<float> mimo_x = Floats(&source, rank * kChannels);
    const std::vector<float> d = Floats(&source, kChannels);
    const std::vector<float> old = Floats(&source, kChannels * kStates);
    const std::vector<float> old_k = Floats(&source, kq), old_x = Floats(&source, kChannels);
    std::vector<float> state = old, k_last = old_k, x_last = old_x;
    std::vector<float> y(kTokens * rank * kChannels, 7.0f);
    const bool mimo = rank > 1;
    const Mamba3ScanArgs args = {kTokens,
                                 1,
                                 3,
                                 kHeadBlocks,
                                 kStates,
                                 rank,
                                 kChannels,
                                 kHeads,
                                 kq,
                                 kFloor,
                                 x.data(),
                                 dt.data(),
                                 a.data(),
                                 trap.data(),
                                 k.data(),
                                 q.data(),
                                 mimo ? mimo_x.data() : nullptr,
                                 d.data(),
                                 state.data(),
                                 k_last.data(),
                                 x_last.data(),
                                 y.data()};
    kernels.mamba3_scan(&args);
    for (size_t channel = 0; channel < kChannels; ++channel) {
      const size_t head = channel / kHeadDim;
      const size_t first = channel / kLanes * kStates * kLanes + channel % kLanes;
      if (head < 1 || head >= 3) {
        for (size_t n = 0; n < kStates; ++n)
          EXPECT_EQ(state[first + n * kLanes], old[first + n * kLanes]);
        EXPECT_EQ(x_last[channel], old_x[channel]);
        EXPECT_EQ(y[channel], 7.0f);
        continue;
      }
      std::vector<double> s(kStates), magnitude(kStates);
      for (size_t n = 0; n < kStates; ++n) {
        s[n] = old[first + n * kLanes];
        magnitude[n] = std::fabs(s[n]);
      }
      for (size_t t = 0; t < kTokens; ++t) {
        const size_t i = t * kHeads + head;
        const double f = a[i] >= 0 ? 1.0 + a[i] : 1 / (1.0 - a[i]);
        const double decay = std::exp(-std::max(f, double{kFloor}) * dt[i]);
        const double w = Sigmoid64(trap[i]);
        const auto v = [&](size_t r, double input) {
          return mimo ? input * mimo_x[r * kChannels + channel] : input;
        };
        for (size_t n = 0; n < kStates; ++n) {
          s[n] *= decay;
          magnitude[n] *= decay;
          for (size_t r = 0; r < rank; ++r) {
            const size_t row = (head * rank + r) * kStates + n;
            const double k_before = t == 0 ? old_k[row] : k[(t - 1) * kq + row];
            const double x_before = t == 0 ? old_x[channel] : x[(t - 1) * kChannels + channel];
            const double before = (1 - w) * dt[i] * decay * v(r, x_before) * k_before;
            const double now = w * dt[i] * v(r, x[t * kChannels + channel]) * k[t * kq + row];
            s[n] += before + now;
            magnitude[n] += std::fabs(before) + std::fabs(now);
          }
        }
        for (size_t r = 0; r < rank; ++r) {
          double expected = d[channel] * v(r, x[t * kChannels + channel]);
          double scale = std::fabs(expected);
          for (size_t n = 0; n < kStates; ++n) {
            const double qn = q[t * kq + (head * rank + r) * kStates + n];
            expected += s[n] * qn;
            scale += magnitude[n] * std::fabs(qn);
          }
          EXPECT_NEAR(y[(t * rank + r) * kChannels + channel], expected,
                      scale * kUnit * static_cast<double>(kTokens * 32 + kStates + 12));
        }
      }
      for (size_t n = 0; n < kStates; ++n) {
        EXPECT_NEAR(state[first + n * kLanes], s[n], magnitude[n] * kUnit * (kTokens * 32));
      }
      EXPECT_EQ(x_last[channel], x[(kTokens - 1) * kChannels + channel]);
    }
    for (size_t i = 0; i < kq; ++i) {
      const size_t head = i / (rank * kStates);
      EXPECT_EQ(k_last[i], head < 1 || head >= 3 ? old_k[i] : k[(kTokens - 1) * kq + i]);
    }
  }
}

TEST(KernelsMamba3, MimoGateSumsTheRanks) {
  constexpr size_t kRank = 3, kN = 32;
  Source source({});
  const std::vector<float> y = Floats(&source, kRank * kN), z = Floats(&source, kN);
  const std::vector<float> mimo_z = Floats(&source, kRank * kN);
  const std::vector<float> mimo_o = Floats(&source, kRank * kN);
  std::vector<float> out(kN, 7.0f);
  kernels.mimo_gate(y.data(), z.data(), mimo_z.data(), mimo_o.data(), kRank, kN, out.data());
  for (size_t i = 0; i < kN; ++i) {
    double expected = 0, scale = 0;
    for (size_t r = 0; r < kRank; ++r) {
      const double gate = double{z[i]} * mimo_z[r * kN + i];
      const double term = y[r * kN + i] * gate * Sigmoid64(gate) * mimo_o[r * kN + i];
      expected += term;
      scale += std::fabs(term);
    }
    EXPECT_NEAR(out[i], expected, 24 * kUnit * scale);
  }
}

// As KernelsScalar.GoldenHash.
TEST(KernelsMamba3, GoldenHash) {
  XXH64_state_t* hash = XXH64_createState();
  XXH64_reset(hash, 0);
  const auto add = [&](const Outputs& outputs) {
    XXH64_update(hash, outputs.floats.data(), outputs.floats.size() * sizeof(uint32_t));
  };
  for (const Fill fill : kAllFills) {
    const Inputs inputs = {fill, 7};
    add(RunMamba3Rotate(kernels, inputs, {9, 4, 0, 4, 2, 16, 2, 2, 7}));
    add(RunMamba3Scan(kernels, inputs, {9, 4, 0, 4, 2, 16, 1, 2, 7}));
    add(RunMamba3Scan(kernels, inputs, {9, 4, 0, 4, 2, 16, 3, 2, 7}));
    add(RunMimoGate(kernels, inputs, 3, 1024));
  }
  const uint64_t digest = XXH64_digest(hash);
  XXH64_freeState(hash);
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(digest));
  EXPECT_STREQ(text, "5a2fd47db82b34e0");
}

}  // namespace
}  // namespace adder
