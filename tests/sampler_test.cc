#include "runtime/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/alloc_counter.h"

namespace adder {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Sampler Make(const SamplerOptions& options, int32_t vocab_size) {
  auto sampler = Sampler::Create(options, vocab_size);
  if (!sampler.ok()) ADD_FAILURE() << sampler.status().message();
  return std::move(*sampler);
}

int32_t Next(Sampler& sampler, const std::vector<float>& logits) {
  const auto token = sampler.Sample(logits);
  EXPECT_TRUE(token.ok()) << token.status().message();
  return token.ok() ? *token : -1;
}

std::string SampleError(Sampler& sampler, const std::vector<float>& logits) {
  const auto token = sampler.Sample(logits);
  return token.ok() ? "token " + std::to_string(*token) : token.status().message();
}

// Logits of given probabilities.
std::vector<float> Logits(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

std::vector<double> Counts(Sampler& sampler, const std::vector<float>& logits, int draws) {
  std::vector<double> counts(logits.size());
  for (int i = 0; i < draws; ++i) ++counts.at(static_cast<size_t>(Next(sampler, logits)));
  return counts;
}

// Draws and compares with the expected distribution. The bound is 6 standard deviations of
// chi-square above its mean; the seed is fixed, so that a pass is a pass for ever.
void ExpectDistribution(const SamplerOptions& options, const std::vector<float>& logits,
                        std::vector<double> expected) {
  constexpr int kDraws = 20000;
  Sampler sampler = Make(options, static_cast<int32_t>(logits.size()));
  const std::vector<double> counts = Counts(sampler, logits, kDraws);
  const double total = std::accumulate(expected.begin(), expected.end(), 0.0);
  double chi_square = 0.0, freedom = -1.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double mean = expected[i] / total * kDraws;
    if (expected[i] == 0.0) {
      EXPECT_EQ(counts[i], 0.0) << "token " << i;
      continue;
    }
    chi_square += (counts[i] - mean) * (counts[i] - mean) / mean;
    freedom += 1.0;
  }
  EXPECT_LT(chi_square, freedom + 6.0 * std::sqrt(2.0 * freedom + 1.0));
}

SamplerOptions Temperature(float temperature) {
  SamplerOptions options;
  options.temperature = temperature;
  options.seed = 42;
  return options;
}

TEST(Sampler, GreedyTakesTheLowestIdAmongEquals) {
  Sampler sampler = Make({}, 5);
  EXPECT_EQ(Next(sampler, {1.0f, 3.0f, 2.0f, 3.0f, 3.0f}), 1);
  EXPECT_EQ(Next(sampler, {-0.0f, 0.0f, -1.0f, 0.0f, 0.0f}), 0);
  EXPECT_EQ(Next(sampler, {-INFINITY, -FLT_MAX, -INFINITY, -FLT_MAX, -INFINITY}), 1);
}

TEST(Sampler, TemperatureShapesTheDistribution) {
  const std::vector<double> p = {0.5, 0.2, 0.15, 0.1, 0.05};
  ExpectDistribution(Temperature(1.0f), Logits(p), p);
  std::vector<double> sharp, flat;
  for (double v : p) {
    sharp.push_back(v * v);
    flat.push_back(std::sqrt(v));
  }
  ExpectDistribution(Temperature(0.5f), Logits(p), sharp);
  ExpectDistribution(Temperature(2.0f), Logits(p), flat);
}

TEST(Sampler, ExtremeTemperatures) {
  const std::vector<float> logits = {0.0f, 5.0f, 4.999f, -300.0f};
  ExpectDistribution(Temperature(FLT_TRUE_MIN), logits, {0, 1, 0, 0});
  ExpectDistribution(Temperature(FLT_MAX), logits, {1, 1, 1, 1});
  ExpectDistribution(Temperature(1.0f), {FLT_MAX, -FLT_MAX, FLT_MAX, 0.0f}, {1, 0, 1, 0});
  ExpectDistribution(Temperature(FLT_TRUE_MIN), {2.0f, 2.0f, 1.0f}, {1, 1, 0});
}

TEST(Sampler, TopKKeepsTheLargest) {
  SamplerOptions options = Temperature(1.0f);
  const std::vector<double> p = {0.1, 0.4, 0.2, 0.05, 0.25};
  options.top_k = 1;
  ExpectDistribution(options, Logits(p), {0, 1, 0, 0, 0});
  options.top_k = 3;
  ExpectDistribution(options, Logits(p), {0, 0.4, 0.2, 0, 0.25});
  for (int32_t off : {0, 5, 6, std::numeric_limits<int32_t>::max()}) {
    options.top_k = off;
    ExpectDistribution(options, Logits(p), p);
  }
  // Among equals the lower ids stay.
  options.top_k = 2;
  ExpectDistribution(options, {1.0f, 1.0f, 1.0f, 1.0f}, {1, 1, 0, 0});
  ExpectDistribution(options, {1.0f, 1.0f, 2.0f, 1.0f}, {1.0, 0, std::exp(1.0), 0});
  // Fewer finite logits than k.
  options.top_k = 3;
  ExpectDistribution(options, {-INFINITY, 1.0f, -INFINITY, -INFINITY, 1.0f}, {0, 1, 0, 0, 1});
}

TEST(Sampler, TopPKeepsTheFewestThatReachIt) {
  SamplerOptions options = Temperature(1.0f);
  const std::vector<double> p = {0.1, 0.5, 0.05, 0.3, 0.05};
  options.top_p = 1e-30f;
  ExpectDistribution(options, Logits(p), {0, 1, 0, 0, 0});
  options.top_p = 0.49f;
  ExpectDistribution(options, Logits(p), {0, 1, 0, 0, 0});
  options.top_p = 0.51f;
  ExpectDistribution(options, Logits(p), {0, 0.5, 0, 0.3, 0});
  options.top_p = 0.89f;
  ExpectDistribution(options, Logits(p), {0.1, 0.5, 0, 0.3, 0});
  options.top_p = 0.93f;  // of the two equals the lower id completes it
  ExpectDistribution(options, Logits(p), {0.1, 0.5, 0.05, 0.3, 0});
  options.top_p = 1.0f;
  ExpectDistribution(options, Logits(p), p);
}

TEST(Sampler, TopPIsOfWhatTopKLeft) {
  SamplerOptions options = Temperature(1.0f);
  const std::vector<double> p = {0.4, 0.3, 0.2, 0.1};
  options.top_k = 2;
  options.top_p = 0.55f;  // of 0.7: token 0 alone reaches 0.4 / 0.7 = 0.57
  ExpectDistribution(options, Logits(p), {1, 0, 0, 0});
  options.top_k = 0;
  ExpectDistribution(options, Logits(p), {0.4, 0.3, 0, 0});
}

TEST(Sampler, MinPIsRelativeToTheMostLikely) {
  SamplerOptions options = Temperature(1.0f);
  const std::vector<double> p = {0.09, 0.5, 0.11, 0.3};
  options.min_p = 0.2f;  // of 0.5: 0.1
  ExpectDistribution(options, Logits(p), {0, 0.5, 0.11, 0.3});
  options.min_p = 0.999999f;
  ExpectDistribution(options, Logits(p), {0, 1, 0, 0});
  options.min_p = 1e-30f;
  ExpectDistribution(options, Logits(p), p);
  options.min_p = 0.2f;
  options.top_p = 0.7f;
  ExpectDistribution(options, Logits(p), {0, 0.5, 0, 0.3});
}

TEST(Sampler, IdsBeyondTheVocabularyAreNeverChosen) {
  // The padding of a head: larger logits, even NaN, do not matter.
  const std::vector<float> logits = {1.0f, 2.0f, 100.0f, kNan, INFINITY};
  Sampler greedy = Make({}, 2);
  EXPECT_EQ(Next(greedy, logits), 1);
  Sampler random = Make(Temperature(10.0f), 2);
  for (int i = 0; i < 200; ++i) EXPECT_LT(Next(random, logits), 2);
  Sampler three = Make({}, 6);
  EXPECT_EQ(SampleError(three, logits), "5 logits, vocab_size is 6");
}

TEST(Sampler, LogitsWithoutAChoiceAreErrors) {
  for (float temperature : {0.0f, 1.0f}) {
    SamplerOptions options = Temperature(temperature);
    Sampler sampler = Make(options, 3);
    EXPECT_EQ(SampleError(sampler, {1.0f, kNan, kNan}), "logit of token 1 is nan");
    EXPECT_EQ(SampleError(sampler, {1.0f, 2.0f, INFINITY}), "logit of token 2 is inf");
    EXPECT_EQ(SampleError(sampler, {-INFINITY, -INFINITY, -INFINITY}),
              "no token to choose: all 3 logits are -infinity");
    EXPECT_EQ(SampleError(sampler, {1.0f, 2.0f}), "2 logits, vocab_size is 3");
    EXPECT_EQ(SampleError(sampler, {}), "0 logits, vocab_size is 3");
    // A forbidden token's NaN is still a fault of the model.
    options.logit_bias = {{1, -INFINITY}};
    Sampler biased = Make(options, 3);
    EXPECT_EQ(SampleError(biased, {1.0f, kNan, 0.0f}), "logit of token 1 is nan");
    EXPECT_EQ(SampleError(biased, {1.0f, INFINITY, 0.0f}), "logit of token 1 is inf");
    options.logit_bias = {{1, FLT_MAX}};
    Sampler overflow = Make(options, 3);
    EXPECT_EQ(SampleError(overflow, {1.0f, FLT_MAX, 0.0f}),
              "logit of token 1 is inf after its bias 3.40282e+38");
    options.logit_bias.clear();
    options.repetition_penalty = 1e-30f;
    Sampler rewarded = Make(options, 3);
    for (int32_t token : {1, 2, 1}) rewarded.Accept(token);
    EXPECT_EQ(SampleError(rewarded, {0.0f, 1e20f, -1.0f}),
              "logit of token 1 is inf after penalties");
    EXPECT_EQ(Next(rewarded, {0.0f, 1.0f, -1.0f}), 1) << "still intact";
  }
}

TEST(Sampler, AnErrorDrawsNothing) {
  const std::vector<float> logits = Logits({0.3, 0.3, 0.4});
  Sampler a = Make(Temperature(1.0f), 3), b = Make(Temperature(1.0f), 3);
  for (int i = 0; i < 50; ++i) {
    EXPECT_FALSE(b.Sample(std::vector<float>{kNan, 0.0f, 0.0f}).ok());
    EXPECT_EQ(Next(a, logits), Next(b, logits));
  }
}

TEST(Sampler, LogitBiasAddsAndForbids) {
  SamplerOptions options;
  options.logit_bias = {{0, 1.5f}, {0, 1.0f}, {2, -INFINITY}};
  Sampler greedy = Make(options, 4);
  EXPECT_EQ(Next(greedy, {1.0f, 3.4f, 9.0f, 0.0f}), 0);  // 3.5 against 3.4
  EXPECT_EQ(Next(greedy, {1.0f, 3.6f, 9.0f, 0.0f}), 1);
  EXPECT_EQ(SampleError(greedy, {-INFINITY, -INFINITY, 9.0f, -INFINITY}),
            "no token to choose: all 4 logits are -infinity");
  SamplerOptions random = Temperature(1.0f);
  random.logit_bias = {{1, static_cast<float>(std::log(3.0))}, {2, -INFINITY}};
  ExpectDistribution(random, Logits({0.25, 0.25, 0.25, 0.25}), {1, 3, 0, 1});
}

TEST(Sampler, RepetitionPenaltyDividesPositiveAndMultipliesNegative) {
  SamplerOptions options;
  options.repetition_penalty = 2.0f;
  Sampler sampler = Make(options, 3);
  sampler.Accept(0);
  sampler.Accept(0);                                // counts once
  EXPECT_EQ(Next(sampler, {4.0f, 1.9f, 0.0f}), 0);  // 2
  EXPECT_EQ(Next(sampler, {4.0f, 2.1f, 0.0f}), 1);
  EXPECT_EQ(Next(sampler, {-1.0f, -1.9f, -9.0f}), 1);  // -2
  EXPECT_EQ(Next(sampler, {-1.0f, -2.1f, -9.0f}), 0);
  EXPECT_EQ(Next(sampler, {-INFINITY, -2.1f, -9.0f}), 1);
}

TEST(Sampler, PresenceAndFrequencyPenalties) {
  SamplerOptions options;
  options.presence_penalty = 0.5f;
  options.frequency_penalty = 0.25f;
  Sampler sampler = Make(options, 3);
  for (int32_t token : {0, 2, 0, 0}) sampler.Accept(token);
  // Token 0: 0.5 + 3 * 0.25 = 1.25; token 2: 0.75.
  EXPECT_EQ(Next(sampler, {1.26f, 0.0f, 0.0f}), 0);
  EXPECT_EQ(Next(sampler, {1.24f, 0.0f, 0.0f}), 1);
  EXPECT_EQ(Next(sampler, {0.0f, 0.0f, 0.76f}), 2);
  EXPECT_EQ(Next(sampler, {0.0f, 0.0f, 0.74f}), 1);
  // Negative penalties reward.
  options.presence_penalty = -0.5f;
  options.frequency_penalty = 0.0f;
  Sampler reward = Make(options, 2);
  reward.Accept(1);
  EXPECT_EQ(Next(reward, {0.4f, 0.0f}), 1);
  EXPECT_EQ(Next(reward, {0.6f, 0.0f}), 0);
}

TEST(Sampler, BiasComesBeforePenalties) {
  SamplerOptions options;
  options.logit_bias = {{0, 4.0f}};
  options.repetition_penalty = 2.0f;
  Sampler sampler = Make(options, 2);
  sampler.Accept(0);
  EXPECT_EQ(Next(sampler, {0.0f, 2.1f}), 1);  // (0 + 4) / 2 = 2, not 0 / 2 + 4
  EXPECT_EQ(Next(sampler, {0.0f, 1.9f}), 0);
}

TEST(Sampler, WindowForgets) {
  SamplerOptions options;
  options.frequency_penalty = 1.0f;
  options.penalty_window = 3;
  Sampler sampler = Make(options, 3);
  const std::vector<float> logits = {1.5f, 0.0f, -9.0f};
  sampler.Accept(0);
  sampler.Accept(0);
  EXPECT_EQ(Next(sampler, logits), 1);  // 1.5 - 2
  sampler.Accept(2);
  EXPECT_EQ(Next(sampler, logits), 1);  // 0 0 2
  sampler.Accept(2);
  EXPECT_EQ(Next(sampler, logits), 0);  // 0 2 2: 1.5 - 1
  sampler.Accept(0);
  EXPECT_EQ(Next(sampler, logits), 0);  // 2 2 0
  sampler.Accept(0);
  EXPECT_EQ(Next(sampler, logits), 1);  // 2 0 0
  for (int32_t token : {-1, 3, std::numeric_limits<int32_t>::min(), 1000}) sampler.Accept(token);
  EXPECT_EQ(Next(sampler, logits), 1) << "ids outside the vocabulary take no place";
  sampler.Reset();
  EXPECT_EQ(Next(sampler, logits), 0);
  options.penalty_window = 0;
  Sampler off = Make(options, 3);
  for (int i = 0; i < 5; ++i) off.Accept(0);
  EXPECT_EQ(Next(off, logits), 0);
}

TEST(Sampler, WindowAgreesWithAPlainCount) {
  constexpr int32_t kVocab = 7;
  SamplerOptions options;
  options.repetition_penalty = 1.3f;
  options.presence_penalty = 0.2f;
  options.frequency_penalty = 0.1f;
  options.penalty_window = 5;
  Sampler sampler = Make(options, kVocab);
  std::vector<int32_t> history;
  uint32_t state = 1;
  for (int step = 0; step < 500; ++step) {
    std::vector<float> logits(kVocab);
    for (float& v : logits) {
      state = state * 1664525u + 1013904223u;
      v = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
    }
    std::vector<float> expected = logits;
    for (int32_t t = 0; t < kVocab; ++t) {
      const auto from = history.end() - std::min<std::ptrdiff_t>(5, std::ssize(history));
      const auto count = std::count(from, history.end(), t);
      float& v = expected[static_cast<size_t>(t)];
      if (count == 0) continue;
      v = v > 0.0f ? v / 1.3f : v * 1.3f;
      v -= static_cast<float>(count) * 0.1f;
      v -= 0.2f;
    }
    const auto best = std::max_element(expected.begin(), expected.end()) - expected.begin();
    EXPECT_EQ(Next(sampler, logits), best);
    history.push_back(static_cast<int32_t>((state >> 9) % kVocab));
    sampler.Accept(history.back());
  }
}

TEST(Sampler, SameSeedSameSequence) {
  // Fixed once: a change of generator, order of options or order of sums shows here.
  const std::vector<float> logits = Logits({0.05, 0.1, 0.15, 0.2, 0.25, 0.1, 0.1, 0.05});
  SamplerOptions options = Temperature(0.9f);
  options.seed = 1234567;
  options.top_k = 7;
  options.top_p = 0.97f;
  options.min_p = 0.05f;
  options.presence_penalty = 0.25f;
  options.penalty_window = 4;
  const std::vector<int32_t> golden = {3, 4, 2, 4, 6, 4, 2, 4, 4, 5, 4, 4, 2, 3, 3, 4,
                                       5, 4, 2, 3, 4, 4, 4, 1, 1, 6, 1, 2, 4, 0, 4, 5};
  Sampler sampler = Make(options, 8);
  for (int run = 0; run < 2; ++run) {
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < 32; ++i) {
      tokens.push_back(Next(sampler, logits));
      sampler.Accept(tokens.back());
    }
    EXPECT_EQ(tokens, golden) << ::testing::PrintToString(tokens);
    sampler.Reset();
  }
  options.seed = 1234568;
  Sampler other = Make(options, 8);
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < 32; ++i) {
    tokens.push_back(Next(other, logits));
    other.Accept(tokens.back());
  }
  EXPECT_NE(tokens, golden);
}

TEST(Sampler, GeneratorIsSplitMix64) {
  // Two equal tokens: the choice is the top bit of each output. Seed 1234567's first outputs are
  // published with the reference code: 6457827717110365317, 3203168211198807973,
  // 9817491932198370423, 4593380528125082431, 16408922859458223821.
  SamplerOptions options = Temperature(1.0f);
  options.seed = 1234567;
  Sampler sampler = Make(options, 2);
  for (int32_t expected : {0, 0, 1, 0, 1}) EXPECT_EQ(Next(sampler, {0.0f, 0.0f}), expected);
}

// The filters by plain sorting, as the header describes them.
std::vector<bool> KeptBySorting(const SamplerOptions& options, const std::vector<float>& logits) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (options.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(options.top_k)));
  std::vector<double> p;
  for (size_t id : order) {
    p.push_back(
        std::exp(static_cast<double>((logits[id] - logits[order[0]]) / options.temperature)));
  }
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  size_t kept = 0;
  for (double mass = 0.0; kept < p.size() && mass < static_cast<double>(options.top_p) * total;) {
    mass += p[kept++];
  }
  while (p[kept - 1] < static_cast<double>(options.min_p)) --kept;
  std::vector<bool> result(logits.size());
  for (size_t i = 0; i < kept; ++i) result[order[i]] = true;
  return result;
}

TEST(Sampler, FiltersAgreeWithPlainSorting) {
  constexpr int32_t kVocab = 3000;
  uint32_t state = 99;
  for (int round = 0; round < 12; ++round) {
    std::vector<float> logits(kVocab);
    for (size_t i = 0; i < kVocab; ++i) {
      state = state * 1664525u + 1013904223u;
      const float u = static_cast<float>(state >> 8) * 0x1p-24f;
      // Random; few distinct values (many ties); rising; falling.
      const float rank = static_cast<float>(i) * 0x1p-9f;
      const float shapes[] = {u * 6.0f, std::floor(u * 5.0f), rank, -rank};
      logits[i] = shapes[round % 4];
    }
    SamplerOptions options = Temperature(1.0f);
    options.top_k = round < 4 ? 0 : 137 * (round - 3);
    options.top_p = round % 3 == 0 ? 1.0f : 0.3f + 0.05f * static_cast<float>(round);
    options.min_p = round % 2 == 0 ? 0.0f : 0.01f;
    const std::vector<bool> kept = KeptBySorting(options, logits);
    const auto expected = std::count(kept.begin(), kept.end(), true);
    Sampler sampler = Make(options, kVocab);
    std::vector<bool> seen(kVocab);
    for (int i = 0; i < 4000; ++i) seen[static_cast<size_t>(Next(sampler, logits))] = true;
    for (size_t i = 0; i < kVocab; ++i) EXPECT_LE(seen[i], kept[i]) << round << " token " << i;
    // Most of a small set is seen: nothing was lost.
    if (expected <= 300) {
      EXPECT_GT(std::count(seen.begin(), seen.end(), true), expected * 9 / 10) << round;
    }
  }
}

TEST(Sampler, OptionsOutOfRangeAreNamed) {
  struct Row {
    const char* option;
    void (*set)(SamplerOptions& o, float v);
    std::vector<float> bad, good;
  };
  const Row rows[] = {
      {"temperature",
       [](SamplerOptions& o, float v) { o.temperature = v; },
       {kNan, -0.1f, INFINITY, -INFINITY},
       {0.0f, -0.0f, FLT_TRUE_MIN, FLT_MAX}},
      {"top_k",
       [](SamplerOptions& o, float v) { o.top_k = static_cast<int32_t>(v); },
       {-1.0f, -2147483648.0f},
       {0.0f, 1.0f, 2e9f}},
      {"top_p",
       [](SamplerOptions& o, float v) { o.top_p = v; },
       {kNan, 0.0f, -0.5f, 1.0001f, INFINITY},
       {FLT_TRUE_MIN, 0.5f, 1.0f}},
      {"min_p",
       [](SamplerOptions& o, float v) { o.min_p = v; },
       {kNan, -0.1f, 1.0f, INFINITY},
       {0.0f, 0.999f}},
      {"repetition_penalty",
       [](SamplerOptions& o, float v) { o.repetition_penalty = v; },
       {kNan, 0.0f, -1.0f, INFINITY},
       {0.5f, 1.0f, 100.0f}},
      {"presence_penalty",
       [](SamplerOptions& o, float v) { o.presence_penalty = v; },
       {kNan, INFINITY, -INFINITY},
       {-2.0f, 0.0f, 2.0f}},
      {"frequency_penalty",
       [](SamplerOptions& o, float v) { o.frequency_penalty = v; },
       {kNan, INFINITY, -INFINITY},
       {-2.0f, 0.0f, 2.0f}},
      {"penalty_window",
       [](SamplerOptions& o, float v) { o.penalty_window = static_cast<int32_t>(v); },
       {-1.0f, 1048577.0f, 2e9f},
       {0.0f, 1.0f, 1048576.0f}},
      {"logit_bias of token 4",
       [](SamplerOptions& o, float v) {
         o.logit_bias = {{4, v}};
       },
       {kNan, INFINITY},
       {-INFINITY, -1.0f, FLT_MAX}},
      {"logit_bias of token",
       [](SamplerOptions& o, float v) {
         o.logit_bias = {{0, 0.0f}, {static_cast<int32_t>(v), 0.0f}};
       },
       {-1.0f, 5.0f, 2e9f},
       {0.0f, 4.0f}},
  };
  for (const Row& row : rows) {
    for (float v : row.bad) {
      SamplerOptions options;
      row.set(options, v);
      const auto sampler = Sampler::Create(options, 5);
      EXPECT_FALSE(sampler.ok()) << row.option << " " << v;
      EXPECT_EQ(sampler.status().code(), Code::kInvalidArgument);
      EXPECT_EQ(sampler.status().message().find(row.option), 0u) << sampler.status().message();
    }
    for (float v : row.good) {
      SamplerOptions options;
      row.set(options, v);
      EXPECT_TRUE(Sampler::Create(options, 5).ok()) << row.option << " " << v;
    }
  }
  for (int32_t vocab : {0, -1, std::numeric_limits<int32_t>::max()}) {
    EXPECT_EQ(Sampler::Create({}, vocab).status().message().find("vocab_size is "), 0u);
  }
  SamplerOptions options;
  options.top_p = 1.5f;
  EXPECT_EQ(Sampler::Create(options, 5).status().message(),
            "top_p is 1.5, expected above 0, at most 1");
}

TEST(Sampler, SampleAndAcceptAllocateNothing) {
  constexpr int32_t kVocab = 5000;
  std::vector<float> logits(kVocab);
  for (size_t i = 0; i < kVocab; ++i) logits[i] = static_cast<float>(i * 7919 % kVocab) * 0.002f;
  SamplerOptions all = Temperature(0.8f);
  all.top_k = 900;
  all.top_p = 0.95f;
  all.min_p = 0.01f;
  all.repetition_penalty = 1.1f;
  all.frequency_penalty = 0.1f;
  all.logit_bias = {{3, 1.0f}, {4, -INFINITY}};
  SamplerOptions top_p = Temperature(1.0f);
  top_p.top_p = 0.9f;
  const uint64_t before_create = adder_test::AllocationCount();
  Sampler samplers[] = {Make(all, kVocab), Make(top_p, kVocab), Make(Temperature(1.0f), kVocab),
                        Make({}, kVocab)};
  const uint64_t before = adder_test::AllocationCount();
  EXPECT_GT(before, before_create) << "the counter counts";
  int64_t sum = 0;
  for (Sampler& sampler : samplers) {
    for (int i = 0; i < 100; ++i) {
      auto token = sampler.Sample(logits);
      if (!token.ok()) break;
      sum += *token;
      sampler.Accept(*token);
    }
    sampler.Reset();
  }
  const uint64_t after = adder_test::AllocationCount();
  EXPECT_EQ(after, before);
  EXPECT_GT(sum, 0);
}

TEST(Sampler, CopyAndSavedStateContinueAlike) {
  const std::vector<float> logits = Logits({0.3, 0.3, 0.2, 0.1, 0.1});
  SamplerOptions options = Temperature(1.0f);
  options.frequency_penalty = 0.7f;
  options.penalty_window = 6;
  for (int before : {0, 3, 6, 20}) {
    Sampler original = Make(options, 5);
    for (int i = 0; i < before; ++i) original.Accept(Next(original, logits));
    std::vector<uint8_t> state(original.StateBytes());
    original.SaveState(state.data());
    Sampler copy = original;
    Sampler restored = Make(options, 5);
    for (int i = 0; i < 7; ++i) restored.Accept(Next(restored, logits));  // to be overwritten
    ASSERT_TRUE(restored.RestoreState(state).ok());
    std::vector<uint8_t> again(state.size());
    restored.SaveState(again.data());
    EXPECT_EQ(again, state);
    for (int i = 0; i < 40; ++i) {
      const int32_t token = Next(original, logits);
      EXPECT_EQ(Next(copy, logits), token);
      EXPECT_EQ(Next(restored, logits), token);
      original.Accept(token);
      copy.Accept(token);
      restored.Accept(token);
    }
  }
}

TEST(Sampler, SavedStateOfSomethingElseIsRefused) {
  SamplerOptions options = Temperature(1.0f);
  options.presence_penalty = 1.0f;
  options.penalty_window = 2;
  Sampler sampler = Make(options, 5);
  sampler.Accept(4);
  std::vector<uint8_t> state(sampler.StateBytes());
  ASSERT_EQ(state.size(), 24u);
  sampler.SaveState(state.data());
  EXPECT_EQ(state, (std::vector<uint8_t>{42, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0,
                                         0,  0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0}));
  const auto refused = [&](size_t at, uint8_t value) {
    std::vector<uint8_t> bad = state;
    bad[at] = value;
    const bool failed = !sampler.RestoreState(bad).ok();
    std::vector<uint8_t> now(state.size());
    sampler.SaveState(now.data());
    EXPECT_EQ(now, state) << "unchanged";
    return failed;
  };
  EXPECT_TRUE(refused(8, 3));      // more tokens than the window
  EXPECT_TRUE(refused(15, 0x80));  // a count of 2^63
  EXPECT_TRUE(refused(16, 5));     // token = vocab_size
  EXPECT_TRUE(refused(19, 0xff));  // negative token
  EXPECT_TRUE(refused(20, 1));     // rest not zero
  state.pop_back();
  EXPECT_EQ(sampler.RestoreState(state).message(), "sampler state of 23 bytes, expected 24");
  EXPECT_FALSE(sampler.RestoreState({}).ok());
}

}  // namespace
}  // namespace adder
