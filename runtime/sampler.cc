#include "runtime/sampler.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>

namespace adder {
namespace {

constexpr int32_t kMaxVocab = 1 << 28;

Status Bad(const char* option, float value, const char* expected) {
  return Error(Code::kInvalidArgument, "%s is %g, expected %s", option, static_cast<double>(value),
               expected);
}

Status Bad(const char* option, int32_t value, const char* expected) {
  return Error(Code::kInvalidArgument, "%s is %d, expected %s", option, value, expected);
}

Status Validate(const SamplerOptions& o, int32_t vocab_size) {
  if (vocab_size < 1 || vocab_size > kMaxVocab) return Bad("vocab_size", vocab_size, "1 to 2^28");
  if (!std::isfinite(o.temperature) || o.temperature < 0.0f) {
    return Bad("temperature", o.temperature, "0 or more");
  }
  if (o.top_k < 0) return Bad("top_k", o.top_k, "0 or more");
  if (!(o.top_p > 0.0f && o.top_p <= 1.0f)) return Bad("top_p", o.top_p, "above 0, at most 1");
  if (!(o.min_p >= 0.0f && o.min_p < 1.0f)) return Bad("min_p", o.min_p, "at least 0, below 1");
  if (!std::isfinite(o.repetition_penalty) || o.repetition_penalty <= 0.0f) {
    return Bad("repetition_penalty", o.repetition_penalty, "above 0, finite");
  }
  if (!std::isfinite(o.presence_penalty)) {
    return Bad("presence_penalty", o.presence_penalty, "a finite number");
  }
  if (!std::isfinite(o.frequency_penalty)) {
    return Bad("frequency_penalty", o.frequency_penalty, "a finite number");
  }
  if (o.penalty_window < 0 || o.penalty_window > kMaxPenaltyWindow) {
    return Bad("penalty_window", o.penalty_window, "0 to 2^20");
  }
  for (const LogitBias& b : o.logit_bias) {
    if (b.token < 0 || b.token >= vocab_size) {
      return Error(Code::kInvalidArgument, "logit_bias of token %d, vocab_size is %d", b.token,
                   vocab_size);
    }
    if (std::isnan(b.bias) || b.bias == INFINITY) {
      return Error(Code::kInvalidArgument, "logit_bias of token %d is %g, expected below infinity",
                   b.token, static_cast<double>(b.bias));
    }
  }
  return {};
}

constexpr float kLowest = -80.0f;  // exponents up to here count as -infinity

// e^x for kLowest <= x <= 0, within 3e-7; exactly 1 for 0, and 0 for kLowest.
//
// Unlike scalar_math.h's exp without fused operations and branches, so that loops over it are
// vectorized for any CPU: a fifth of the time that calls of fmaf take for a whole vocabulary.
inline float ExpNegative(float x) {
  // x = n ln 2 + r with |r| <= ln(2) / 2; e^r by its Taylor polynomial, then times 2^n.
  constexpr float kShift = 0x1.8p23f;  // adding it rounds to an integer, in the lowest bits
  const float shifted = x * 1.44269504f + kShift;
  const float n = shifted - kShift;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;  // ln 2 in two parts
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const uint32_t power_of_two = (std::bit_cast<uint32_t>(shifted) << 23) + 0x3f800000u;
  const uint32_t keep = x > kLowest ? 0xffffffffu : 0u;
  return p * std::bit_cast<float>(power_of_two & keep);
}

// Logits to probabilities relative to that of the largest.
void Exponentiate(float* values, size_t count, float max, float temperature) {
  for (size_t i = 0; i < count; ++i) {
    const float x = (values[i] - max) / temperature;
    values[i] = x < kLowest ? kLowest : x;
  }
  for (size_t i = 0; i < count; ++i) values[i] = ExpNegative(values[i]);
}

float Largest(std::span<const float> values) {
  constexpr size_t kWidth = 16;  // independent maxima, so that the loop is vectorized
  float max[kWidth];
  std::fill(max, max + kWidth, -INFINITY);
  size_t i = 0;
  for (; i + kWidth <= values.size(); i += kWidth) {
    for (size_t j = 0; j < kWidth; ++j) max[j] = values[i + j] > max[j] ? values[i + j] : max[j];
  }
  for (; i < values.size(); ++i) max[0] = values[i] > max[0] ? values[i] : max[0];
  return *std::max_element(max, max + kWidth);
}

double Sum(std::span<const float> values) {
  double sum = 0.0;
  for (float v : values) sum += static_cast<double>(v);
  return sum;
}

// The saved state: u64 generator, u64 number of tokens, i32 [penalty window] tokens, the
// oldest first, the rest 0.
constexpr size_t kStateHeader = 16;

void StoreBytes(uint8_t* out, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<uint8_t>(value >> (8 * i));
}

uint64_t LoadBytes(const uint8_t* in, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= uint64_t{in[i]} << (8 * i);
  return value;
}

}  // namespace

Result<Sampler> Sampler::Create(const SamplerOptions& options, int32_t vocab_size) {
  ADDER_RETURN_IF_ERROR(Validate(options, vocab_size));
  Sampler sampler;
  sampler.options_ = options;
  sampler.values_.resize(static_cast<size_t>(vocab_size));
  if (options.top_k > 0 || options.top_p < 1.0f) {
    sampler.candidates_.resize(static_cast<size_t>(vocab_size));
  }
  const bool penalties = options.repetition_penalty != 1.0f || options.presence_penalty != 0.0f ||
                         options.frequency_penalty != 0.0f;
  if (penalties && options.penalty_window > 0) {
    sampler.window_.resize(static_cast<size_t>(options.penalty_window));
    sampler.counts_.resize(static_cast<size_t>(vocab_size));
  }
  sampler.Reset();
  return sampler;
}

void Sampler::Reset() {
  generator_ = options_.seed;
  window_size_ = 0;
  window_next_ = 0;
  std::fill(counts_.begin(), counts_.end(), 0);
}

void Sampler::Accept(int32_t token) {
  if (window_.empty() || token < 0 || static_cast<size_t>(token) >= values_.size()) return;
  int32_t& slot = window_[window_next_];
  if (window_size_ == window_.size()) {
    --counts_[static_cast<size_t>(slot)];
  } else {
    ++window_size_;
  }
  slot = token;
  ++counts_[static_cast<size_t>(token)];
  window_next_ = window_next_ + 1 == window_.size() ? 0 : window_next_ + 1;
}

// A total order, so that a selection or sort has one result whatever the standard library does.
bool Sampler::Precedes(const Candidate& a, const Candidate& b) {
  return a.value != b.value ? a.value > b.value : a.id < b.id;
}

Status Sampler::LoadLogits(std::span<const float> logits) {
  if (logits.size() < values_.size()) {
    return Error(Code::kInvalidArgument, "%zu logits, vocab_size is %zu", logits.size(),
                 values_.size());
  }
  logits = logits.first(values_.size());
  int bad = 0;
  for (float v : logits) bad |= !(v <= FLT_MAX);  // NaN or +infinity
  for (size_t i = 0; bad && i < logits.size(); ++i) {
    if (logits[i] <= FLT_MAX) continue;
    return Error(Code::kInvalidArgument, "logit of token %zu is %g", i,
                 static_cast<double>(logits[i]));
  }
  std::copy(logits.begin(), logits.end(), values_.begin());
  return {};
}

Status Sampler::AddBiases() {
  for (const LogitBias& b : options_.logit_bias) {
    float& logit = values_[static_cast<size_t>(b.token)];
    logit += b.bias;
    if (!(logit <= FLT_MAX)) {
      return Error(Code::kInvalidArgument, "logit of token %d is %g after its bias %g", b.token,
                   static_cast<double>(logit), static_cast<double>(b.bias));
    }
  }
  return {};
}

Status Sampler::ApplyPenalties() {
  Status status;
  for (size_t i = 0; i < window_size_; ++i) {
    int32_t& count = counts_[static_cast<size_t>(window_[i])];
    if (count < 0) continue;  // done: the sign marks tokens seen in this loop
    float& logit = values_[static_cast<size_t>(window_[i])];
    const float penalty = options_.repetition_penalty;
    logit = logit > 0.0f ? logit / penalty : logit * penalty;
    logit -= static_cast<float>(count) * options_.frequency_penalty;
    logit -= options_.presence_penalty;
    if (!(logit <= FLT_MAX)) {
      status = Error(Code::kInvalidArgument, "logit of token %d is %g after penalties", window_[i],
                     static_cast<double>(logit));
    }
    count = -count;
  }
  for (size_t i = 0; i < window_size_; ++i) {
    int32_t& count = counts_[static_cast<size_t>(window_[i])];
    count = std::abs(count);
  }
  return status;
}

// Lists the k first in order, sorted. Collects up to 2k candidates that beat the k-th best so far,
// then halves them: linear in the vocabulary, about one comparison a token.
void Sampler::KeepTopK(size_t k) {
  const auto begin = candidates_.begin();
  const auto at = [begin](size_t n) { return begin + static_cast<std::ptrdiff_t>(n); };
  const size_t room = std::min(2 * k, candidates_.size());
  size_t count = 0;
  bool full = false;
  Candidate worst{};
  for (size_t i = 0; i < values_.size(); ++i) {
    const Candidate c{values_[i], static_cast<int32_t>(i)};
    if (full && !Precedes(c, worst)) continue;
    candidates_[count++] = c;
    if (count == room) {
      std::nth_element(begin, at(k - 1), at(count), Precedes);
      worst = candidates_[k - 1];
      count = k;
      full = true;
    }
  }
  if (count > k) std::nth_element(begin, at(k - 1), at(count), Precedes);
  std::sort(begin, at(k), Precedes);
}

// Moves the fewest candidates that hold top_p of the total to the front; returns how many.
size_t Sampler::KeepTopP(size_t count, double total) {
  // Probabilities in (0, 1] by exponent and three bits of the mantissa, which is their order: only
  // in the bucket where the sum from above reaches the target does the order within matter.
  constexpr size_t kBuckets = (0x3f800000u >> 20) + 1;
  const auto bucket_of = [](const Candidate& c) -> size_t {
    return std::min<size_t>(std::bit_cast<uint32_t>(c.value) >> 20, kBuckets - 1);
  };
  double mass_of[kBuckets] = {};
  for (size_t i = 0; i < count; ++i) {
    mass_of[bucket_of(candidates_[i])] += static_cast<double>(candidates_[i].value);
  }
  const double target = static_cast<double>(options_.top_p) * total;
  double mass = 0.0;
  size_t last = kBuckets - 1;
  while (last > 0 && mass + mass_of[last] < target) mass += mass_of[last--];

  size_t sorted = 0;  // whole buckets above `last`, in the order they were
  for (size_t i = 0; i < count; ++i) {
    if (bucket_of(candidates_[i]) > last) std::swap(candidates_[i], candidates_[sorted++]);
  }
  size_t listed = sorted;  // and then that bucket
  for (size_t i = sorted; i < count; ++i) {
    if (bucket_of(candidates_[i]) == last) std::swap(candidates_[i], candidates_[listed++]);
  }

  const auto begin = candidates_.begin();
  const auto at = [begin](size_t n) { return begin + static_cast<std::ptrdiff_t>(n); };
  for (size_t step = 64; sorted < listed; step *= 4) {
    const size_t end = std::min(listed, sorted + step);
    if (end < listed) std::nth_element(at(sorted), at(end), at(listed), Precedes);
    std::sort(at(sorted), at(end), Precedes);
    for (; sorted < end; ++sorted) {
      mass += static_cast<double>(candidates_[sorted].value);
      if (mass >= target) return sorted + 1;
    }
  }
  return listed;
}

double Sampler::Draw() {
  generator_ += 0x9e3779b97f4a7c15u;
  uint64_t z = generator_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-53;
}

Result<int32_t> Sampler::Sample(std::span<const float> logits) {
  ADDER_RETURN_IF_ERROR(LoadLogits(logits));
  ADDER_RETURN_IF_ERROR(AddBiases());
  ADDER_RETURN_IF_ERROR(ApplyPenalties());
  const float max = Largest(values_);
  if (max == -INFINITY) {
    return Error(Code::kInvalidArgument, "no token to choose: all %zu logits are -infinity",
                 values_.size());
  }
  if (options_.temperature == 0.0f) {
    return static_cast<int32_t>(std::find(values_.begin(), values_.end(), max) - values_.begin());
  }

  // The candidates are values_[0, count). Their ids are those in candidates_ once a filter has
  // listed them there, and their positions before.
  bool listed = false;
  size_t count = values_.size();
  const auto copy_values = [&] {
    for (size_t i = 0; i < count; ++i) values_[i] = candidates_[i].value;
    listed = true;
  };
  if (options_.top_k > 0 && static_cast<size_t>(options_.top_k) < count) {
    count = static_cast<size_t>(options_.top_k);
    KeepTopK(count);
    copy_values();
  }
  Exponentiate(values_.data(), count, max, options_.temperature);
  if (options_.top_p < 1.0f) {
    for (size_t i = 0; i < count; ++i) {
      candidates_[i] = {values_[i], listed ? candidates_[i].id : static_cast<int32_t>(i)};
    }
    count = KeepTopP(count, Sum({values_.data(), count}));
    copy_values();
  }
  if (options_.min_p > 0.0f) {  // the most likely one has 1
    for (size_t i = 0; i < count; ++i) values_[i] = values_[i] < options_.min_p ? 0.0f : values_[i];
  }

  const double point = Draw() * Sum({values_.data(), count});
  double sum = 0.0;
  size_t chosen = 0;
  for (size_t i = 0; i < count; ++i) {
    if (values_[i] == 0.0f) continue;
    chosen = i;  // the last one stands if rounding made the point equal to the sum
    sum += static_cast<double>(values_[i]);
    if (point < sum) break;
  }
  return listed ? candidates_[chosen].id : static_cast<int32_t>(chosen);
}

size_t Sampler::StateBytes() const { return kStateHeader + window_.size() * sizeof(int32_t); }

void Sampler::SaveState(uint8_t* out) const {
  StoreBytes(out, generator_, 8);
  StoreBytes(out + 8, window_size_, 8);
  for (size_t i = 0; i < window_.size(); ++i) {
    // Oldest first: before the ring is full that is slot 0, then the next to be overwritten.
    const size_t slot = window_size_ < window_.size() ? i : (window_next_ + i) % window_.size();
    const int32_t token = i < window_size_ ? window_[slot] : 0;
    StoreBytes(out + kStateHeader + 4 * i, static_cast<uint32_t>(token), 4);
  }
}

Status Sampler::RestoreState(std::span<const uint8_t> state) {
  if (state.size() != StateBytes()) {
    return Error(Code::kInvalidArgument, "sampler state of %zu bytes, expected %zu", state.size(),
                 StateBytes());
  }
  const uint64_t size = LoadBytes(state.data() + 8, 8);
  if (size > window_.size()) {
    return Error(Code::kInvalidArgument, "sampler state with %llu tokens, penalty_window is %zu",
                 static_cast<unsigned long long>(size), window_.size());
  }
  for (size_t i = 0; i < window_.size(); ++i) {
    const uint64_t token = LoadBytes(state.data() + kStateHeader + 4 * i, 4);
    const uint64_t bound = i < size ? values_.size() : 1;
    if (token >= bound) {
      return Error(Code::kInvalidArgument, "sampler state: token %llu at %zu, expected below %llu",
                   static_cast<unsigned long long>(token), i,
                   static_cast<unsigned long long>(bound));
    }
  }
  Reset();
  generator_ = LoadBytes(state.data(), 8);
  for (size_t i = 0; i < size; ++i) {
    Accept(static_cast<int32_t>(LoadBytes(state.data() + kStateHeader + 4 * i, 4)));
  }
  return {};
}

}  // namespace adder
