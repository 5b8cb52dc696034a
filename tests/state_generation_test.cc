// A generation in two parts, with a saved state between them, gives the text of one in one part:
// wherever it is cut, also within a character or a stop string.
#include <gtest/gtest.h>

#include "runtime/generate.h"
#include "runtime/session_buffer.h"
#include "tests/converted_model.h"
#include "tests/state_blob.h"
#include "tests/text_sink.h"
#include "tests/tiny_checkpoint.h"

namespace adder::test {
namespace {

constexpr int64_t kTokens = 40;
const std::vector<int32_t> kPrompt = {5, 6, 7, 6};

class OpenGenerations : public testing::Test {
 protected:
  void SetUp() override {
    Mamba2Shape shape;
    shape.vocab = 1500;
    const TempDir source;
    MakeMamba2(shape).Write(source);
    source.Write("tokenizer.json", ReadFileBytes(std::string(ADDER_SOURCE_DIR) +
                                                 "/tests/data/tokenizers/small-gpt2.json"));
    file_ = ConvertedModel(source.path(), WeightType::kQ8);
    ASSERT_NE(file_->model, nullptr);
    options_.ignore_eos = true;
    options_.max_tokens = kTokens;
    options_.sampler.temperature = 1.5f;
    options_.sampler.top_p = 0.98f;
    options_.sampler.repetition_penalty = 1.3f;
    options_.sampler.frequency_penalty = 0.2f;
    options_.sampler.penalty_window = 9;
    options_.sampler.seed = 8;
    // Favours bytes of characters of several bytes, so that many cuts lie within one.
    const Tokenizer& tokenizer = *file_->model->tokenizer();
    for (int32_t id = 0; id < tokenizer.size(); ++id) {
      std::string bytes;
      if (tokenizer.AppendPiece(id, false, false, &bytes).ok() && bytes.size() == 1 &&
          static_cast<uint8_t>(bytes[0]) >= 0x80) {
        options_.sampler.logit_bias.push_back({id, 6.0f});
      }
    }
  }

  SessionBuffer NewSession(const SessionOptions& options = {}) const {
    auto buffer = SessionBuffer::Create(*file_->model, options);
    EXPECT_TRUE(buffer.ok());
    return std::move(*buffer);
  }
  GenerateResult Run(Session& session, std::span<const int32_t> prompt,
                     const GenerateOptions& options, CollectingSink* sink) const {
    auto result = Generate(session, prompt, options, *sink);
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result.ok() ? *result : GenerateResult();
  }
  // The same in parts, each in a session of its own.
  GenerateResult RunInParts(std::vector<int64_t> parts, const GenerateOptions& options,
                            CollectingSink* sink, std::vector<uint8_t>* last = nullptr) const {
    GenerateResult result;
    std::vector<uint8_t> blob;
    for (size_t i = 0; i < parts.size(); ++i) {
      GenerateOptions part = options;
      part.max_tokens = parts[i];
      part.keep_open = i + 1 < parts.size();
      part.resume = i > 0;
      if (i > 0) part.sampler.seed = 99;
      const SessionBuffer buffer = NewSession();
      if (i > 0) {
        EXPECT_TRUE(StateBlob::Load(buffer.session(), blob).ok());
      }
      const auto prompt = i > 0 ? std::span<const int32_t>() : std::span(kPrompt);
      result = Run(buffer.session(), prompt, part, sink);
      blob = Saved(buffer.session());
      if (result.reason != FinishReason::kLength) break;
    }
    if (last != nullptr) *last = blob;
    return result;
  }

  std::unique_ptr<ConvertedFile> file_;
  GenerateOptions options_;
};

TEST_F(OpenGenerations, EveryCutGivesTheSameText) {
  CollectingSink whole;
  const SessionBuffer buffer = NewSession();
  Run(buffer.session(), kPrompt, options_, &whole);
  ASSERT_EQ(whole.tokens.size(), static_cast<size_t>(kTokens));
  size_t held = 0;
  for (int64_t cut = 0; cut <= kTokens; ++cut) {
    CollectingSink sink;
    std::vector<uint8_t> last;
    RunInParts({cut, kTokens - cut}, options_, &sink, &last);
    EXPECT_EQ(sink.tokens, whole.tokens) << cut;
    EXPECT_EQ(sink.text, whole.text) << cut;
    EXPECT_EQ(last, Saved(buffer.session()));

    GenerateOptions first = options_;
    first.max_tokens = cut;
    first.keep_open = true;
    const SessionBuffer part = NewSession();
    Run(part.session(), kPrompt, first, &sink);
    held += part.session().generation().text_bytes;
  }
  EXPECT_GT(held, 10u);  // the test does cut characters
  CollectingSink sink;
  RunInParts(std::vector<int64_t>(static_cast<size_t>(kTokens), 1), options_, &sink);
  EXPECT_EQ(sink.text, whole.text);
}

TEST_F(OpenGenerations, StopsAcrossTheCut) {
  CollectingSink whole;
  Run(NewSession().session(), kPrompt, options_, &whole);
  GenerateOptions options = options_;
  // A text of the middle, and one that never comes.
  size_t at = whole.text.size() / 2;
  while ((static_cast<uint8_t>(whole.text[at]) & 0xc0) == 0x80) ++at;
  size_t end = at + 12;
  while ((static_cast<uint8_t>(whole.text[end]) & 0xc0) == 0x80) ++end;
  const std::string stop = whole.text.substr(at, end - at);
  options.stops = {stop, stop + "never"};
  CollectingSink stopped;
  const GenerateResult expected = Run(NewSession().session(), kPrompt, options, &stopped);
  ASSERT_EQ(expected.reason, FinishReason::kStop);
  for (int64_t cut = 0; cut <= kTokens; ++cut) {
    CollectingSink sink;
    const GenerateResult result = RunInParts({cut, kTokens - cut}, options, &sink);
    EXPECT_EQ(result.reason, FinishReason::kStop) << cut;
    EXPECT_EQ(sink.text, stopped.text) << cut;
  }
}

TEST_F(OpenGenerations, LiveInOneSessionToo) {
  CollectingSink whole;
  const SessionBuffer one = NewSession();
  Run(one.session(), kPrompt, options_, &whole);
  const SessionBuffer buffer = NewSession({.checkpoints = 1});
  Session& session = buffer.session();
  CollectingSink sink;
  GenerateOptions part = options_;
  part.max_tokens = 15;
  part.keep_open = true;
  Run(session, kPrompt, part, &sink);
  ASSERT_TRUE(session.Checkpoint().ok());
  part.resume = true;
  part.keep_open = false;
  part.max_tokens = kTokens - 15;
  // Something else in between hides it, going back brings it back.
  ASSERT_TRUE(session.FeedOne(3).ok());
  CollectingSink unused;
  const auto refused = Generate(session, {}, part, unused);
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.status().message(),
            "there is nothing to resume: no generation was kept open at position 20");
  ASSERT_TRUE(session.RollBack(19).ok());
  const SessionBuffer fork = NewSession();
  ASSERT_TRUE(fork.session().CopyFrom(session).ok());
  for (Session* s : {&session, &fork.session()}) {
    CollectingSink rest = sink;
    Run(*s, {}, part, &rest);
    EXPECT_EQ(rest.text, whole.text);
    EXPECT_EQ(Saved(*s), Saved(one.session()));
    // It has ended now.
    EXPECT_EQ(Generate(*s, {}, part, unused).status().code(), Code::kInvalidArgument);
  }
}

TEST_F(OpenGenerations, RefusedOptions) {
  const SessionBuffer buffer = NewSession();
  Session& session = buffer.session();
  CollectingSink sink;
  GenerateOptions open = options_;
  open.keep_open = true;
  open.max_tokens = 3;
  Run(session, kPrompt, open, &sink);
  const std::vector<uint8_t> before = Saved(session);
  const auto refuses = [&](const GenerateOptions& options, std::span<const int32_t> prompt,
                           const std::string& message) {
    const auto result = Generate(session, prompt, options, sink);
    EXPECT_EQ(result.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(result.status().message(), message);
    EXPECT_EQ(Saved(session), before);
  };
  GenerateOptions resume = options_;
  resume.resume = true;
  refuses(resume, kPrompt, "a resumed generation takes no prompt, this has 4 tokens");
  resume.sampler.penalty_window = 10;
  refuses(resume, {},
          "resuming with other sampler options than before: sampler state of 52 bytes, expected "
          "56");
  open.sampler.penalty_window = 1025;
  refuses(open, kPrompt, "penalty_window is 1025, at most 1024 in a generation that is kept open");
  open.sampler.penalty_window = 1024;
  open.stops = {std::string(1025, 'x')};
  refuses(open, kPrompt,
          "a stop string has 1025 bytes, at most 1024 in a generation that is kept open");
  open.stops = {std::string(1024, 'x')};
  Run(session, kPrompt, open, &sink);
}

TEST_F(OpenGenerations, PromptFromTheStart) {
  GenerateOptions options = options_;
  options.prompt_from_start = true;
  options.max_tokens = 6;
  const SessionBuffer a = NewSession({.checkpoints = 2}), b = NewSession();
  CollectingSink first, second, again;
  EXPECT_EQ(Run(a.session(), kPrompt, options, &first).reused_tokens, 0u);
  std::vector<int32_t> longer = kPrompt;
  longer.insert(longer.end(), first.tokens.begin(), first.tokens.end());
  longer.push_back(9);
  GenerateResult result = Run(a.session(), longer, options, &second);
  EXPECT_EQ(result.reused_tokens, longer.size() - 1);
  EXPECT_EQ(result.prompt_tokens, longer.size());
  // Penalties see all of the prompt, whatever of it was fed.
  EXPECT_EQ(Run(b.session(), longer, options, &again).reused_tokens, 0u);
  EXPECT_EQ(again.text, second.text);
  EXPECT_EQ(Saved(a.session()), Saved(b.session()));
  a.session().Cancel();
  result = Run(a.session(), kPrompt, options, &again);
  EXPECT_EQ(result.reason, FinishReason::kCancelled);
  EXPECT_EQ(result.prompt_tokens, 0u);
}

TEST(OpenGenerationsOfHybrids, EndOfTextEndsThem) {
  const auto file = ConvertedModel(GoldenFolder("falcon-h1"), WeightType::kQ8);
  ASSERT_FALSE(file->model->config().eos.empty());
  GenerateOptions options;
  options.keep_open = true;
  options.sampler.logit_bias = {{file->model->config().eos[0], 1000.0f}};
  const auto buffer = SessionBuffer::Create(*file->model, {});
  CollectingSink sink;
  const auto result = Generate(buffer->session(), kPrompt, options, sink);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->reason, FinishReason::kEos);
  EXPECT_EQ(buffer->session().open_generation(), nullptr);
}

TEST(OpenGenerationsOfHybrids, AFullContextDrawsNoNumberTwice) {
  const auto file = ConvertedModel(GoldenFolder("falcon-h1"), WeightType::kQ8);
  GenerateOptions options;
  options.ignore_eos = true;
  options.max_tokens = 30;
  options.sampler.temperature = 2;
  options.keep_open = true;
  const auto wide = SessionBuffer::Create(*file->model, {}),
             narrow = SessionBuffer::Create(*file->model, {.context = 12});
  CollectingSink whole, parts;
  ASSERT_TRUE(Generate(wide->session(), kPrompt, options, whole).ok());
  const auto full = Generate(narrow->session(), kPrompt, options, parts);
  ASSERT_EQ(full->reason, FinishReason::kContext);
  EXPECT_EQ(full->generated_tokens, 8u);
  const auto rest = SessionBuffer::Create(*file->model, {});
  ASSERT_TRUE(rest->session().CopyFrom(narrow->session()).ok());
  options.resume = true;
  options.max_tokens = 22;
  ASSERT_TRUE(Generate(rest->session(), {}, options, parts).ok());
  EXPECT_EQ(parts.tokens, whole.tokens);
  EXPECT_EQ(Saved(rest->session()), Saved(wide->session()));
}

}  // namespace
}  // namespace adder::test
