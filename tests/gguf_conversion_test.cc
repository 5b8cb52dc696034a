// A GGUF file converts to what the checkpoint that it was made from converts to.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "converter/golden_check.h"
#include "runtime/generate.h"
#include "runtime/session_buffer.h"
#include "tests/converted_model.h"
#include "tests/gguf_writer.h"
#include "tests/text_sink.h"

namespace adder::test {
namespace {

std::string Peer(const std::string& name) {
  return std::string(ADDER_SOURCE_DIR) + "/tests/peer-gguf/" + name;
}

class Families : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Gguf, Families, testing::Values("mamba", "mamba2"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(Families, EqualTheReferenceLogits) {
  const std::string name = GetParam();
  const auto converted = ConvertedModel(Peer(name + "-F16.gguf"), WeightType::kF32);
  ASSERT_NE(converted->model, nullptr);
  const auto golden = CheckGolden(*converted->model, Peer("hf-" + name + "/golden.safetensors"));
  ASSERT_TRUE(golden.ok()) << golden.status().message();
  EXPECT_LE(golden->logits_error, 1e-4);
  EXPECT_EQ(golden->top1_equal, golden->tokens);
}

// Whatever is a matrix, to the last bit. A alone differs in its last place: the file has exp(A_log)
// rounded to float32.
TEST_P(Families, HaveTheTensorsOfTheCheckpoint) {
  const std::string name = GetParam();
  for (const WeightType type :
       {WeightType::kF32, WeightType::kF16, WeightType::kQ8, WeightType::kQ4}) {
    const auto gguf = ConvertedModel(Peer(name + "-F16.gguf"), type);
    const auto checkpoint = ConvertedModel(Peer("hf-" + name), type);
    ASSERT_TRUE(gguf->model != nullptr && checkpoint->model != nullptr);
    const auto& tensors = gguf->model->file().tensors();
    const auto& expected = checkpoint->model->file().tensors();
    ASSERT_EQ(tensors.size(), expected.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      SCOPED_TRACE(expected[i].name);
      ASSERT_EQ(tensors[i].name, expected[i].name);
      ASSERT_EQ(tensors[i].dtype, expected[i].dtype);
      ASSERT_EQ(tensors[i].shape, expected[i].shape);
      const std::span<const uint8_t> bytes = tensors[i].data, wanted = expected[i].data;
      ASSERT_EQ(bytes.size(), wanted.size());
      if (!tensors[i].name.ends_with(".a")) {
        EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), wanted.begin()));
        continue;
      }
      std::vector<float> a(bytes.size() / 4), a_wanted(a.size());
      std::memcpy(a.data(), bytes.data(), bytes.size());
      std::memcpy(a_wanted.data(), wanted.data(), wanted.size());
      for (size_t k = 0; k < a.size(); ++k) {
        EXPECT_NEAR(a[k], a_wanted[k], std::fabs(a_wanted[k]) * 2.5e-7f) << k;
      }
    }
    const ModelConfig& config = gguf->model->config();
    EXPECT_EQ(config.bos, checkpoint->model->config().bos);
    EXPECT_EQ(config.eos, checkpoint->model->config().eos);
    EXPECT_EQ(config.vocab_size, checkpoint->model->config().vocab_size);
    EXPECT_EQ(config.tied_head, checkpoint->model->config().tied_head);
    EXPECT_EQ(config.provenance.back(),
              std::pair(std::string("source"), std::string("GGUF, tensors in F32 F16")));
  }
}

// Already quantized files lose what their quantizer took, and no more.
TEST(GgufConversion, QuantizedFilesStayCloseToTheReference) {
  const auto converted = ConvertedModel(Peer("mamba2-Q4_K_M.gguf"), WeightType::kF32);
  ASSERT_NE(converted->model, nullptr);
  const auto golden = CheckGolden(*converted->model, Peer("hf-mamba2/golden.safetensors"));
  ASSERT_TRUE(golden.ok()) << golden.status().message();
  EXPECT_LE(golden->logits_error, 0.6);
  EXPECT_EQ(converted->model->config().provenance.back().second, "GGUF, tensors in F32 Q4_K Q6_K");
}

TEST(GgufConversion, NamesTheTensorThatItCannotRead) {
  const TempDir folder;
  const auto write = [&](const std::string& extra, uint32_t type) {
    GgufWriter file;
    file.Add("general.architecture", "mamba");
    for (const char* key : {"embedding_length", "block_count", "ssm.inner_size", "ssm.state_size",
                            "ssm.conv_kernel", "ssm.time_step_rank"}) {
      file.Add(std::string("mamba.") + key, uint32_t{1});
    }
    file.Add("mamba.attention.layer_norm_rms_epsilon", 1e-5f);
    file.Tensor("token_embd.weight", {256, 4}, type, std::vector<uint8_t>(4096));
    file.Tensor(extra, {1}, 0, std::vector<uint8_t>(4));
    folder.Write("model.gguf", file.File());
    return Convert(folder / "model.gguf", folder / "out", {}).status().message();
  };
  EXPECT_NE(write("x", 11).find("model.gguf: token_embd.weight: stored as Q3_K; weights are read "),
            std::string::npos);
  EXPECT_NE(write("blk.0.ssm_in.weight", 0).find("model.gguf says hidden_size 1"),
            std::string::npos);
}

// The story model as Q4_K_M: tokens and text of its tokenizer.json.
TEST(GgufConversion, StoryModelTokenizesAndStreamsAsItsTokenizerJson) {
  const std::string path = std::string(ADDER_SHARED_DIR) + "/peer-gguf/stories-11m-Q4_K_M.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  const auto gguf = ConvertedModel(path, WeightType::kQ8);
  const auto story = ConvertedModel(StoryFolder(), WeightType::kQ8);
  ASSERT_TRUE(gguf->model != nullptr && story->model != nullptr);
  const Tokenizer& tokenizer = *gguf->model->tokenizer();
  const Tokenizer& expected = *story->model->tokenizer();
  ASSERT_EQ(tokenizer.size(), expected.size());
  for (int32_t id = 0; id < expected.size(); ++id) {
    EXPECT_EQ(tokenizer.PieceText(id), expected.PieceText(id)) << id;
    EXPECT_EQ(tokenizer.IsSpecial(id), expected.IsSpecial(id)) << id;
  }
  const auto readme = ReadFileBytes(std::string(ADDER_SOURCE_DIR) + "/README.md");
  for (const std::string& text :
       {std::string("Once upon a time, there was a little girl named Lily."), std::string(),
        std::string(
            "  It's 12,345 caf\xC3\xA9s!\n\n\t<|im_start|>user<|endoftext|> x \xF0\x9F\x98\x80"),
        std::string(readme.begin(), readme.end())}) {
    for (const bool special : {false, true}) {
      const EncodeOptions options{.add_special = special, .parse_special = special};
      EXPECT_EQ(*tokenizer.Encode(text, options), *expected.Encode(text, options));
    }
  }
  const auto prompt = tokenizer.Encode("Once upon a time");
  ASSERT_TRUE(prompt.ok());
  const auto buffer = SessionBuffer::Create(*gguf->model, {});
  ASSERT_TRUE(buffer.ok());
  GenerateOptions options;
  options.max_tokens = 100;
  CollectingSink collected;
  ASSERT_TRUE(Generate(buffer->session(), *prompt, options, collected).ok());
  EXPECT_EQ(collected.text, *expected.Decode(collected.tokens));
  EXPECT_GT(collected.tokens.size(), 20u);
}

}  // namespace
}  // namespace adder::test
