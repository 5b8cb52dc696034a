// The 16-bit state of Mamba-2 layers: as reproducible as the f32 one, and close to it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "runtime/kernels_dispatch.h"
#include "runtime/session_buffer.h"
#include "tests/converted_model.h"
#include "tests/mean_kl.h"

namespace adder::test {
namespace {

constexpr SessionOptions kInt16 = {.state_type = StateType::kInt16};

std::vector<float> LogitsBehind(const Model& model, const SessionOptions& options,
                                std::span<const int32_t> tokens, size_t part) {
  const auto buffer = SessionBuffer::Create(model, options);
  EXPECT_TRUE(buffer.ok()) << buffer.status().message();
  for (size_t i = 0; i < tokens.size(); i += part) {
    EXPECT_TRUE(buffer->session().Feed(tokens.subspan(i, std::min(part, tokens.size() - i))).ok());
  }
  const auto logits = buffer->session().logits();
  return {logits.begin(), logits.end()};
}

TEST(StateType, EverySplitTileAndTableGivesTheSameBits) {
  for (const char* folder : {"mamba2", "codestral-mamba"}) {
    const auto converted = ConvertedModel(GoldenFolder(folder), WeightType::kQ4);
    std::vector<int32_t> tokens(70);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 37 % 200);
    const auto expected = LogitsBehind(*converted->model, kInt16, tokens, 1);
    ASSERT_NE(expected, LogitsBehind(*converted->model, {}, tokens, 1));
    for (const Kernels* table : CompiledKernels()) {
      if (!SelectKernels(DetectCpuFeatures(), table->name).ok()) continue;
      const auto model = Model::Open(converted->path, {.isa = table->name});
      ASSERT_TRUE(model.ok());
      for (const size_t part : {1u, 3u, 33u, 70u}) {
        SessionOptions options = kInt16;
        options.tile = part == 33 ? 7 : 64;
        const auto logits = LogitsBehind(**model, options, tokens, part);
        EXPECT_EQ(std::memcmp(logits.data(), expected.data(), logits.size() * sizeof(float)), 0)
            << folder << ", " << table->name << ", " << part << " at a time";
      }
    }
  }
}

TEST(StateType, HalvesTheMemoryOfMamba2AndIsRefusedWithoutIt) {
  const auto mamba2 = ConvertedModel(GoldenFolder("mamba2"), WeightType::kQ8);
  EXPECT_LT(mamba2->model->StateFloats(StateType::kInt16),
            mamba2->model->StateFloats() * 3 / 4);  // convolution and scales stay
  const auto mamba1 = ConvertedModel(GoldenFolder("mamba1"), WeightType::kQ8);
  const auto refused = Session::Bytes(*mamba1->model, kInt16);
  EXPECT_EQ(refused.status().code(), Code::kUnsupported);
  EXPECT_EQ(refused.status().message(),
            "a 16-bit state needs Mamba-2 layers, this mamba model has none");
}

TEST(StateType, HardlyChangesWhatAStoryModelPredicts) {
  const std::string shared = ADDER_SHARED_DIR;
  if (!std::filesystem::exists(shared + "/models/stories2-23m")) {
    GTEST_SKIP() << "SKIPPED: no ../shared/models/stories2-23m";
  }
  const auto converted = ConvertedModel(shared + "/models/stories2-23m", WeightType::kF32);
  const auto text = ReadFileBytes(shared + "/text/eval_plain.txt");
  const auto tokens = converted->model->tokenizer()->Encode(
      {reinterpret_cast<const char*>(text.data()), size_t{8000}});
  ASSERT_TRUE(tokens.ok());
  const size_t count = std::min<size_t>(tokens->size(), 1024);
  const double kl =
      MeanKl(*converted->model, {}, kInt16, std::span<const int32_t>(*tokens).first(count));
  std::printf("mean KL of the 16-bit state over %zu tokens: %.2e\n", count, kl);
  EXPECT_LT(kl, 1e-6);
  EXPECT_GT(kl, 0);
}

}  // namespace
}  // namespace adder::test
