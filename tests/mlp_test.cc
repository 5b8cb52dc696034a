// Feed-forward layers against their equations in double precision (ARCHITECTURES.md section 1), and
// against themselves: every kernel table, tile, split and number of threads.
#include <gtest/gtest.h>

#include "tests/reference_feed_forward.h"

namespace adder::test {
namespace {

BlockModel MakeMlp(const MlpConfig& config, uint32_t d_model, DType type, bool bias = false) {
  BlockModel model(config, d_model);
  if (config.gated) model.AddMatrix("layers.0.gate", type, config.d_ff, d_model, 2);
  model.AddMatrix("layers.0.up", type, config.d_ff, d_model, 2);
  model.AddMatrix("layers.0.down", type, d_model, config.d_ff);
  if (bias) {
    if (config.gated) model.AddBias("layers.0.gate", -1, 1);
    model.AddBias("layers.0.up", -1, 1);
    model.AddBias("layers.0.down", -1, 1);
  }
  return model;
}

double MlpError(const BlockModel& model, const MlpConfig& config, std::span<const float> hidden,
                std::span<const int32_t> tokens) {
  return LayerError(model, hidden, tokens,
                    [&](const Vec& h) { return ReferenceMlp(model, config, "", model.Normed(h)); });
}

TEST(Mlp, IsItsEquations) {
  const std::vector<int32_t> tokens = SomeTokens(23);
  for (const Activation activation : {Activation::kSilu, Activation::kRelu2, Activation::kGelu}) {
    for (const bool gated : {true, false}) {
      for (const bool bias : {false, true}) {
        SCOPED_TRACE(testing::Message() << "activation " << static_cast<int>(activation)
                                        << (gated ? ", gated" : "") << (bias ? ", biases" : ""));
        const MlpConfig config = {.d_ff = 83, .activation = activation, .gated = gated};
        const BlockModel model = MakeMlp(config, 40, DType::kMatF32, bias);
        const std::vector<float> hidden = HiddenBehind(*model.Open(), tokens, {.tile = 8});
        EXPECT_LT(MlpError(model, config, hidden, tokens), 2e-6);
      }
    }
  }
}

class MlpOfType : public testing::TestWithParam<DType> {};

TEST_P(MlpOfType, GivesTheSameBitsEverywhere) {
  const std::vector<int32_t> tokens = SomeTokens(12);
  for (const auto& [config, d_model] : std::initializer_list<std::pair<MlpConfig, uint32_t>>{
           {{83, Activation::kSilu, true}, 40},
           {{96, Activation::kRelu2, false}, 48},
           // Wide enough for its work to be handed to threads; ends within a group of columns.
           {{1105, Activation::kGelu, true}, 200}}) {
    SCOPED_TRACE(config.d_ff);
    const BlockModel model = MakeMlp(config, d_model, GetParam());
    const std::vector<float> hidden = ExpectSameBits(model, tokens);
    const double tolerance = GetParam() == DType::kMatQ4   ? 0.6
                             : GetParam() == DType::kMatQ8 ? 0.08
                                                           : 2e-3;
    EXPECT_LT(MlpError(model, config, hidden, tokens), tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, MlpOfType,
                         testing::Values(DType::kMatF32, DType::kMatF16, DType::kMatQ8,
                                         DType::kMatQ4),
                         [](const auto& test) { return std::string(DTypeName(test.param)); });

TEST(Mlp, MixesTypes) {
  const MlpConfig config = {.d_ff = 83, .activation = Activation::kSilu, .gated = true};
  const std::vector<int32_t> tokens = SomeTokens(12);
  BlockModel model(config, 40);
  model.AddMatrix("layers.0.gate", DType::kMatQ8, 83, 40, 2);
  model.AddMatrix("layers.0.up", DType::kMatF32, 83, 40, 2);
  model.AddMatrix("layers.0.down", DType::kMatF16, 40, 83);
  const std::vector<float> hidden = ExpectSameBits(model, tokens);
  EXPECT_LT(MlpError(model, config, hidden, tokens), 0.05);
}

TEST(Mlp, ReadsAllItsBytesAndKeepsNoState) {
  const auto model = MakeMlp({.d_ff = 83}, 40, DType::kMatQ8).Open();
  EXPECT_EQ(model->StateFloats(), 0u);
  EXPECT_EQ(model->KvBytes(100), 0u);
  EXPECT_EQ(model->blocks()[0]->ExtraBytes(), 0);
}

}  // namespace
}  // namespace adder::test
