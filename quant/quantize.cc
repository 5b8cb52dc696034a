#include "quant/quantize.h"

#include <bit>
#include <cfloat>
#include <cstring>

#include "runtime/scalar_math.h"

static_assert(FLT_EVAL_METHOD == 0, "float expressions must be evaluated in float");

namespace adder {
namespace {

float Abs(float x) { return x < 0.0f ? -x : x; }

float AbsMax(const float* x, size_t n) {
  float max = 0.0f;
  for (size_t i = 0; i < n; ++i) max = Abs(x[i]) > max ? Abs(x[i]) : max;
  return max;
}

// Four floats, so that the search is vectorized by every compiler and at any optimization level
// with the sums in the order written here. GCC and Clang map it to SSE or NEON.
using Float4 = float __attribute__((vector_size(16)));

Float4 Load(const float* p) {
  Float4 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

Float4 Splat(float x) { return Float4{x, x, x, x}; }

// Nearest integer in -8..7.
Float4 RoundQ4(Float4 v) {
  const Float4 low = Splat(-8.0f), high = Splat(7.0f), shift = Splat(0x1.8p23f);
  v = v < low ? low : v;
  v = v > high ? high : v;
  return (v + shift) - shift;
}

float Sum(Float4 a, Float4 b) {
  const Float4 s = a + b;
  return (s[0] + s[2]) + (s[1] + s[3]);
}

// One group, scaled by a power of two so that the largest |x| is in [1, 2), and its importances,
// the largest of them 1: nothing below overflows, and groups that differ by a power of two get
// scales that do, too.
struct Group {
  float x[kGroup];
  float importance[kGroup];
  float weighted_x[kGroup];  // importance * x
};

// For the integers q that an inverse scale gives, the best scale in the least-squares sense is
// xq / qq, and it lowers the error from sum(importance * x^2) by xq^2 / qq.
struct Fit {
  float xq;  // sum of importance * x * q
  float qq;  // sum of importance * q * q

  float Gain() const { return qq > 0.0f ? xq * xq / qq : 0.0f; }
};

Fit FitIntegers(const Group& group, float inverse_scale) {
  const Float4 inverse = Splat(inverse_scale);
  Float4 xq0{}, xq1{}, qq0{}, qq1{};
  for (size_t i = 0; i < kGroup; i += 8) {
    const Float4 q0 = RoundQ4(Load(group.x + i) * inverse);
    const Float4 q1 = RoundQ4(Load(group.x + i + 4) * inverse);
    xq0 += Load(group.weighted_x + i) * q0;
    xq1 += Load(group.weighted_x + i + 4) * q1;
    qq0 += Load(group.importance + i) * q0 * q0;
    qq1 += Load(group.importance + i + 4) * q1 * q1;
  }
  return {Sum(xq0, xq1), Sum(qq0, qq1)};
}

// Error of the best integers for a scale (not 0).
float ErrorOf(const Group& group, float scale) {
  const Float4 s = Splat(scale);
  Float4 sum0{}, sum1{};
  for (size_t i = 0; i < kGroup; i += 8) {
    const Float4 x0 = Load(group.x + i), x1 = Load(group.x + i + 4);
    const Float4 e0 = x0 - s * RoundQ4(x0 / s);
    const Float4 e1 = x1 - s * RoundQ4(x1 / s);
    sum0 += Load(group.importance + i) * e0 * e0;
    sum1 += Load(group.importance + i + 4) * e1 * e1;
  }
  return Sum(sum0, sum1);
}

float ErrorOfZeros(const Group& group) {
  Float4 sum0{}, sum1{};
  for (size_t i = 0; i < kGroup; i += 8) {
    sum0 += Load(group.weighted_x + i) * Load(group.x + i);
    sum1 += Load(group.weighted_x + i + 4) * Load(group.x + i + 4);
  }
  return Sum(sum0, sum1);
}

// The best scale found so far, not yet rounded to f16.
struct Search {
  const Group& group;
  float scale = 0.0f;
  float gain = -1.0f;

  bool Try(float inverse_scale) {
    // Less than this is rounding noise: the earlier candidate stays.
    constexpr float kNoise = 1e-6f;
    const Fit fit = FitIntegers(group, inverse_scale);
    if (!(fit.Gain() > gain * (1.0f + kNoise))) return false;
    gain = fit.Gain();
    // Without any weighted product the integers are free: keep the scale they came from.
    scale = gain > 0.0f ? fit.xq / fit.qq : 1.0f / inverse_scale;
    return true;
  }

  void TryBothSigns(float inverse_scale) {
    Try(-inverse_scale);
    Try(inverse_scale);
  }
};

// Candidates: largest |x| over scale. On gaussian and Student-t groups these with both signs and
// the refits come within 1% of the error of a dense scan. 8 is first, so that weights that are
// exact multiples of a scale keep it.
constexpr float kRatios[] = {8.0f, 6.0f, 6.35f, 6.7f, 7.0f, 7.35f, 7.7f, 8.35f, 8.7f, 9.0f};
constexpr int kRefits = 4;

// Of the largest in the group. Keeps sums from vanishing, and columns that calibration text never
// excited from being clipped at will.
constexpr float kLeastImportance = 0x1p-20f;

float BestScale(const Group& group, float max, bool weighted) {
  Search search{group};
  for (float ratio : kRatios) search.TryBothSigns(ratio / max);
  if (weighted) {
    // The largest weights may hardly matter: let the scale shrink to an eighth as well.
    float inverse = 10.0f / max;
    for (int i = 0; i < 12; ++i, inverse *= 1.1875f) search.TryBothSigns(inverse);
  }
  // Alternate: integers for the refitted scale, then the scale for those integers.
  for (int i = 0; i < kRefits && search.scale != 0.0f; ++i) {
    if (!search.Try(1.0f / search.scale)) break;
  }
  return search.scale;
}

constexpr uint16_t kInfinity = 0x7c00u;  // of f16

// The f16 near `scale` with the least error, for a group in units of 1 / inverse_unit.
uint16_t RoundScale(const Group& group, float scale, float inverse_unit) {
  const uint16_t rounded = F32ToF16(scale);
  const uint16_t magnitude = rounded & 0x7fffu;
  if (magnitude >= kInfinity) return rounded;
  // Scale 0 and the neighbours matter where f16 is coarse. Of the very coarse ones, the smallest
  // subnormals, all that might do are tried.
  const bool coarse = magnitude < 32;
  const int lowest = coarse ? 1 : magnitude - 1;
  const int highest = coarse ? magnitude * 3 / 2 + 1 : magnitude + 1;
  uint16_t best = 0;
  float best_error = ErrorOfZeros(group);
  const auto try_scale = [&](int bits) {
    const uint16_t candidate = static_cast<uint16_t>(bits);
    const float error = ErrorOf(group, F16ToF32(candidate) * inverse_unit);
    if (error < best_error) {
      best_error = error;
      best = candidate;
    }
  };
  for (int bits = lowest; bits <= highest && bits < kInfinity; ++bits) {
    const int sign = rounded & 0x8000;
    try_scale(bits | sign);
    if (coarse) try_scale(bits | (sign ^ 0x8000));
  }
  return best;
}

}  // namespace

float RowScaleQ8(const float* x, size_t n) {
  const float scale = AbsMax(x, n) / 127.0f;
  return scale < FLT_MIN ? 0.0f : scale;
}

bool QuantizeGroupQ4(const float* x, const float* importance, GroupQ4* out) {
  const float raw_max = AbsMax(x, kGroup);
  if (raw_max >= 0x1p20f) return false;  // 16 times the largest scale
  const float importance_max = importance != nullptr ? AbsMax(importance, kGroup) : 0.0f;
  const bool weighted = importance_max > 0.0f;

  Group group;
  // Up to half the smallest f16 every integer is 0 whatever the scale; `unit` is then arbitrary.
  const bool vanishes = raw_max <= 0x1p-25f;
  const float unit =
      vanishes ? 0x1p-25f : std::bit_cast<float>(std::bit_cast<uint32_t>(raw_max) & 0x7f800000u);
  const float inverse_unit = 1.0f / unit;  // both are powers of two: exact
  for (size_t i = 0; i < kGroup; ++i) {
    group.x[i] = x[i] * inverse_unit;
    const float relative = weighted ? importance[i] / importance_max : 1.0f;
    group.importance[i] = relative < kLeastImportance ? kLeastImportance : relative;
    group.weighted_x[i] = group.importance[i] * group.x[i];
  }

  uint16_t bits = 0;
  if (!vanishes) {
    const float best = BestScale(group, raw_max * inverse_unit, weighted);
    bits = RoundScale(group, best * unit, inverse_unit);
    if ((bits & 0x7fffu) >= kInfinity) return false;
  }

  const float scale = F16ToF32(bits);
  out->scale = bits;
  double sum = 0.0;
  for (size_t i = 0; i < kGroup; ++i) {
    out->nibbles[i] = NibbleQ4(x[i], scale);
    const double weight = static_cast<double>(scale) * (static_cast<int>(out->nibbles[i]) - 8);
    const double difference = static_cast<double>(x[i]) - weight;
    sum += (weighted ? static_cast<double>(importance[i]) : 1.0) * difference * difference;
  }
  out->error = sum;
  return true;
}

}  // namespace adder
