// Choosing the next token from logits. Deterministic: the same seed gives the same choice on every
// machine (one polynomial for exp, fixed summation order, a specified generator).
//
// Sample() does, in this order:
//    1. adds the logit biases;
//    2. applies the penalties: each token of the window once, repetition, then frequency times its
//       count, then presence;
//    3. at temperature 0 returns the largest logit (the lowest id among equals), or else
//    4. divides by the temperature;
//    5. top_k keeps the k largest logits (the lower id first among equals);
//    6. top_p keeps the fewest most likely tokens that together reach top_p of what top_k left;
//    7. min_p drops tokens less likely than min_p times the most likely one;
//    8. draws from what is left, with exactly one number of the generator.
//
// The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", OOPSLA 2014), 64 bits of state that begin as the seed:
//    state += 0x9e3779b97f4a7c15; z = state;
//    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9; z = (z ^ z >> 27) * 0x94d049bb133111eb;
//    output = z ^ z >> 31
// A draw is its upper 53 bits / 2^53.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/status.h"

namespace adder {

struct LogitBias {
  int32_t token;
  float bias;  // added to the logit; -infinity forbids the token; several for one token add up
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
  int32_t penalty_window = 64;     // last tokens that penalties look at; 0: penalties off
  uint64_t seed = 0;
  std::vector<LogitBias> logit_bias;
};

inline constexpr int32_t kMaxPenaltyWindow = 1 << 20;

// Copyable: a copy continues on its own from the same state. One thread at a time.
class Sampler {
 public:
  // vocab_size: ids >= vocab_size are never chosen though logits may be longer.
  // Every option out of range or NaN is an error that names it. Allocates all that is ever needed.
  static Result<Sampler> Create(const SamplerOptions& options, int32_t vocab_size);

  // Records a token of the context (prompt or generated) for the penalties. Ids outside the
  // vocabulary are ignored.
  void Accept(int32_t token);

  // The next token (not accepted yet). Does not change `logits`, allocates nothing unless it fails.
  // Tokens whose logit is -infinity are never chosen. Fewer than vocab_size logits, NaN, +infinity,
  // and logits that leave no choice are errors; after an error no number has been drawn.
  Result<int32_t> Sample(std::span<const float> logits);

  void Reset();  // as created: seed and window

  // What a session has to save to go on with the same choices: generator and window, in a
  // little-endian form of a size that depends on the options only.
  size_t StateBytes() const;
  void SaveState(uint8_t* out) const;
  // Refuses, unchanged, what SaveState of a sampler with these options cannot have written.
  Status RestoreState(std::span<const uint8_t> state);

 private:
  struct Candidate {
    float value;  // logit, then probability relative to the most likely token
    int32_t id;
  };

  Sampler() = default;
  static bool Precedes(const Candidate& a, const Candidate& b);
  Status LoadLogits(std::span<const float> logits);
  Status AddBiases();
  Status ApplyPenalties();
  void KeepTopK(size_t k);
  size_t KeepTopP(size_t count, double total);
  double Draw();

  SamplerOptions options_;
  std::vector<float> values_;          // [vocab_size] logits, then probabilities, of the candidates
  std::vector<Candidate> candidates_;  // [vocab_size]; empty without top_k and top_p

  uint64_t generator_ = 0;
  std::vector<int32_t> window_;  // ring of the last accepted tokens; empty: penalties are off
  size_t window_size_ = 0;       // tokens in the ring
  size_t window_next_ = 0;       // where the next token goes
  std::vector<int32_t> counts_;  // [vocab_size] occurrences in the ring
};

}  // namespace adder
