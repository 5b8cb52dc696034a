// Choosing the next token from logits. Deterministic: the same seed gives the same choice on every
// machine (scalar_math.h's exp, fixed summation order, a specified generator).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/status.h"

namespace adder {

struct LogitBias {
  int32_t token;
  float bias;  // added to the logit; -infinity forbids the token
};

struct SamplerOptions {
  float temperature = 0.0f;  // 0: greedy (the lowest id among equals)
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0f;        // (0, 1], 1: off
  float min_p = 0.0f;        // [0, 1), 0: off; relative to the most likely token
  float repetition_penalty =
      1.0f;  // CTRL (arXiv:1909.05858): divides positive, multiplies negative logits
  float presence_penalty = 0.0f;   // subtracted once if the token occurs in the window
  float frequency_penalty = 0.0f;  // subtracted for every occurrence in the window
  int32_t penalty_window = 64;     // last tokens that penalties look at
  uint64_t seed = 0;
  std::vector<LogitBias> logit_bias;
};

class Sampler {
 public:
  // vocab_size: ids >= vocab_size are never chosen though logits may be longer.
  // Every option out of range or NaN is an error that names it.
  static Result<Sampler> Create(const SamplerOptions& options, int32_t vocab_size);

  // Records a token of the context (prompt or generated) for the penalties.
  void Accept(int32_t token);

  // The next token. Does not change `logits`, allocates nothing. Logits that leave no choice
  // (NaN or nothing finite) are an error.
  Result<int32_t> Sample(std::span<const float> logits);

  void Reset();  // as created: seed and window

 private:
  Sampler() = default;
};

}  // namespace adder
