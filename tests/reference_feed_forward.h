// Feed-forward layers and mixtures of experts in double precision, straight from ARCHITECTURES.md
// sections 1, 7, 9 and 10; nothing shared with the runtime.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/block_model.h"

namespace adder::test {

inline double Activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kRelu2:
      return x > 0 ? x * x : 0;
    case Activation::kGelu:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
  }
  return 0;
}

inline Vec ReferenceMlp(const BlockModel& model, const MlpConfig& config, const std::string& prefix,
                        const Vec& x) {
  Vec y = model.Times(prefix + "up", x);
  const Vec z = config.gated ? model.Times(prefix + "gate", x) : y;
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] = Activate(config.activation, z[i]) * (config.gated ? y[i] : 1);
  }
  return model.Times(prefix + "down", y);
}

// The weight of every expert; 0: not chosen. `bias` is read by kSigmoid only.
inline Vec ReferenceRouting(const MoeConfig& c, const Vec& logits, const std::vector<float>& bias) {
  const bool sigmoid = c.routing == Routing::kSigmoid;
  const size_t n = c.n_experts;
  Vec score(n), choice(n), weights(n, 0.0);
  for (size_t e = 0; e < n; ++e) {
    score[e] = sigmoid ? 1 / (1 + std::exp(-logits[e])) : std::exp(logits[e]);
    choice[e] = score[e] + (sigmoid ? bias[e] : 0);
  }
  if (sigmoid && c.n_groups > 1) {
    const size_t size = n / c.n_groups;
    std::vector<std::pair<double, size_t>> groups;
    for (size_t g = 0; g < c.n_groups; ++g) {
      const auto first = choice.begin() + static_cast<std::ptrdiff_t>(g * size);
      Vec members(first, first + static_cast<std::ptrdiff_t>(size));
      std::sort(members.rbegin(), members.rend());
      groups.emplace_back(members[0] + (size > 1 ? members[1] : 0), g);
    }
    std::sort(groups.rbegin(), groups.rend());
    for (size_t i = c.top_groups; i < c.n_groups; ++i) {
      for (size_t e = 0; e < size; ++e) choice[groups[i].second * size + e] = -1e300;
    }
  }
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return choice[a] > choice[b]; });
  double sum = 0;
  for (size_t j = 0; j < (c.routing == Routing::kSoftmaxAll ? n : c.top_k); ++j) {
    sum += score[order[j]];
  }
  const double divisor = sigmoid && !c.normalize ? 1 : sum;
  for (size_t j = 0; j < c.top_k; ++j) weights[order[j]] = score[order[j]] / divisor * c.scale;
  return weights;
}

inline Vec ReferenceMoe(const BlockModel& model, const MoeConfig& c, const Vec& u) {
  std::vector<float> bias;
  if (c.routing == Routing::kSigmoid) bias = model.Values("layers.0.router_bias");
  const Vec weights = ReferenceRouting(c, model.Times("router", u), bias);
  const Vec x = c.d_latent > 0 ? model.Times("latent_in", u) : u;
  Vec sum(x.size(), 0.0);
  for (size_t e = 0; e < weights.size(); ++e) {
    if (weights[e] == 0) continue;
    const Vec y = ReferenceMlp(model, c.expert, "experts." + std::to_string(e) + ".", x);
    for (size_t i = 0; i < y.size(); ++i) sum[i] += weights[e] * y[i];
  }
  Vec out = c.d_latent > 0 ? model.Times("latent_out", sum) : sum;
  if (c.d_shared > 0) {
    const Vec y = ReferenceMlp(model, c.expert, "shared.", u);
    for (size_t i = 0; i < y.size(); ++i) out[i] += y[i];
  }
  return out;
}

}  // namespace adder::test
