// The error bounds that runtime/scalar_math.h states, against double precision.
#include "runtime/scalar_math.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <limits>

namespace adder {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Largest relative error of f against reference over every step-th float of [low, high].
// Results below FLT_MIN are left out: halving a subnormal may have to round.
double LargestError(float (*f)(float), double (*reference)(double), float low, float high,
                    uint64_t step) {
  double largest = 0;
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += step) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (!(x >= low && x <= high)) continue;
    const double expected = reference(x);
    if (std::fabs(expected) < FLT_MIN) continue;
    const double error = std::fabs(f(x) - expected) / std::fabs(expected);
    if (!(error <= largest)) largest = error;
  }
  return largest;
}

double TrueSilu(double x) { return x / (1 + std::exp(-x)); }
double TrueSoftplus(double x) { return std::fmax(x, 0) + std::log1p(std::exp(-std::fabs(x))); }
double TrueGelu(double x) { return 0.5 * x * std::erfc(-x * std::sqrt(0.5)); }
double TrueExp2(double x) { return std::exp2(x); }
double TrueExp(double x) { return std::exp(x); }
double TrueSigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double TrueTanh(double x) { return std::tanh(x); }
constexpr double kTurn = 6.283185307179586;
double TrueSinTurns(double t) { return std::sin(kTurn * t); }

void ExpectErrors(uint64_t step) {
  const double exp2 = LargestError(Exp2, TrueExp2, kExp2Min, kExp2Max, step);
  const double exp = LargestError(Exp, TrueExp, kExpMin, kExpMax, step);
  const double silu = LargestError(Silu, TrueSilu, -88.0f, FLT_MAX, step);
  const double softplus = LargestError(Softplus, TrueSoftplus, kExpMin, FLT_MAX, step);
  const double sigmoid = LargestError(Sigmoid, TrueSigmoid, -87.0f, FLT_MAX, step);
  const double tanh = LargestError(Tanh, TrueTanh, -FLT_MAX, FLT_MAX, step);
  const double sine = LargestError(SinTurns, TrueSinTurns, -0.25f, 0.25f, step);
  printf("largest relative errors: exp2 %.3g, exp %.3g, silu %.3g, softplus %.3g, ", exp2, exp,
         silu, softplus);
  printf("sigmoid %.3g, tanh %.3g, sine %.3g, ", sigmoid, tanh, sine);
  const double gelu = LargestError(Gelu, TrueGelu, -5.0f, FLT_MAX, step);
  const double gelu_tail = LargestError(Gelu, TrueGelu, -13.0f, -5.0f, step);
  printf("gelu %.3g, below -5 %.3g\n", gelu, gelu_tail);
  EXPECT_LE(gelu, 1e-6);
  EXPECT_LE(gelu_tail, 1e-4);
  EXPECT_LE(exp2, 2e-7);
  EXPECT_LE(exp, 2e-7);
  EXPECT_LE(silu, 4e-7);
  EXPECT_LE(softplus, 4e-7);
  EXPECT_LE(sigmoid, 4e-7);
  EXPECT_LE(tanh, 4e-7);
  EXPECT_LE(sine, 3e-7);
  // A bound of zero error would mean that nothing was compared.
  EXPECT_GT(std::fmin(std::fmin(exp2, exp), std::fmin(silu, softplus)), 1e-8);
  EXPECT_GT(std::fmin(std::fmin(sigmoid, tanh), sine), 1e-8);
}

TEST(ScalarMath, ErrorBoundsOnASampleOfFloats) { ExpectErrors(997); }

// --gtest_also_run_disabled_tests: four minutes.
TEST(ScalarMath, DISABLED_ErrorBoundsOnEveryFloat) { ExpectErrors(1); }

TEST(ScalarMath, Exp2IsExactOnIntegersAndClampsAtItsEnds) {
  for (int n = -126; n <= 127; ++n) EXPECT_EQ(Exp2(static_cast<float>(n)), std::ldexp(1.0f, n));
  EXPECT_EQ(Exp2(-0.0f), 1.0f);
  EXPECT_EQ(Exp2(std::nextafter(-126.0f, -200.0f)), 0.0f);
  EXPECT_EQ(Exp2(-FLT_MAX), 0.0f);
  EXPECT_EQ(Exp2(-kInfinity), 0.0f);
  EXPECT_EQ(Exp2(128.0f), 0x1p127f);
  EXPECT_EQ(Exp2(kInfinity), 0x1p127f);
  EXPECT_TRUE(std::isnan(Exp2(kNan)));
}

TEST(ScalarMath, NaNStaysNaNWhateverItsPayload) {
  for (const uint32_t payload : {0x00000001u, 0x003fffffu, 0x00400001u, 0x007fffffu}) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const float x = std::bit_cast<float>(sign | 0x7f800000u | payload);
      EXPECT_TRUE(std::isnan(Exp2(x)) && std::isnan(Exp(x)) && std::isnan(Silu(x)) &&
                  std::isnan(Softplus(x)) && std::isnan(Relu2(x)) && std::isnan(Gelu(x)) &&
                  std::isnan(Sigmoid(x)) && std::isnan(Tanh(x)) && std::isnan(SinTurns(x)) &&
                  std::isnan(CosTurns(x)))
          << payload;
    }
  }
}

TEST(ScalarMath, NoSubnormalsNearTheLowerEnds) {
  float exp2 = kExp2Min, exp = kExpMin;
  for (int i = 0; i < 2000; ++i) {
    EXPECT_GE(Exp2(exp2), FLT_MIN) << exp2;
    EXPECT_GE(Exp(exp), FLT_MIN) << exp;
    exp2 = std::nextafter(exp2, 0.0f);
    exp = std::nextafter(exp, 0.0f);
  }
  EXPECT_EQ(Exp(std::nextafter(kExpMin, -100.0f)), 0.0f);
  EXPECT_LE(Exp(kInfinity), 0x1p127f * 1.000001f);
}

TEST(ScalarMath, SiluAndSoftplusAtTheirEnds) {
  EXPECT_EQ(Silu(0.0f), 0.0f);
  EXPECT_EQ(Silu(1e30f), 1e30f);
  EXPECT_EQ(Silu(kInfinity), kInfinity);
  EXPECT_LE(std::fabs(Silu(-100.0f)), 1e-36f);
  EXPECT_EQ(Softplus(1e30f), 1e30f);
  EXPECT_EQ(Softplus(kInfinity), kInfinity);
  EXPECT_EQ(Softplus(-100.0f), 0.0f);
  EXPECT_EQ(Softplus(-kInfinity), 0.0f);
  EXPECT_NEAR(Softplus(0.0f), std::log(2.0), 1e-7);
}

TEST(ScalarMath, SineAndCosineOfPositionsTimesFrequencies) {
  double largest = 0;
  const auto compare = [&](double angle) {
    const SinCos actual = SineAndCosine(angle);
    largest = std::fmax(largest, std::fabs(actual.sin - std::sin(angle)));
    largest = std::fmax(largest, std::fabs(actual.cos - std::cos(angle)));
  };
  for (int i = -4000; i <= 4000; ++i) {
    compare(i * 1e-3);
    compare(i * std::acos(-1.0) / 4);  // the ends of the series
  }
  for (uint32_t position = 1; position <= 1u << 24; position += 1 + position / 500) {
    for (const double theta : {1e4, 1e11}) {
      for (int i = 0; i < 64; i += 3) {
        compare(static_cast<double>(position) *
                double{static_cast<float>(std::pow(theta, -i / 64.0))});
      }
    }
  }
  printf("largest error of sine and cosine: %.3g\n", largest);
  EXPECT_LE(largest, 1e-12);
  EXPECT_GT(largest, 0);
  for (const double huge : {0x1p40, -0x1p60, 1e300}) {  // no meaning, but no fault
    (void)SineAndCosine(huge);
  }
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(std::isnan(SineAndCosine(infinity).sin));
  EXPECT_TRUE(std::isnan(SineAndCosine(std::nan("")).cos));
}

TEST(ScalarMath, GeluOverItsArgumentHasASmallAbsoluteError) {
  double largest = 0;
  for (uint32_t bits = 0x01000000u; bits < 0x42000000u; bits += 97) {  // 2^-125 to 32
    for (const float sign : {1.0f, -1.0f}) {
      const float x = sign * std::bit_cast<float>(bits);
      const double error = std::fabs(Gelu(x) - TrueGelu(x)) / std::fabs(x);
      if (!(error <= largest)) largest = error;
    }
  }
  printf("gelu: largest error %.3g |x|\n", largest);
  EXPECT_LE(largest, 2e-7);
  EXPECT_GT(largest, 1e-8);
}

TEST(ScalarMath, GeluAndRelu2AtTheirEnds) {
  EXPECT_EQ(Gelu(0.0f), 0.0f);
  EXPECT_EQ(Gelu(-0.0f), 0.0f);
  EXPECT_EQ(Gelu(14.5f), 14.5f);
  EXPECT_EQ(Gelu(1e30f), 1e30f);
  EXPECT_EQ(Gelu(kInfinity), kInfinity);
  EXPECT_EQ(Gelu(-14.0f), 0.0f);
  EXPECT_EQ(Gelu(-FLT_MAX), 0.0f);
  EXPECT_EQ(Gelu(-kInfinity), 0.0f);
  EXPECT_EQ(Relu2(-3.0f), 0.0f);
  EXPECT_EQ(Relu2(-kInfinity), 0.0f);
  EXPECT_EQ(Relu2(-0.0f), 0.0f);
  EXPECT_EQ(Relu2(1.5f), 2.25f);
  EXPECT_EQ(Relu2(kInfinity), kInfinity);
}

TEST(ScalarMath, SigmoidAndTanhAtTheirEnds) {
  EXPECT_EQ(Sigmoid(0.0f), 0.5f);
  EXPECT_EQ(Sigmoid(kInfinity), 1.0f);
  EXPECT_LE(Sigmoid(-kInfinity), 0x1.0001p-127f);
  EXPECT_EQ(Tanh(0.0f), 0.0f);
  EXPECT_EQ(Tanh(kInfinity), 1.0f);
  EXPECT_EQ(Tanh(-kInfinity), -1.0f);
  EXPECT_EQ(Tanh(-20.0f), -1.0f);
}

TEST(ScalarMath, SineAndCosineOverAWholeTurn) {
  double largest = 0;
  for (int i = -(1 << 20); i <= 1 << 20; ++i) {
    const float t = std::ldexp(static_cast<float>(i), -21);
    largest = std::fmax(largest, std::fabs(SinTurns(t) - std::sin(kTurn * double{t})));
    largest = std::fmax(largest, std::fabs(CosTurns(t) - std::cos(kTurn * double{t})));
  }
  EXPECT_LE(largest, 2e-7);
  EXPECT_GT(largest, 1e-8);
  EXPECT_EQ(SinTurns(0.0f), 0.0f);
  EXPECT_EQ(SinTurns(0.5f), 0.0f);
  EXPECT_EQ(CosTurns(0.25f), 0.0f);
  EXPECT_EQ(CosTurns(0.0f), SinTurns(0.25f));
  EXPECT_NEAR(CosTurns(0.0f), 1.0, 1e-7);
}

// The value of a half, from its definition.
double HalfValue(uint32_t half) {
  const int exponent = static_cast<int>(half >> 10 & 31);
  const double mantissa = half & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return half >> 15 != 0 ? -magnitude : magnitude;
}

TEST(ScalarMath, EveryHalfConvertsExactlyAndBack) {
  for (uint32_t half = 0; half <= 0xffff; ++half) {
    const float value = F16ToF32(static_cast<uint16_t>(half));
    if ((half & 0x7c00) != 0x7c00) {
      ASSERT_EQ(value, HalfValue(half)) << half;
      ASSERT_EQ(F32ToF16(value), half);
    } else if ((half & 0x3ff) == 0) {
      ASSERT_EQ(value, half >> 15 != 0 ? -kInfinity : kInfinity);
      ASSERT_EQ(F32ToF16(value), half);
    } else {
      ASSERT_TRUE(std::isnan(value)) << half;
      ASSERT_TRUE(std::isnan(F16ToF32(F32ToF16(value)))) << half;
    }
  }
}

TEST(ScalarMath, FloatsRoundToTheNearestHalfTiesToEven) {
  for (uint32_t half = 0; half < 0x7bff; ++half) {  // each with the next larger one
    const double low = HalfValue(half), high = HalfValue(half + 1);
    const float middle = static_cast<float>((low + high) / 2);  // exact
    const uint32_t even = half % 2 == 0 ? half : half + 1;
    ASSERT_EQ(F32ToF16(middle), even);
    ASSERT_EQ(F32ToF16(-middle), even | 0x8000);
    ASSERT_EQ(F32ToF16(std::nextafter(middle, 0.0f)), half);
    ASSERT_EQ(F32ToF16(std::nextafter(middle, 1e9f)), half + 1);
  }
  EXPECT_EQ(F32ToF16(65519.996f), 0x7bff);
  EXPECT_EQ(F32ToF16(65520.0f), 0x7c00);
  EXPECT_EQ(F32ToF16(-FLT_MAX), 0xfc00);
  EXPECT_EQ(F32ToF16(FLT_TRUE_MIN), 0);
}

}  // namespace
}  // namespace adder
