// Perplexity and KL divergence against plain computations over the logits.
#include "converter/evaluation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/session_buffer.h"
#include "tests/converted_model.h"

namespace adder::test {
namespace {

constexpr std::string_view kText =
    "The cat sat on the mat and looked at the bird.<|endoftext|>Once upon a time there was a "
    "small boat. It went over the sea, and the children were happy to see it again.";

const ConvertedFile& Story(WeightType type) {
  static const auto f32 = ConvertedModel(StoryFolder(), WeightType::kF32);
  static const auto q4 = ConvertedModel(StoryFolder(), WeightType::kQ4);
  return type == WeightType::kF32 ? *f32 : *q4;
}

EvaluationText TextOf(const Model& model, const EvaluationOptions& options,
                      std::string_view text = kText) {
  auto out = EvaluationText::Create(model, text, options);
  EXPECT_TRUE(out.ok()) << out.status().message();
  return std::move(*out);
}

std::vector<double> LogSoftmax(std::span<const float> logits) {
  double sum = 0;
  for (const float l : logits) sum += std::exp(static_cast<double>(l));
  std::vector<double> out;
  for (const float l : logits) out.push_back(static_cast<double>(l) - std::log(sum));
  return out;
}

// Log-probabilities behind each token of a window, fed one by one.
std::vector<std::vector<double>> Predictions(const Model& model,
                                             const std::vector<int32_t>& window) {
  const auto buffer = SessionBuffer::Create(model, {});
  std::vector<std::vector<double>> rows;
  for (const int32_t token : window) {
    EXPECT_TRUE(buffer->session().FeedOne(token).ok());
    rows.push_back(LogSoftmax(buffer->session().logits()));
  }
  return rows;
}

TEST(Evaluation, PerplexityIsTheMeanLikelihoodOfScoredTokens) {
  const Model& model = *Story(WeightType::kF32).model;
  for (const bool second_half : {false, true}) {
    const auto text = TextOf(model, {.context = 12, .second_half = second_half});
    ASSERT_GE(text.windows(), 2u);
    double nll = 0;
    uint64_t tokens = 0;
    for (size_t i = 0; i < text.windows(); ++i) {
      const auto window = text.Window(i);
      ASSERT_EQ(window.size(), 12u);
      const auto rows = Predictions(model, window);
      for (size_t t = second_half ? 6 : 1; t < window.size(); ++t, ++tokens) {
        nll -= rows[t - 1][static_cast<size_t>(window[t])];
      }
    }
    const auto result = MeasurePerplexity(model, text);
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(result->tokens, tokens);
    EXPECT_NEAR(result->mean_nll, nll / static_cast<double>(tokens), 1e-6);
    EXPECT_NEAR(result->perplexity(), std::exp(result->mean_nll), 1e-9);
  }
}

TEST(Evaluation, DocumentsAreSeparatedByTheEndToken) {
  const Model& model = *Story(WeightType::kF32).model;
  const auto text = TextOf(model, {});
  const int32_t end = model.tokenizer()->FindPiece("<|endoftext|>");
  ASSERT_GE(end, 0);
  EXPECT_EQ(std::count(text.tokens().begin(), text.tokens().end(), end), 1);
  EXPECT_EQ(text.windows(), 1u);  // shorter than a window
}

TEST(Evaluation, ComparesDistributions) {
  const Model& a = *Story(WeightType::kF32).model;
  const Model& b = *Story(WeightType::kQ4).model;
  const auto text = TextOf(a, {.context = 40});  // more rows than are kept at once
  double kl = 0;
  size_t same = 0, tokens = 0;
  for (size_t i = 0; i < text.windows(); ++i) {
    const auto window = text.Window(i);
    const auto p = Predictions(a, window), q = Predictions(b, window);
    for (size_t t = 0; t + 1 < window.size(); ++t, ++tokens) {
      for (size_t v = 0; v < p[t].size(); ++v) kl += std::exp(p[t][v]) * (p[t][v] - q[t][v]);
      same += std::max_element(p[t].begin(), p[t].end()) - p[t].begin() ==
              std::max_element(q[t].begin(), q[t].end()) - q[t].begin();
    }
  }
  const auto result = CompareModels(a, b, text);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->a.tokens, tokens);
  EXPECT_NEAR(result->mean_kl, kl / static_cast<double>(tokens), 1e-6);
  EXPECT_EQ(result->top1_agreement, static_cast<double>(same) / static_cast<double>(tokens));
  EXPECT_LE(result->median_kl, result->kl_999);
  EXPECT_LE(result->kl_999, result->max_kl);
  EXPECT_GT(result->mean_kl, 0);

  const auto itself = CompareModels(a, a, text);
  ASSERT_TRUE(itself.ok());
  EXPECT_EQ(itself->mean_kl, 0);
  EXPECT_EQ(itself->top1_agreement, 1);
  EXPECT_EQ(itself->a.mean_nll, itself->b.mean_nll);
}

TEST(Evaluation, RefusesWhatCannotBeMeasured) {
  const Model& model = *Story(WeightType::kF32).model;
  EXPECT_EQ(EvaluationText::Create(model, "", {}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(EvaluationText::Create(model, kText, {.context = 1}).status().code(),
            Code::kInvalidArgument);
  const auto tiny = ConvertedModel(GoldenFolder("mamba1"), WeightType::kF32);
  EXPECT_EQ(EvaluationText::Create(*tiny->model, kText, {}).status().message(),
            "this model has no tokenizer to read the text with");
  const auto text = TextOf(model, {});
  const auto differ = CompareModels(model, *tiny->model, text);
  EXPECT_EQ(differ.status().code(), Code::kInvalidArgument);
  EXPECT_NE(differ.status().message().find("the vocabularies differ"), std::string::npos);
  EXPECT_EQ(
      MeasurePerplexity(model, text, [](uint64_t, uint64_t) { return false; }).status().code(),
      Code::kCancelled);
}

}  // namespace
}  // namespace adder::test
