// Keys and values in 8 bits: close to those of 16, half the memory, and refused where there are
// none.
#include <gtest/gtest.h>

#include <random>

#include "adder/adder.h"
#include "runtime/session_buffer.h"
#include "tests/converted_model.h"
#include "tests/mean_kl.h"

namespace adder::test {
namespace {

struct Hybrid {
  const char* folder;
  double limit = 1e-3;  // of the mean KL
};
// The tiny Zamba2 amplifies any rounding, that of f16 keys and values as well.
constexpr Hybrid kHybrids[] = {{"jamba"},         {"bamba"},      {"granite-h-dense"},
                               {"granite-h-moe"}, {"nemotron-h"}, {"zamba2", 1.5e-2},
                               {"falcon-h1"}};

// Mean KL of 8-bit keys and values from the others.
double Int8Kl(const Model& model, SessionOptions options, std::span<const int32_t> tokens) {
  const SessionOptions exact = options;
  options.kv_type = KvChoice::kInt8;
  return MeanKl(model, exact, options, tokens);
}

std::vector<int32_t> RandomTokens(const Model& model, size_t n) {
  std::mt19937 random(17);
  std::vector<int32_t> tokens(n);
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(random() % model.config().vocab_size);
  }
  return tokens;
}

// With weights of f16. Quantized ones round activations again behind each layer, and whatever tips
// that rounding moves the logits as far as these 8 bits do.
TEST(KvType, Int8HardlyChangesWhatHybridsPredict) {
  for (const auto& [folder, limit] : kHybrids) {
    const auto converted = ConvertedModel(GoldenFolder(folder), WeightType::kF16);
    const Model& model = *converted->model;
    const std::vector<int32_t> tokens = RandomTokens(model, 400);
    const double kl = Int8Kl(model, {}, tokens);
    const double sliding =
        Int8Kl(model, {.context = 100, .when_full = ContextPolicy::kSlide}, tokens);
    const auto q8 = ConvertedModel(GoldenFolder(folder), WeightType::kQ8);
    std::printf("%-16s mean KL %.1e, with a sliding context of 100 %.1e, with q8 weights %.1e\n",
                folder, kl, sliding, Int8Kl(*q8->model, {}, tokens));
    EXPECT_LE(kl, limit) << folder;
    EXPECT_LE(sliding, limit) << folder;
    EXPECT_GT(kl, 0) << folder;
  }
}

TEST(KvType, Int8HalvesTheMemoryAndIsRefusedWithoutAttention) {
  const auto hybrid = ConvertedModel(GoldenFolder("granite-h-dense"), WeightType::kQ8);
  const Model& model = *hybrid->model;
  size_t heads = 0, values = 0, padding = 0;
  for (const auto& block : model.blocks()) {
    const KvShape shape = block->Kv(KvChoice::kInt8);
    if (shape.n_kv_heads == 0) continue;
    EXPECT_EQ(block->Kv(KvChoice::kDefault).type, KvType::kF16);
    EXPECT_EQ(shape.type, KvType::kInt8);
    heads += shape.n_kv_heads;
    values += 2 * shape.n_kv_heads * shape.head_dim;
    padding += shape.n_kv_heads * (shape.key_dim() - shape.head_dim);
  }
  ASSERT_GT(heads, 0u);
  EXPECT_EQ(model.KvBytesPerToken(), 2 * values);
  EXPECT_EQ(model.KvBytesPerToken(KvChoice::kInt8), values + padding + heads * 2 * sizeof(float));
  const auto small = Session::Bytes(model, {.context = 1008, .kv_type = KvChoice::kInt8});
  const auto large = Session::Bytes(model, {.context = 10000 - 16, .kv_type = KvChoice::kInt8});
  ASSERT_TRUE(small.ok() && large.ok());
  EXPECT_EQ(*large - *small, (10016 - 1024) * model.KvBytesPerToken(KvChoice::kInt8));

  const auto mamba = ConvertedModel(GoldenFolder("mamba2"), WeightType::kQ8);
  const auto refused = Session::Bytes(*mamba->model, {.kv_type = KvChoice::kInt8});
  EXPECT_EQ(refused.status().code(), Code::kUnsupported);
  EXPECT_EQ(refused.status().message(),
            "8-bit keys and values need attention layers, this mamba2 model has none");
}

TEST(KvType, OptionOfTheCApi) {
  const auto hybrid = ConvertedModel(GoldenFolder("granite-h-dense"), WeightType::kQ8);
  adder_model* model = nullptr;
  ASSERT_EQ(adder_model_open(hybrid->path.c_str(), nullptr, &model, nullptr), ADDER_OK);
  adder_session_options options = ADDER_INIT(adder_session_options);
  size_t halves = 0, bytes = 0;
  ASSERT_EQ(adder_session_bytes(model, &options, &halves, nullptr), ADDER_OK);
  options.kv_type = ADDER_KV_INT8;
  ASSERT_EQ(adder_session_bytes(model, &options, &bytes, nullptr), ADDER_OK);
  EXPECT_LT(bytes, halves);

  // The logits are those of the C++ option.
  adder_session* session = nullptr;
  ASSERT_EQ(adder_session_create(model, &options, &session, nullptr), ADDER_OK);
  const std::vector<int32_t> ids = RandomTokens(*hybrid->model, 30);
  ASSERT_EQ(adder_session_feed(session, ids.data(), ids.size(), nullptr), ADDER_OK);
  const float* logits = nullptr;
  size_t n_logits = 0;
  ASSERT_EQ(adder_session_logits(session, &logits, &n_logits, nullptr), ADDER_OK);
  const auto buffer = SessionBuffer::Create(*hybrid->model, {.kv_type = KvChoice::kInt8});
  ASSERT_TRUE(buffer.ok() && buffer->session().Feed(ids).ok());
  EXPECT_TRUE(std::ranges::equal(std::span(logits, n_logits), buffer->session().logits()));
  EXPECT_EQ(adder_session_free(session), ADDER_OK);

  adder_error error = {};
  for (const int32_t wrong : {-1, 2}) {
    options.kv_type = wrong;
    EXPECT_EQ(adder_session_create(model, &options, &session, &error), ADDER_INVALID_ARGUMENT);
    EXPECT_EQ(error.message,
              "kv_type is " + std::to_string(wrong) + ", expected 0 (default) or 1 (int8)");
  }
  adder_model_free(model);

  const auto mamba = ConvertedModel(GoldenFolder("mamba1"), WeightType::kQ8);
  ASSERT_EQ(adder_model_open(mamba->path.c_str(), nullptr, &model, nullptr), ADDER_OK);
  options.kv_type = ADDER_KV_INT8;
  EXPECT_EQ(adder_session_create(model, &options, &session, &error), ADDER_UNSUPPORTED);
  EXPECT_STREQ(error.message,
               "8-bit keys and values need attention layers, this mamba model has none");
  adder_model_free(model);
}

}  // namespace
}  // namespace adder::test
