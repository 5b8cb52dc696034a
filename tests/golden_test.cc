// Every published layout against the reference implementation's values, in float32.
#include <gtest/gtest.h>

#include <string>

#include "converter/golden_check.h"
#include "tests/converted_model.h"

namespace adder::test {
namespace {

struct GoldenCase {
  const char* folder;
  bool complete;  // has hidden states and a greedy continuation
};

class Golden : public testing::TestWithParam<GoldenCase> {};

TEST_P(Golden, Float32EqualsTheReference) {
  const auto model = ConvertedModel(GoldenFolder(GetParam().folder), WeightType::kF32);
  const auto report =
      CheckGolden(*model->model, GoldenFolder(GetParam().folder) + "/golden.safetensors");
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_GE(report->tokens, 40u);
  EXPECT_LE(report->logits_error, 1e-4);
  EXPECT_EQ(report->top1_equal, report->tokens);
  if (!GetParam().complete) return;
  EXPECT_GE(report->hidden_layers, 2u);
  EXPECT_LE(report->hidden_error, 1e-4);
  EXPECT_GE(report->greedy_expected, 10u);
  EXPECT_EQ(report->greedy_equal, report->greedy_expected);
}

INSTANTIATE_TEST_SUITE_P(
    Checkpoints, Golden,
    testing::Values(GoldenCase{"mamba1", true}, GoldenCase{"mamba1-bf16", false},
                    GoldenCase{"mamba1-sharded", true}, GoldenCase{"mamba1-original", true},
                    GoldenCase{"mamba1-odd", true}, GoldenCase{"falcon-mamba", true},
                    GoldenCase{"mamba2", true}, GoldenCase{"mamba2-bf16", false},
                    GoldenCase{"mamba2-original", true}, GoldenCase{"codestral-mamba", true},
                    GoldenCase{"mamba3-siso", true}, GoldenCase{"mamba3-siso-mlp", true},
                    GoldenCase{"mamba3-mimo", true}, GoldenCase{"mamba3-mimo-norm", true},
                    GoldenCase{"jamba", true}, GoldenCase{"bamba", true},
                    GoldenCase{"granite-h-dense", true}, GoldenCase{"granite-h-moe", true},
                    GoldenCase{"nemotron-h", true}, GoldenCase{"zamba2", true},
                    GoldenCase{"falcon-h1", true}),
    [](const auto& test) {
      std::string name = test.param.folder;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

}  // namespace
}  // namespace adder::test
