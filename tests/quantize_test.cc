#include "quant/quantize.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstring>
#include <vector>

#include "runtime/scalar_math.h"

namespace adder {
namespace {

// A small generator with the same numbers everywhere (the distributions of <random> are not).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  double Uniform() {  // in (0, 1)
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return (static_cast<double>(state_ >> 12) + 0.5) * 0x1p-52;
  }
  double Gaussian() {
    return std::sqrt(-2.0 * std::log(Uniform())) * std::cos(6.283185307179586 * Uniform());
  }
  double Student5() {
    double chi_square = 0.0;
    for (int i = 0; i < 5; ++i) chi_square += std::pow(Gaussian(), 2);
    return Gaussian() / std::sqrt(chi_square / 5.0);
  }

 private:
  uint64_t state_;
};

std::vector<float> Draw(size_t n, bool student) {
  Random random(7);
  std::vector<float> x(n);
  for (float& v : x) v = static_cast<float>(student ? random.Student5() : random.Gaussian());
  return x;
}

double WeightedError(const float* x, const float* importance, const GroupQ4& q) {
  double sum = 0.0;
  for (size_t i = 0; i < kGroup; ++i) {
    const double d = static_cast<double>(x[i]) -
                     static_cast<double>(F16ToF32(q.scale)) * (static_cast<int>(q.nibbles[i]) - 8);
    sum += (importance != nullptr ? static_cast<double>(importance[i]) : 1.0) * d * d;
  }
  return sum;
}

// The error with scale max |x| / 7, not rounded: what the search has to beat.
double AbsMaxError(const float* x) {
  float max = 0.0f;
  for (size_t i = 0; i < kGroup; ++i) max = std::max(max, std::fabs(x[i]));
  double sum = 0.0;
  for (size_t i = 0; i < kGroup; ++i) {
    const double scale = static_cast<double>(max) / 7.0;
    sum += std::pow(static_cast<double>(x[i]) - scale * std::nearbyint(x[i] / scale), 2);
  }
  return sum;
}

// The least error that a dense scan of scales of both signs finds.
double ScannedError(const float* x, const float* importance) {
  float max = 0.0f;
  for (size_t i = 0; i < kGroup; ++i) max = std::max(max, std::fabs(x[i]));
  double best = INFINITY;
  for (int step = 400; step <= 4000; ++step) {
    for (double sign : {-1.0, 1.0}) {
      const double scale = sign * static_cast<double>(max) / (static_cast<double>(step) / 100.0);
      double sum = 0.0;
      for (size_t i = 0; i < kGroup; ++i) {
        const double q = std::min(7.0, std::max(-8.0, std::nearbyint(x[i] / scale)));
        const double w = importance != nullptr ? static_cast<double>(importance[i]) : 1.0;
        sum += w * std::pow(static_cast<double>(x[i]) - scale * q, 2);
      }
      best = std::min(best, sum);
    }
  }
  return best;
}

struct Nmse {
  double search = 0.0, absmax = 0.0;
};

Nmse MeasureQ4(const std::vector<float>& x) {
  Nmse nmse;
  double energy = 0.0;
  for (float v : x) energy += static_cast<double>(v) * static_cast<double>(v);
  for (size_t i = 0; i < x.size(); i += kGroup) {
    GroupQ4 q;
    EXPECT_TRUE(QuantizeGroupQ4(&x[i], nullptr, &q));
    nmse.search += WeightedError(&x[i], nullptr, q) / energy;
    nmse.absmax += AbsMaxError(&x[i]) / energy;
  }
  return nmse;
}

TEST(Float16, EveryFiniteHalfSurvives) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    const float value = F16ToF32(half);
    if ((bits & 0x7fffu) > 0x7c00u) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(std::isnan(F16ToF32(F32ToF16(value))));
    } else {
      EXPECT_EQ(F32ToF16(value), half);
    }
  }
}

TEST(Float16, RoundsToNearestEven) {
  // Between neighbours: the midpoint goes to the even one, anything else to the nearer one.
  for (uint16_t half = 0; half < 0x7bffu; ++half) {
    const float low = F16ToF32(half), high = F16ToF32(static_cast<uint16_t>(half + 1));
    const float middle = low + (high - low) * 0.5f;  // exact
    const uint16_t even = static_cast<uint16_t>(half + (half & 1));
    EXPECT_EQ(F32ToF16(middle), even);
    EXPECT_EQ(F32ToF16(-middle), even | 0x8000u);
    EXPECT_EQ(F32ToF16(std::nextafter(middle, 0.0f)), half);
    EXPECT_EQ(F32ToF16(std::nextafter(middle, INFINITY)), half + 1);
  }
  EXPECT_EQ(F32ToF16(std::nextafter(65520.0f, 0.0f)), 0x7bffu);
  EXPECT_EQ(F32ToF16(65520.0f), 0x7c00u);
  EXPECT_EQ(F32ToF16(FLT_MAX), 0x7c00u);
  EXPECT_EQ(F32ToF16(-INFINITY), 0xfc00u);
  EXPECT_EQ(F32ToF16(FLT_TRUE_MIN), 0u);
  EXPECT_EQ(F32ToF16(-0.0f), 0x8000u);
}

TEST(RoundToEven, AgreesWithNearbyint) {
  for (float x = -130.0f; x <= 130.0f; x += 0.03125f) {
    EXPECT_EQ(RoundToEven(x), std::nearbyint(x)) << x;
  }
}

TEST(QuantizeQ8, ScaleIsTheLargestOver127) {
  const float x[] = {0.5f, -2.0f, 1.0f, 0.0f};
  const float scale = RowScaleQ8(x, 4);
  EXPECT_EQ(scale, 2.0f / 127.0f);
  EXPECT_EQ(ValueQ8(x[0], scale), 32);  // 31.75
  EXPECT_EQ(ValueQ8(x[1], scale), -127);
  EXPECT_EQ(ValueQ8(x[2], scale), 64);  // 63.5, or a rounding error off it: 64 is even as well
  EXPECT_EQ(ValueQ8(x[3], scale), 0);
}

TEST(QuantizeQ8, ErrorIsAtMostHalfAStep) {
  const std::vector<float> x = Draw(5000, true);
  const float scale = RowScaleQ8(x.data(), x.size());
  int extreme = 0;
  for (float v : x) {
    const int q = ValueQ8(v, scale);
    EXPECT_LE(std::abs(q), 127);
    EXPECT_NEAR(static_cast<float>(q) * scale, v, 0.5001f * scale);
    extreme = std::max(extreme, std::abs(q));
  }
  EXPECT_EQ(extreme, 127);
}

TEST(QuantizeQ8, TinyAndHugeRows) {
  for (float max : {0.0f, -0.0f, FLT_TRUE_MIN, FLT_MIN, 126.0f * FLT_MIN}) {
    const float x[] = {max, -max};
    EXPECT_EQ(RowScaleQ8(x, 2), 0.0f) << max;
    EXPECT_EQ(ValueQ8(max, 0.0f), 0);
  }
  for (float max : {127.5f * FLT_MIN, 1e-30f, 1.0f, 1e30f, FLT_MAX}) {
    const float x[] = {max, -max, max * 0.25f};
    const float scale = RowScaleQ8(x, 3);
    EXPECT_GE(scale, FLT_MIN) << max;
    EXPECT_EQ(ValueQ8(max, scale), 127) << max;
    EXPECT_EQ(ValueQ8(-max, scale), -127) << max;
    EXPECT_EQ(ValueQ8(max * 0.25f, scale), 32) << max;
  }
  EXPECT_EQ(RowScaleQ8(nullptr, 0), 0.0f);
}

TEST(QuantizeQ4, GaussianErrorIsThirtyPercentBelowAbsMax) {
  const Nmse nmse = MeasureQ4(Draw(kGroup * 4000, false));
  EXPECT_GT(nmse.search, 0.0063);
  EXPECT_LT(nmse.search, 0.0067);
  EXPECT_GT(nmse.absmax, 0.0092);
  EXPECT_LT(nmse.absmax, 0.0096);
}

TEST(QuantizeQ4, StudentErrorIsThirtyPercentBelowAbsMax) {
  const Nmse nmse = MeasureQ4(Draw(kGroup * 4000, true));
  EXPECT_GT(nmse.search, 0.0100);
  EXPECT_LT(nmse.search, 0.0110);
  EXPECT_GT(nmse.absmax, 0.0140);
  EXPECT_LT(nmse.absmax, 0.0156);
}

TEST(QuantizeQ4, SearchIsCloseToADenseScan) {
  const std::vector<float> x = Draw(kGroup * 100, true);
  double found = 0.0, scanned = 0.0;
  for (size_t i = 0; i < x.size(); i += kGroup) {
    GroupQ4 q;
    ASSERT_TRUE(QuantizeGroupQ4(&x[i], nullptr, &q));
    found += q.error;
    scanned += ScannedError(&x[i], nullptr);
  }
  EXPECT_LT(found, scanned * 1.01);
}

TEST(QuantizeQ4, ReportsTheErrorOfTheRoundedScale) {
  const std::vector<float> x = Draw(kGroup * 50, true);
  Random random(3);
  for (size_t i = 0; i < x.size(); i += kGroup) {
    float importance[kGroup];
    for (float& w : importance) w = static_cast<float>(random.Uniform() * 20.0);
    for (const float* w : std::initializer_list<const float*>{nullptr, importance}) {
      GroupQ4 q;
      ASSERT_TRUE(QuantizeGroupQ4(&x[i], w, &q));
      const double expected = WeightedError(&x[i], w, q);
      EXPECT_NEAR(q.error, expected, 1e-4 * expected);
      // Every nibble is the best one for the scale in the file.
      for (size_t k = 0; k < kGroup; ++k) {
        EXPECT_EQ(q.nibbles[k], NibbleQ4(x[i + k], F16ToF32(q.scale)));
      }
    }
  }
}

TEST(QuantizeQ4, NibbleIsTheNearest) {
  for (float scale : {0.75f, -0.75f, 1e-6f, -3000.0f}) {
    for (int step = -120; step <= 120; ++step) {
      const float x = scale * static_cast<float>(step) / 10.0f;
      int nearest = 0;
      for (int n = 1; n < 16; ++n) {
        if (std::fabs(x - scale * static_cast<float>(n - 8)) <
            std::fabs(x - scale * static_cast<float>(nearest - 8))) {
          nearest = n;
        }
      }
      const bool tie = (step % 10 == 5 || step % 10 == -5) && step > -80 && step < 70;
      if (!tie) {
        EXPECT_EQ(NibbleQ4(x, scale), nearest) << scale << " " << step;
      }
    }
  }
  EXPECT_EQ(NibbleQ4(5.0f, 0.0f), 8);
  EXPECT_EQ(NibbleQ4(FLT_MAX, 1e-7f), 15);  // the quotient overflows to infinity
  EXPECT_EQ(NibbleQ4(-FLT_MAX, 1e-7f), 0);
}

TEST(QuantizeQ4, ExactMultiplesAreExact) {
  for (float sign : {1.0f, -1.0f}) {
    float x[kGroup];
    for (size_t i = 0; i < kGroup; ++i) {
      x[i] = sign * 0.375f * static_cast<float>(static_cast<int>(i % 16) - 8);
    }
    GroupQ4 q;
    ASSERT_TRUE(QuantizeGroupQ4(x, nullptr, &q));
    EXPECT_EQ(F16ToF32(q.scale), sign * 0.375f);  // a negative scale where 8 is a positive extreme
    EXPECT_EQ(q.error, 0.0);
    for (size_t i = 0; i < kGroup; ++i) EXPECT_EQ(q.nibbles[i], i % 16);
  }
}

TEST(QuantizeQ4, ScalesWithPowersOfTwo) {
  const std::vector<float> x = Draw(kGroup, false);
  GroupQ4 q;
  ASSERT_TRUE(QuantizeGroupQ4(x.data(), nullptr, &q));
  for (int exponent : {-8, -3, 5, 12}) {
    float scaled[kGroup];
    for (size_t i = 0; i < kGroup; ++i) scaled[i] = std::ldexp(x[i], exponent);
    GroupQ4 r;
    ASSERT_TRUE(QuantizeGroupQ4(scaled, nullptr, &r));
    EXPECT_EQ(F16ToF32(r.scale), std::ldexp(F16ToF32(q.scale), exponent));
    EXPECT_EQ(std::memcmp(r.nibbles, q.nibbles, sizeof q.nibbles), 0);
  }
}

TEST(QuantizeQ4, ZerosAndTinyGroups) {
  for (float max : {0.0f, -0.0f, FLT_TRUE_MIN, 1e-30f, 0x1p-25f}) {
    float x[kGroup] = {};
    x[3] = max;
    GroupQ4 q;
    ASSERT_TRUE(QuantizeGroupQ4(x, nullptr, &q));
    EXPECT_EQ(q.scale, 0u) << max;
    for (uint8_t n : q.nibbles) EXPECT_EQ(n, 8);
    EXPECT_NEAR(q.error, static_cast<double>(max) * static_cast<double>(max), 1e-60) << max;
  }
}

TEST(QuantizeQ4, SubnormalScales) {
  const std::vector<float> gaussian = Draw(kGroup, false);
  for (float magnitude : {3e-8f, 1e-7f, 2e-7f, 3e-7f, 5e-7f, 1e-6f, 2e-6f, 1e-5f}) {
    float x[kGroup];
    for (size_t i = 0; i < kGroup; ++i) x[i] = gaussian[i] * magnitude;
    GroupQ4 q;
    ASSERT_TRUE(QuantizeGroupQ4(x, nullptr, &q));
    // No subnormal scale is better.
    for (uint16_t bits = 0; bits < 0x400; ++bits) {
      for (uint16_t sign : {uint16_t{0}, uint16_t{0x8000}}) {
        GroupQ4 other;
        other.scale = static_cast<uint16_t>(bits | sign);
        for (size_t i = 0; i < kGroup; ++i) {
          other.nibbles[i] = NibbleQ4(x[i], F16ToF32(other.scale));
        }
        EXPECT_LE(q.error, WeightedError(x, nullptr, other) * 1.01) << magnitude << " " << bits;
      }
    }
  }
}

TEST(QuantizeQ4, OneOutlierCostsTheOthersButNotTheOutlier) {
  for (float outlier : {1e4f, -1e4f}) {
    std::vector<float> x = Draw(kGroup, false);
    x[17] = outlier;
    GroupQ4 q;
    ASSERT_TRUE(QuantizeGroupQ4(x.data(), nullptr, &q));
    const float weight =
        F16ToF32(q.scale) * static_cast<float>(static_cast<int>(q.nibbles[17]) - 8);
    EXPECT_NEAR(weight, outlier, 8.0f);  // half a step of the f16 scale, times 8
    for (size_t i = 0; i < kGroup; ++i) {
      if (i != 17) {
        EXPECT_EQ(q.nibbles[i], 8);
      }
    }
  }
}

TEST(QuantizeQ4, ScaleBeyondF16IsRefused) {
  float x[kGroup] = {};
  x[0] = 8.0f * kF16Max;
  GroupQ4 q;
  ASSERT_TRUE(QuantizeGroupQ4(x, nullptr, &q));
  EXPECT_EQ(std::fabs(F16ToF32(q.scale)), kF16Max);
  for (float big : {8.0f * 65520.0f, 1e6f, 1e9f, FLT_MAX}) {
    for (float sign : {1.0f, -1.0f}) {
      x[0] = sign * big;
      q.scale = 0x1234;
      EXPECT_FALSE(QuantizeGroupQ4(x, nullptr, &q)) << big;
      EXPECT_EQ(q.scale, 0x1234);
    }
  }
}

TEST(QuantizeQ4, ImportanceMovesTheErrorToWhatMattersLess) {
  const std::vector<float> x = Draw(kGroup * 200, false);
  Random random(11);
  double with = 0.0, without = 0.0, scanned = 0.0;
  for (size_t i = 0; i < x.size(); i += kGroup) {
    float importance[kGroup];
    for (float& w : importance) w = static_cast<float>(std::exp(2.0 * random.Gaussian()));
    GroupQ4 weighted, plain;
    ASSERT_TRUE(QuantizeGroupQ4(&x[i], importance, &weighted));
    ASSERT_TRUE(QuantizeGroupQ4(&x[i], nullptr, &plain));
    with += weighted.error;
    without += WeightedError(&x[i], importance, plain);
    if (i < kGroup * 40) scanned += ScannedError(&x[i], importance) - weighted.error;
  }
  EXPECT_LT(with, without * 0.85);
  EXPECT_GT(scanned, -0.05 * with);  // the scan of the first groups is hardly better
}

TEST(QuantizeQ4, EqualImportancesChangeNothing) {
  const std::vector<float> x = Draw(kGroup, false);
  GroupQ4 plain;
  ASSERT_TRUE(QuantizeGroupQ4(x.data(), nullptr, &plain));
  for (float w : {0.0f, FLT_TRUE_MIN, 1e-20f, 3.0f, FLT_MAX}) {
    float importance[kGroup];
    for (float& v : importance) v = w;
    GroupQ4 q;
    ASSERT_TRUE(QuantizeGroupQ4(x.data(), importance, &q));
    EXPECT_LE(WeightedError(x.data(), nullptr, q), plain.error * 1.0001) << w;
  }
}

TEST(QuantizeQ4, WeightsWithoutImportanceAreNotThrownAway) {
  // Only zeros matter here; the others still get the scale they would have alone.
  std::vector<float> x = Draw(kGroup, false);
  float importance[kGroup] = {};
  for (size_t i = 0; i < 4; ++i) {
    x[i] = 0.0f;
    importance[i] = 1e30f;
  }
  GroupQ4 weighted, plain;
  ASSERT_TRUE(QuantizeGroupQ4(x.data(), importance, &weighted));
  ASSERT_TRUE(QuantizeGroupQ4(x.data(), nullptr, &plain));
  EXPECT_EQ(weighted.error, 0.0);
  EXPECT_LT(WeightedError(x.data(), nullptr, weighted), plain.error * 1.01);
}

TEST(QuantizeQ4, TheSameBitsAsEver) {
  // A changed rounding or order of sums shows here, on every machine and compiler.
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  uint32_t state = 1;
  for (int group = 0; group < 500; ++group) {
    float x[kGroup];
    for (float& v : x) {
      float sum = 0.0f;  // of exact values: a bell without library functions
      for (int k = 0; k < 4; ++k) {
        state = state * 1664525u + 1013904223u;
        sum += static_cast<float>(state >> 16) - 32768.0f;
      }
      v = sum * 0x1p-18f;
    }
    GroupQ4 q;
    ASSERT_TRUE(QuantizeGroupQ4(x, nullptr, &q));
    for (uint8_t n : q.nibbles) hash = (hash ^ n) * 1099511628211u;
    hash = (hash ^ (q.scale & 0xffu)) * 1099511628211u;
    hash = (hash ^ static_cast<uint64_t>(q.scale >> 8)) * 1099511628211u;
  }
  EXPECT_EQ(hash, 13058142448726856504u);
}

}  // namespace
}  // namespace adder
