// Nothing is allocated per token: not by feeding, not by a generation that samples, penalizes,
// detokenizes and looks for stop strings.
#include <gtest/gtest.h>

#include "runtime/generate.h"
#include "runtime/session_buffer.h"
#include "runtime/session_state.h"
#include "tests/alloc_counter.h"
#include "tests/converted_model.h"
#include "tests/tiny_checkpoint.h"

namespace adder::test {
namespace {

using adder_test::AllocationCount;

constexpr size_t kVocabulary = 1500;  // of small-gpt2.json

std::unique_ptr<ConvertedFile> TextModel(const TinyCheckpoint& checkpoint, WeightType type) {
  const TempDir source;
  checkpoint.Write(source);
  const auto tokenizer =
      ReadFileBytes(std::string(ADDER_SOURCE_DIR) + "/tests/data/tokenizers/small-gpt2.json");
  source.Write("tokenizer.json", tokenizer);
  return ConvertedModel(source.path(), type);
}

std::vector<std::unique_ptr<ConvertedFile>> Models() {
  Mamba1Shape mamba1;
  mamba1.vocab = kVocabulary;
  Mamba2Shape mamba2;
  mamba2.vocab = kVocabulary;
  std::vector<std::unique_ptr<ConvertedFile>> models;
  for (const WeightType type :
       {WeightType::kF32, WeightType::kF16, WeightType::kQ8, WeightType::kQ4}) {
    models.push_back(TextModel(MakeMamba1(mamba1), type));
    models.push_back(TextModel(MakeMamba2(mamba2), type));
  }
  return models;
}

TEST(NoAllocation, TheCounterCounts) {
  const uint64_t before = AllocationCount();
  auto* volatile pointer = new int(1);
  EXPECT_GT(AllocationCount(), before);
  delete pointer;
}

TEST(NoAllocation, InOneHundredDecodeSteps) {
  for (const auto& file : Models()) {
    const auto buffer = SessionBuffer::Create(*file->model, {});
    ASSERT_TRUE(buffer.ok());
    Session& session = buffer->session();
    std::vector<int32_t> prompt(100);
    for (size_t i = 0; i < prompt.size(); ++i)
      prompt[i] = static_cast<int32_t>(i * 13 % kVocabulary);
    const uint64_t before = AllocationCount();
    bool ok = session.Feed(prompt).ok();
    for (int32_t step = 0; step < 100; ++step) ok = ok && session.Feed({&step, 1}).ok();
    session.Reset();
    ok = ok && session.FeedOne(3).ok();
    const uint64_t allocations = AllocationCount() - before;
    EXPECT_TRUE(ok);
    EXPECT_EQ(allocations, 0u);
  }
}

TEST(NoAllocation, InSavingLoadingAndGoingBack) {
  for (const auto& file : Models()) {
    const auto a = SessionBuffer::Create(*file->model, {.checkpoints = 2}),
               b = SessionBuffer::Create(*file->model, {});
    ASSERT_TRUE(a.ok() && b.ok());
    const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6};
    ASSERT_TRUE(a->session().Feed(tokens).ok());
    std::vector<uint8_t> blob(StateBlob::Bytes(a->session()));
    uint64_t reused = 0;
    const uint64_t before = AllocationCount();
    bool ok = a->session().Checkpoint().ok() && StateBlob::Save(a->session(), blob).ok();
    ok = ok && StateBlob::Load(b->session(), blob).ok() && b->session().FeedOne(3).ok();
    ok = ok && b->session().CopyFrom(a->session()).ok();
    ok = ok && a->session().FeedOne(3).ok() && a->session().RollBack(6).ok();
    ok = ok && a->session().FeedFromStart(tokens, &reused).ok();
    const uint64_t allocations = AllocationCount() - before;
    EXPECT_TRUE(ok);
    EXPECT_EQ(reused, 6u);
    EXPECT_EQ(allocations, 0u);
  }
}

class CountingSink final : public TextSink {
 public:
  bool OnText(std::string_view text, int32_t) override {
    bytes += text.size();
    return true;
  }
  size_t bytes = 0;
};

// Allocations of a generation of `tokens` tokens.
uint64_t AllocationsOf(const Model& model, int64_t tokens, const SamplerOptions& sampler) {
  const auto buffer = SessionBuffer::Create(model, {});
  EXPECT_TRUE(buffer.ok());
  GenerateOptions options;
  options.max_tokens = tokens;
  options.ignore_eos = true;
  options.sampler = sampler;
  options.stops = {"a text that never comes", "another one"};
  options.keep_open = true;
  CountingSink sink;
  const std::vector<int32_t> prompt = {5, 6, 7};
  const uint64_t before = AllocationCount();
  const auto result = Generate(buffer->session(), prompt, options, sink);
  const uint64_t allocations = AllocationCount() - before;
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(result->generated_tokens, static_cast<uint64_t>(tokens));
  EXPECT_GT(sink.bytes, 0u);
  return allocations;
}

TEST(NoAllocation, OneHundredGeneratedTokensAllocateLikeTen) {
  SamplerOptions everything;
  everything.temperature = 1.5f;
  everything.top_k = 50;
  everything.top_p = 0.9f;
  everything.min_p = 0.01f;
  everything.repetition_penalty = 1.1f;
  everything.frequency_penalty = 0.1f;
  everything.logit_bias = {{7, -1.0f}};
  for (const auto& file : Models()) {
    for (const SamplerOptions& sampler : {SamplerOptions(), everything}) {
      const uint64_t ten = AllocationsOf(*file->model, 10, sampler);
      EXPECT_EQ(AllocationsOf(*file->model, 100, sampler), ten);
      EXPECT_LT(ten, 100u);
    }
  }
}

}  // namespace
}  // namespace adder::test
