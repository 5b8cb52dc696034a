// The story model of the repository against the reference implementation's values (golden.json,
// golden.safetensors beside it): likelihoods, logits, greedy text; and what quantization costs.
#include <gtest/gtest.h>

#include <cmath>

#include "converter/json.h"
#include "runtime/generate.h"
#include "runtime/session_buffer.h"
#include "tests/converted_model.h"
#include "tests/golden_file.h"
#include "tests/text_sink.h"

namespace adder::test {
namespace {

constexpr size_t kLastRows = 16;  // positions whose reference logits are kept

struct Window {
  std::string set;
  double nll;
};
struct Continuation {
  std::string prompt, text;
  std::vector<int32_t> ids;
  size_t prompt_len;
};

std::string GoldenTensors() { return StoryFolder() + "/golden.safetensors"; }

const Json& Golden() {
  static const Json* golden = [] {
    const auto bytes = ReadFileBytes(StoryFolder() + "/golden.json");
    auto parsed =
        Json::Parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "golden");
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    return new Json(std::move(*parsed));
  }();
  return *golden;
}

std::vector<Window> Windows() {
  std::vector<Window> windows;
  for (const Json& window : Golden().Find("windows")->items()) {
    EXPECT_EQ(window.Find("tokens")->AsInt(), 512);
    windows.push_back({window.Find("set")->AsString(), window.Find("nll")->AsDouble()});
  }
  EXPECT_EQ(windows.size(), 2u);
  return windows;
}

std::vector<Continuation> Continuations() {
  std::vector<Continuation> out;
  for (const Json& greedy : Golden().Find("greedy")->items()) {
    Continuation c{greedy.Find("prompt")->AsString(),
                   greedy.Find("text")->AsString(),
                   {},
                   static_cast<size_t>(greedy.Find("prompt_len")->AsInt())};
    for (const Json& id : greedy.Find("ids")->items()) {
      c.ids.push_back(static_cast<int32_t>(id.AsInt()));
    }
    out.push_back(std::move(c));
  }
  EXPECT_EQ(out.size(), 2u);
  return out;
}

// Sums -log p(next token) over a window, and keeps the last rows of logits.
class Likelihood final : public FeedObserver {
 public:
  explicit Likelihood(const std::vector<int32_t>& ids) : ids_(ids) {}
  void OnLogits(size_t token, std::span<const float> logits) override {
    double largest = -INFINITY, sum = 0;
    for (const float logit : logits) largest = std::max(largest, static_cast<double>(logit));
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
    const auto next = static_cast<size_t>(ids_[token + 1]);
    total += largest + std::log(sum) - static_cast<double>(logits[next]);
    if (token + 1 + kLastRows >= ids_.size()) {
      last_rows.insert(last_rows.end(), logits.begin(), logits.end());
    }
  }
  double total = 0;
  std::vector<float> last_rows;

 private:
  const std::vector<int32_t>& ids_;
};

// Mean negative log-likelihood of the 512 predictions of a window, from a fresh state.
double MeanNll(const Model& model, const std::string& set, std::vector<float>* last_rows) {
  const std::vector<int32_t> ids = GoldenIds(GoldenTensors(), set + "_ids");
  EXPECT_EQ(ids.size(), 513u);
  const auto buffer = SessionBuffer::Create(model, {});
  EXPECT_TRUE(buffer.ok());
  Likelihood likelihood(ids);
  EXPECT_TRUE(buffer->session().Feed(std::span(ids).first(512), &likelihood).ok());
  *last_rows = std::move(likelihood.last_rows);
  return likelihood.total / 512;
}

TEST(Story, Float32EqualsTheReference) {
  const auto story = ConvertedModel(StoryFolder(), WeightType::kF32);
  ASSERT_NE(story->model, nullptr);
  for (const Window& window : Windows()) {
    SCOPED_TRACE(window.set);
    std::vector<float> rows;
    EXPECT_NEAR(MeanNll(*story->model, window.set, &rows), window.nll, 1e-4);
    const std::vector<float> expected =
        GoldenFloats(GoldenTensors(), window.set + "_logits_last16");
    ASSERT_EQ(rows.size(), expected.size());
    double sum = 0, squares = 0, worst = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const double value = static_cast<double>(expected[i]);
      sum += value, squares += value * value;
      worst = std::max(worst, std::fabs(value - static_cast<double>(rows[i])));
    }
    const double n = static_cast<double>(rows.size());
    EXPECT_LE(worst / std::sqrt(squares / n - sum / n * (sum / n)), 1e-4);
  }
}

TEST(Story, GreedyTextEqualsTheReference) {
  const auto story = ConvertedModel(StoryFolder(), WeightType::kF32);
  ASSERT_NE(story->model, nullptr);
  const Tokenizer* tokenizer = story->model->tokenizer();
  ASSERT_NE(tokenizer, nullptr);
  for (const Continuation& expected : Continuations()) {
    SCOPED_TRACE(expected.prompt);
    const auto prompt = tokenizer->Encode(expected.prompt);
    ASSERT_TRUE(prompt.ok()) << prompt.status().message();
    ASSERT_EQ(*prompt, std::vector<int32_t>(expected.ids.begin(),
                                            expected.ids.begin() +
                                                static_cast<std::ptrdiff_t>(expected.prompt_len)));
    const auto buffer = SessionBuffer::Create(*story->model, {});
    ASSERT_TRUE(buffer.ok());
    GenerateOptions options;
    options.max_tokens = static_cast<int64_t>(expected.ids.size() - expected.prompt_len);
    CollectingSink collected;
    const auto result = Generate(buffer->session(), *prompt, options, collected);
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(result->reason, FinishReason::kLength);
    std::vector<int32_t> all = *prompt;
    all.insert(all.end(), collected.tokens.begin(), collected.tokens.end());
    EXPECT_EQ(all, expected.ids);
    EXPECT_EQ("<|endoftext|>" + expected.prompt + collected.text, expected.text);
  }
}

TEST(Story, QuantizationCostsLittle) {
  for (const auto& [type, share] : {std::pair(WeightType::kQ8, 0.003), {WeightType::kQ4, 0.05}}) {
    const auto story = ConvertedModel(StoryFolder(), type);
    ASSERT_NE(story->model, nullptr);
    for (const Window& window : Windows()) {
      std::vector<float> rows;
      const double nll = MeanNll(*story->model, window.set, &rows);
      std::printf("%s %s: %.5f, reference %.5f (%+.3f%%)\n", window.set.c_str(),
                  story->model->config().type.c_str(), nll, window.nll,
                  (nll / window.nll - 1) * 100);
      EXPECT_NEAR(nll, window.nll, share * window.nll) << window.set;
    }
  }
}

}  // namespace
}  // namespace adder::test
