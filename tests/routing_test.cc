// The choice of experts, against sorting in double precision, and where the equations leave it
// open: equal logits, NaN, infinities.
#include "runtime/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/reference_feed_forward.h"

namespace adder {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Choice {
  std::vector<uint32_t> experts;
  std::vector<float> weights;
};

Choice Choose(const MoeConfig& config, const std::vector<float>& logits,
              const std::vector<float>& bias) {
  Choice choice = {std::vector<uint32_t>(config.top_k), std::vector<float>(config.top_k)};
  std::vector<float> scratch(2 * config.n_experts);
  ChooseExperts(config, logits.data(), bias.data(), scratch.data(), choice.experts.data(),
                choice.weights.data());
  return choice;
}

const MoeConfig kConfigs[] = {
    {.n_experts = 1, .top_k = 1, .routing = Routing::kSoftmaxAll},
    {.n_experts = 16, .top_k = 2, .routing = Routing::kSoftmaxAll},
    {.n_experts = 7, .top_k = 7, .routing = Routing::kSoftmaxAll, .scale = 0.5f},
    {.n_experts = 1, .top_k = 1, .routing = Routing::kSoftmaxTop},
    {.n_experts = 62, .top_k = 6, .routing = Routing::kSoftmaxTop},
    {.n_experts = 9, .top_k = 9, .routing = Routing::kSoftmaxTop},
    {.n_experts = 128, .top_k = 6, .routing = Routing::kSigmoid, .scale = 2.5f},
    {.n_experts = 8, .top_k = 3, .routing = Routing::kSigmoid, .normalize = false, .scale = 1.5f},
    {.n_experts = 32, .top_k = 4, .routing = Routing::kSigmoid, .n_groups = 8, .top_groups = 3},
    {.n_experts = 12, .top_k = 4, .routing = Routing::kSigmoid, .n_groups = 2, .top_groups = 1},
    {.n_experts = 6, .top_k = 2, .routing = Routing::kSigmoid, .n_groups = 6, .top_groups = 3},
};

TEST(Routing, IsItsEquations) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 2);
  for (const MoeConfig& config : kConfigs) {
    for (int round = 0; round < 200; ++round) {
      std::vector<float> logits(config.n_experts), bias(config.n_experts);
      for (float& v : logits) v = normal(random);
      for (float& v : bias) v = normal(random) * 0.1f;
      const Choice choice = Choose(config, logits, bias);
      const test::Vec expected =
          test::ReferenceRouting(config, test::Vec(logits.begin(), logits.end()), bias);
      ASSERT_TRUE(std::is_sorted(choice.experts.begin(), choice.experts.end()));
      size_t next = 0;
      for (size_t e = 0; e < config.n_experts; ++e) {
        const bool chosen = next < config.top_k && choice.experts[next] == e;
        ASSERT_EQ(chosen, expected[e] > 0) << "expert " << e << " of " << config.n_experts;
        if (!chosen) continue;
        ASSERT_NEAR(choice.weights[next], expected[e], 2e-6 * expected[e]);
        ++next;
      }
      ASSERT_EQ(next, config.top_k);
    }
  }
}

TEST(Routing, OfEqualLogitsTheLowestIndicesWin) {
  for (const Routing routing : {Routing::kSoftmaxAll, Routing::kSoftmaxTop, Routing::kSigmoid}) {
    const MoeConfig config = {.n_experts = 8, .top_k = 3, .routing = routing};
    const std::vector<float> bias(8, 0.25f);
    EXPECT_EQ(Choose(config, std::vector<float>(8, 1.5f), bias).experts,
              (std::vector<uint32_t>{0, 1, 2}));
    EXPECT_EQ(Choose(config, {1, 2, 1, 2, 2, 1, 3, 2}, bias).experts,
              (std::vector<uint32_t>{1, 3, 6}));
    EXPECT_EQ(Choose(config, {-0.0f, 0, -0.0f, 0, 0, 0, 0, 0}, bias).experts,
              (std::vector<uint32_t>{0, 1, 2}));
  }
  const MoeConfig groups = {
      .n_experts = 8, .top_k = 2, .routing = Routing::kSigmoid, .n_groups = 4, .top_groups = 2};
  const std::vector<float> none(8, 0.0f);
  EXPECT_EQ(Choose(groups, {0, 0, 1, 1, 1, 1, 1, 1}, none).experts, (std::vector<uint32_t>{2, 3}));
}

TEST(Routing, TheBiasTakesPartInTheChoiceOnly) {
  const MoeConfig config = {.n_experts = 4, .top_k = 2, .routing = Routing::kSigmoid};
  const Choice choice = Choose(config, {0, 0, 3, 3}, {5, 5, 0, 0});
  EXPECT_EQ(choice.experts, (std::vector<uint32_t>{0, 1}));
  EXPECT_NEAR(choice.weights[0], 0.5, 1e-7);
  EXPECT_NEAR(choice.weights[1], 0.5, 1e-7);
}

TEST(Routing, AGroupIsAsGoodAsItsTwoBest) {
  const MoeConfig config = {
      .n_experts = 6, .top_k = 2, .routing = Routing::kSigmoid, .n_groups = 2, .top_groups = 1};
  // The best expert lies in the worse group.
  EXPECT_EQ(Choose(config, {9, -9, -9, 1, 1, -9}, std::vector<float>(6, 0.0f)).experts,
            (std::vector<uint32_t>{3, 4}));
}

TEST(Routing, NaNIsChosenAndReachesTheWeights) {
  const std::vector<float> bias(6, 0.0f);
  for (const Routing routing : {Routing::kSoftmaxAll, Routing::kSoftmaxTop, Routing::kSigmoid}) {
    for (const uint32_t n_groups : {1u, 3u}) {
      const MoeConfig config = {
          .n_experts = 6, .top_k = 2, .routing = routing, .n_groups = n_groups, .top_groups = 1};
      for (uint32_t faulty = 0; faulty < 6; ++faulty) {
        std::vector<float> logits = {5, 4, 3, 2, 1, 0};
        logits[faulty] = kNan;
        const Choice choice = Choose(config, logits, bias);
        EXPECT_TRUE(std::count(choice.experts.begin(), choice.experts.end(), faulty) == 1);
        for (const float weight : choice.weights) EXPECT_TRUE(std::isnan(weight));
      }
      const Choice all = Choose(config, std::vector<float>(6, kNan), bias);
      EXPECT_EQ(all.experts, (std::vector<uint32_t>{0, 1}));
      EXPECT_TRUE(std::isnan(all.weights[0]));
    }
  }
}

TEST(Routing, InfinitiesAndWideLogitsChooseWithinBounds) {
  const std::vector<float> bias(5, 0.0f);
  for (const Routing routing : {Routing::kSoftmaxAll, Routing::kSoftmaxTop, Routing::kSigmoid}) {
    const MoeConfig config = {.n_experts = 5, .top_k = 2, .routing = routing};
    EXPECT_EQ(Choose(config, {1, kInfinity, 2, kInfinity, 3}, bias).experts,
              (std::vector<uint32_t>{1, 3}));
    EXPECT_EQ(Choose(config, std::vector<float>(5, -kInfinity), bias).experts,
              (std::vector<uint32_t>{0, 1}));
    const Choice wide = Choose(config, {-200, 200, -200, -1000, -1000}, bias);
    EXPECT_EQ(wide.experts, (std::vector<uint32_t>{0, 1}));
    EXPECT_EQ(wide.weights[1], 1.0f);
    EXPECT_LT(wide.weights[0], 1e-30f);
  }
}

TEST(ExpertRows, LieByExpertThenToken) {
  const std::vector<uint32_t> chosen = {1, 4, 0, 4, 1, 4};  // three tokens, two each
  const std::vector<float> weights = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f};
  std::vector<uint32_t> ends(6), tokens(6);
  std::vector<float> sorted(6);
  ExpertRows rows = {ends.data(), tokens.data(), sorted.data()};
  rows.Sort(chosen.data(), weights.data(), 3, 2, 6);
  EXPECT_EQ(ends, (std::vector<uint32_t>{1, 3, 3, 3, 6, 6}));
  EXPECT_EQ(tokens, (std::vector<uint32_t>{1, 0, 2, 0, 1, 2}));
  EXPECT_EQ(sorted, (std::vector<float>{0.3f, 0.1f, 0.5f, 0.2f, 0.4f, 0.6f}));
  EXPECT_EQ(rows.begin(1), 1u);
  EXPECT_EQ(rows.count(1), 2u);
  EXPECT_EQ(rows.count(2), 0u);
  EXPECT_EQ(rows.active(6), 3u);
}

}  // namespace
}  // namespace adder
