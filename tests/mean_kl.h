// How far the predictions of one session are from those of another on the same tokens.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "runtime/session_buffer.h"

namespace adder::test {

// log of the softmax of logits, in double.
inline std::vector<double> LogProbabilities(std::span<const float> logits) {
  double largest = -INFINITY, sum = 0;
  for (const float l : logits) largest = std::max(largest, static_cast<double>(l));
  for (const float l : logits) sum += std::exp(static_cast<double>(l) - largest);
  std::vector<double> out;
  for (const float l : logits) out.push_back(static_cast<double>(l) - largest - std::log(sum));
  return out;
}

// Mean KL, behind each of the tokens, of a session with options `exact` from one with `rounded`.
inline double MeanKl(const Model& model, const SessionOptions& exact, const SessionOptions& rounded,
                     std::span<const int32_t> tokens) {
  const auto a = SessionBuffer::Create(model, exact), b = SessionBuffer::Create(model, rounded);
  if (!a.ok() || !b.ok()) {
    ADD_FAILURE() << a.status().message() << b.status().message();
    return NAN;
  }
  double kl = 0;
  for (const int32_t token : tokens) {
    EXPECT_TRUE(a->session().FeedOne(token).ok());
    EXPECT_TRUE(b->session().FeedOne(token).ok());
    const auto p = LogProbabilities(a->session().logits());
    const auto q = LogProbabilities(b->session().logits());
    for (size_t v = 0; v < p.size(); ++v) kl += std::exp(p[v]) * (p[v] - q[v]);
  }
  return kl / static_cast<double>(tokens.size());
}

}  // namespace adder::test
