#include "runtime/sampler.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "runtime/scalar_math.h"

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
  sampler.candidates_.resize(static_cast<size_t>(vocab_size));
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
  if (window_.empty() || token < 0 || static_cast<size_t>(token) >= candidates_.size()) return;
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
  if (logits.size() < candidates_.size()) {
    return Error(Code::kInvalidArgument, "%zu logits, vocab_size is %zu", logits.size(),
                 candidates_.size());
  }
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (!(logits[i] <= FLT_MAX)) {
      return Error(Code::kInvalidArgument, "logit of token %zu is %g", i,
                   static_cast<double>(logits[i]));
    }
    candidates_[i] = {logits[i], static_cast<int32_t>(i)};
  }
  return {};
}

void Sampler::ApplyPenalties() {
  for (size_t i = 0; i < window_size_; ++i) {
    int32_t& count = counts_[static_cast<size_t>(window_[i])];
    if (count < 0) continue;  // done: the sign marks tokens seen in this loop
    float& logit = candidates_[static_cast<size_t>(window_[i])].value;
    const float penalty = options_.repetition_penalty;
    logit = logit > 0.0f ? logit / penalty : logit * penalty;
    logit -= static_cast<float>(count) * options_.frequency_penalty;
    logit -= options_.presence_penalty;
    count = -count;
  }
  for (size_t i = 0; i < window_size_; ++i) {
    int32_t& count = counts_[static_cast<size_t>(window_[i])];
    count = std::abs(count);
  }
}

Result<Sampler::Candidate> Sampler::Largest() const {
  Candidate largest{-INFINITY, -1};
  for (const Candidate& c : candidates_) {
    if (!(c.value <= FLT_MAX)) {
      return Error(Code::kInvalidArgument, "logit of token %d is %g after biases and penalties",
                   c.id, static_cast<double>(c.value));
    }
    if (c.value > largest.value) largest = c;
  }
  if (largest.id < 0) {
    return Error(Code::kInvalidArgument, "no token to choose: all %zu logits are -infinity",
                 candidates_.size());
  }
  return largest;
}

// Moves the k first in order to the front, sorted. Collects up to 2k candidates that beat the
// k-th best so far, then halves them: linear in the vocabulary, about one comparison a token.
size_t Sampler::KeepTopK(size_t k) {
  if (k >= candidates_.size()) return candidates_.size();
  const auto begin = candidates_.begin();
  const auto kept = [begin](size_t n) { return begin + static_cast<std::ptrdiff_t>(n); };
  size_t count = 0;
  bool full = false;
  Candidate worst{};
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const Candidate c = candidates_[i];
    if (full && !Precedes(c, worst)) continue;
    candidates_[count++] = c;  // count <= i
    if (count == 2 * k) {
      std::nth_element(begin, kept(k - 1), kept(count), Precedes);
      worst = candidates_[k - 1];
      count = k;
      full = true;
    }
  }
  if (count > k) std::nth_element(begin, kept(k - 1), kept(count), Precedes);
  std::sort(begin, kept(k), Precedes);
  return k;
}

// Moves the shortest run in order that holds top_p of the total to the front, sorted.
size_t Sampler::KeepTopP(size_t count, double total) {
  const double top_p = static_cast<double>(options_.top_p);
  const double target = top_p * total;
  // Tokens rarer than this hold less than 1 - top_p together: the rest reaches the target.
  const double rare = (1.0 - top_p) * total / static_cast<double>(count);
  const auto begin = candidates_.begin();
  const auto kept = [begin](size_t n) { return begin + static_cast<std::ptrdiff_t>(n); };
  const auto is_rare = [rare](const Candidate& c) { return static_cast<double>(c.value) < rare; };
  count = static_cast<size_t>(std::remove_if(begin, kept(count), is_rare) - begin);

  double mass = 0.0;
  size_t sorted = 0;
  for (size_t step = 64; sorted < count; step *= 4) {
    const size_t end = std::min(count, sorted + step);
    if (end < count) std::nth_element(kept(sorted), kept(end), kept(count), Precedes);
    std::sort(kept(sorted), kept(end), Precedes);
    for (; sorted < end; ++sorted) {
      mass += static_cast<double>(candidates_[sorted].value);
      if (mass >= target) return sorted + 1;
    }
  }
  return count;
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
  for (const LogitBias& b : options_.logit_bias) {
    candidates_[static_cast<size_t>(b.token)].value += b.bias;
  }
  ApplyPenalties();
  ADDER_ASSIGN_OR_RETURN(const Candidate largest, Largest());
  if (options_.temperature == 0.0f) return largest.id;

  size_t count = candidates_.size();
  if (options_.top_k > 0) count = KeepTopK(static_cast<size_t>(options_.top_k));
  double total = 0.0;
  for (size_t i = 0; i < count; ++i) {
    const float x = (candidates_[i].value - largest.value) / options_.temperature;
    candidates_[i].value = x < -80.0f ? 0.0f : Exp(x);  // the largest becomes 1
    total += static_cast<double>(candidates_[i].value);
  }
  const auto begin = candidates_.begin();
  if (options_.top_p < 1.0f) count = KeepTopP(count, total);
  if (options_.min_p > 0.0f) {
    const float least = options_.min_p;
    const auto end = begin + static_cast<std::ptrdiff_t>(count);
    count = static_cast<size_t>(
        std::remove_if(begin, end, [least](const Candidate& c) { return c.value < least; }) -
        begin);
  }

  total = 0.0;
  for (size_t i = 0; i < count; ++i) total += static_cast<double>(candidates_[i].value);
  const double point = Draw() * total;
  double sum = 0.0;
  int32_t chosen = largest.id;
  for (size_t i = 0; i < count; ++i) {
    if (candidates_[i].value == 0.0f) continue;
    chosen = candidates_[i].id;  // the last one stands if rounding made point == total
    sum += static_cast<double>(candidates_[i].value);
    if (point < sum) break;
  }
  return chosen;
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
    const uint64_t bound = i < size ? candidates_.size() : 1;
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
