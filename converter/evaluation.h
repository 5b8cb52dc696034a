// How well a model predicts a text, alone and against another one.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/model.h"
#include "runtime/status.h"

namespace adder {

struct EvaluationOptions {
  uint32_t context = 512;    // tokens of a window, BOS included; each starts from a fresh state
  uint64_t windows = 0;      // of the start of the text; 0: all
  bool second_half = false;  // score only the second half of each window (as llama-perplexity does)
};

// Windows done and to do; false stops with kCancelled.
using EvaluationProgress = std::function<bool(uint64_t done, uint64_t total)>;

// A text as windows of token ids. Documents are separated by "<|endoftext|>", which becomes that
// token, or the model's first EOS. The tokens behind the last whole window are left out, unless
// there is none.
class EvaluationText {
 public:
  static Result<EvaluationText> Create(const Model& model, std::string_view text,
                                       const EvaluationOptions& options);

  size_t windows() const { return windows_; }
  // Starts with BOS if the model has one.
  std::vector<int32_t> Window(size_t index) const;
  // The first position of a window whose token is scored; at least 1.
  size_t first_scored(size_t window_tokens) const;
  std::span<const int32_t> tokens() const { return tokens_; }

 private:
  std::vector<int32_t> tokens_;
  size_t windows_ = 0, stride_ = 0;  // text tokens of a window
  int32_t bos_ = -1;
  bool second_half_ = false;
};

struct Perplexity {
  uint64_t tokens = 0;        // that were scored
  double mean_nll = 0;        // nats
  double standard_error = 0;  // of mean_nll
  double perplexity() const;
};

Result<Perplexity> MeasurePerplexity(const Model& model, const EvaluationText& text,
                                     const EvaluationProgress& progress = {},
                                     KvChoice kv_type = KvChoice::kDefault);

// Model b against the reference a, on the same windows. KL is of a from b, in nats per token.
struct Comparison {
  Perplexity a, b;
  double mean_kl = 0, median_kl = 0, kl_999 = 0, max_kl = 0;  // kl_999: its 99.9th percentile
  double kl_standard_error = 0;                               // of mean_kl
  double top1_agreement = 0;                                  // part of tokens, 0 to 1
  double log_ratio_standard_error = 0;                        // of the difference of the mean nll
};

// The models must have the same vocabulary, and `text` must be tokens of both; they may be the
// same, since kv_type is that of b alone. Memory is bounded by some rows of logits.
Result<Comparison> CompareModels(const Model& a, const Model& b, const EvaluationText& text,
                                 const EvaluationProgress& progress = {},
                                 KvChoice kv_type = KvChoice::kDefault);

}  // namespace adder
