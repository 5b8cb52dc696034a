// Compares a model with reference values that another implementation computed: golden.safetensors
// with input_ids, logits, and optionally hidden_states, greedy_ids and logits_with_greedy.
#pragma once

#include <cstddef>
#include <string>

#include "runtime/model.h"
#include "runtime/session.h"
#include "runtime/status.h"

namespace adder {

struct GoldenReport {
  size_t tokens = 0;           // prompt positions compared
  double logits_error = 0;     // largest |difference| / standard deviation of the reference logits
  size_t top1_equal = 0;       // positions whose most likely token is the same
  size_t hidden_layers = 0;    // layers compared; 0: the file has no hidden states of this layout
  double hidden_error = 0;     // largest |difference| / standard deviation, over those layers
  size_t greedy_expected = 0;  // length of the greedy continuation; 0: none in the file
  size_t greedy_equal = 0;     // how many of its tokens agree before the first difference
};

// Runs the prompt, and the greedy continuation behind it, through a session of `model`.
Result<GoldenReport> CheckGolden(const Model& model, const std::string& golden_path,
                                 const SessionOptions& options = {});

}  // namespace adder
