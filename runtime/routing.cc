#include "runtime/routing.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/scalar_math.h"

namespace adder {
namespace {

bool Above(float a, float b) { return a > b || (std::isnan(a) && !std::isnan(b)); }

// The indices of the k largest of n values, largest first.
void TopK(const float* values, size_t n, size_t k, uint32_t* top) {
  size_t count = 0;
  for (size_t i = 0; i < n; ++i) {
    size_t place = count;
    while (place > 0 && Above(values[i], values[top[place - 1]])) --place;
    if (place == k) continue;
    if (count < k) ++count;
    for (size_t j = count - 1; j > place; --j) top[j] = top[j - 1];
    top[place] = static_cast<uint32_t>(i);
  }
}

// The sum of the two largest of n values, or the only one.
float SumOfTopTwo(const float* values, size_t n) {
  uint32_t top[2];
  TopK(values, n, std::min(n, size_t{2}), top);
  return n == 1 ? values[0] : values[top[0]] + values[top[1]];
}

// Values of all but the top_groups best groups become -infinity.
void KeepTopGroups(const MoeConfig& config, float* values, float* group_scores) {
  const size_t size = config.n_experts / config.n_groups;
  for (size_t g = 0; g < config.n_groups; ++g) {
    group_scores[g] = SumOfTopTwo(values + g * size, size);
  }
  for (size_t g = 0; g < config.n_groups; ++g) {
    size_t better = 0;
    for (size_t other = 0; other < config.n_groups; ++other) {
      better += Above(group_scores[other], group_scores[g]) ||
                (other < g && !Above(group_scores[g], group_scores[other]));
    }
    if (better < config.top_groups) continue;
    std::fill_n(values + g * size, size, -std::numeric_limits<float>::infinity());
  }
}

}  // namespace

void ChooseExperts(const MoeConfig& config, const float* logits, const float* bias, float* scratch,
                   uint32_t* experts, float* weights) {
  const size_t n = config.n_experts;
  const size_t k = config.top_k;
  const bool sigmoid = config.routing == Routing::kSigmoid;
  if (sigmoid) {
    for (size_t e = 0; e < n; ++e) scratch[e] = Sigmoid(logits[e]) + bias[e];
    if (config.n_groups > 1) KeepTopGroups(config, scratch, scratch + n);
  }
  TopK(sigmoid ? scratch : logits, n, k, experts);
  const float largest = logits[experts[0]];
  std::sort(experts, experts + k);

  float sum = 0.0f;
  for (size_t j = 0; j < k; ++j) {
    const float logit = logits[experts[j]];
    weights[j] = sigmoid ? Sigmoid(logit) : Exp(logit - largest);
    sum += weights[j];
  }
  if (config.routing == Routing::kSoftmaxAll) {
    sum = 0.0f;
    for (size_t e = 0; e < n; ++e) sum += Exp(logits[e] - largest);
  }
  const float divisor = !sigmoid ? sum : config.normalize ? sum + 1e-20f : 1.0f;
  for (size_t j = 0; j < k; ++j) weights[j] = weights[j] / divisor * config.scale;
}

ExpertRows ExpertRows::Carve(Arena* arena, size_t n_experts, size_t max_rows) {
  ExpertRows rows;
  rows.ends = arena->Take<uint32_t>(n_experts);
  rows.tokens = arena->Take<uint32_t>(max_rows);
  rows.weights = arena->Take<float>(max_rows);
  return rows;
}

void ExpertRows::Sort(const uint32_t* chosen, const float* chosen_weights, size_t n_tokens,
                      size_t top_k, size_t n_experts) {
  std::fill_n(ends, n_experts, 0u);
  for (size_t i = 0; i < n_tokens * top_k; ++i) ++ends[chosen[i]];
  // Where each expert's rows begin; filling them in moves that to where they end.
  uint32_t next = 0;
  for (size_t e = 0; e < n_experts; ++e) {
    const uint32_t count = ends[e];
    ends[e] = next;
    next += count;
  }
  for (size_t i = 0; i < n_tokens * top_k; ++i) {
    const uint32_t row = ends[chosen[i]]++;
    tokens[row] = static_cast<uint32_t>(i / top_k);
    weights[row] = chosen_weights[i];
  }
}

}  // namespace adder
