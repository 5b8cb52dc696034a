// Which experts a token goes through, and which tokens an expert sees.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/arena.h"
#include "runtime/model_config.h"

namespace adder {

// Chooses the top_k experts of a token by its logits [n_experts]: their indices, ascending, and
// their weights. bias [n_experts] takes part in the choice of kSigmoid; other routings ignore it.
// Of equal experts the one of lowest index is taken. NaN counts as the largest number: it is
// chosen, and so reaches the output. scratch [2 * n_experts].
void ChooseExperts(const MoeConfig& config, const float* logits, const float* bias, float* scratch,
                   uint32_t* experts, float* weights);

// The pairs of token and chosen expert of a tile, ordered by expert and then by token.
struct ExpertRows {
  uint32_t* ends;    // [n_experts] where the rows of an expert end, and those of the next begin
  uint32_t* tokens;  // [rows]
  float* weights;    // [rows]

  static ExpertRows Carve(Arena* arena, size_t n_experts, size_t max_rows);

  // From what ChooseExperts gave for each token: experts and weights [tokens][top_k].
  void Sort(const uint32_t* chosen, const float* chosen_weights, size_t n_tokens, size_t top_k,
            size_t n_experts);

  size_t begin(size_t expert) const { return expert == 0 ? 0 : ends[expert - 1]; }
  size_t count(size_t expert) const { return ends[expert] - begin(expert); }
  size_t active(size_t n_experts) const {  // experts with rows
    size_t active = 0;
    for (size_t e = 0; e < n_experts; ++e) active += count(e) > 0;
    return active;
  }
};

}  // namespace adder
