// The same tokens give the same logits, bit for bit: however a prompt is split, whatever the tile,
// on every kernel table, after Reset, beside other sessions, and after a cancelled call.
#include <gtest/gtest.h>

#include <cinttypes>
#include <cstring>
#include <random>

#include "runtime/kernels_dispatch.h"
#include "runtime/session_buffer.h"
#include "tests/converted_model.h"
#include "tests/golden_file.h"

namespace adder::test {
namespace {

constexpr size_t kLongest = 70;  // a tile of 64 and a bit

struct InvarianceCase {
  const char* folder;
  WeightType type;
  uint64_t logits_hash;  // XXH3-64 of the golden prompt's logits
  KvChoice kv_type = KvChoice::kDefault;
};

std::string CaseName(const testing::TestParamInfo<InvarianceCase>& info) {
  std::string name = info.param.folder;
  std::replace(name.begin(), name.end(), '-', '_');
  for (const auto& [type, text] : kWeightTypes) {
    if (type == info.param.type) name += std::string("_") + text;
  }
  if (info.param.kv_type == KvChoice::kInt8) name += "_kv_int8";
  return name;
}

using Logits = std::vector<float>;

testing::AssertionResult SameBits(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size())
    return testing::AssertionFailure() << a.size() << " and " << b.size() << " logits";
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0)
      return testing::AssertionFailure() << "logit " << i << ": " << a[i] << " and " << b[i];
  }
  return testing::AssertionSuccess();
}

// Keeps the logits of every token of a call.
class Recorder final : public FeedObserver {
 public:
  void OnLogits(size_t token, std::span<const float> logits) override {
    EXPECT_EQ(token, rows.size());
    rows.emplace_back(logits.begin(), logits.end());
  }
  std::vector<Logits> rows;
};

class Invariance : public testing::TestWithParam<InvarianceCase> {
 protected:
  void SetUp() override {
    converted_ = ConvertedModel(GoldenFolder(GetParam().folder), GetParam().type);
    ASSERT_NE(converted_->model, nullptr);
    golden_prompt_ =
        GoldenIds(GoldenFolder(GetParam().folder) + "/golden.safetensors", "input_ids");
    tokens_ = golden_prompt_;
    std::mt19937 random(7);
    while (tokens_.size() < kLongest) {
      tokens_.push_back(static_cast<int32_t>(random() % model().config().vocab_rows));
    }
    // expected_[n]: logits after n tokens fed one by one; none after 0.
    const SessionBuffer buffer = NewSession(model(), 1);
    expected_.emplace_back();
    for (const int32_t token : tokens_) {
      ASSERT_TRUE(buffer.session().Feed({&token, 1}).ok());
      const auto logits = buffer.session().logits();
      expected_.emplace_back(logits.begin(), logits.end());
    }
  }

  static SessionBuffer NewSession(const Model& model, uint32_t tile = 64) {
    auto buffer = SessionBuffer::Create(model, {.tile = tile, .kv_type = GetParam().kv_type});
    EXPECT_TRUE(buffer.ok()) << buffer.status().message();
    return std::move(*buffer);
  }
  const Model& model() const { return *converted_->model; }
  std::span<const int32_t> Tokens(size_t begin, size_t count) const {
    return std::span(tokens_).subspan(begin, count);
  }
  void ExpectPosition(const Session& session, size_t tokens) const {
    EXPECT_EQ(session.position(), tokens);
    EXPECT_TRUE(SameBits(session.logits(), expected_[tokens]));
  }

  std::unique_ptr<ConvertedFile> converted_;
  std::vector<int32_t> golden_prompt_;
  std::vector<int32_t> tokens_;
  std::vector<Logits> expected_;
};

TEST_P(Invariance, EverySplitIntoTwo) {
  const SessionBuffer buffer = NewSession(model());
  Session& session = buffer.session();
  for (size_t length = 0; length <= kLongest; ++length) {
    for (size_t first = 0; first <= length; ++first) {
      session.Reset();
      ASSERT_TRUE(session.Feed(Tokens(0, first)).ok());
      ASSERT_TRUE(session.Feed(Tokens(first, length - first)).ok());
      ASSERT_EQ(session.position(), length);
      ASSERT_TRUE(SameBits(session.logits(), expected_[length]))
          << first << " + " << length - first << " tokens";
    }
  }
}

TEST_P(Invariance, EveryTileAndManyParts) {
  std::mt19937 random(11);
  for (const uint32_t tile : {1u, 2u, 3u, 7u, 16u, 64u}) {
    const SessionBuffer buffer = NewSession(model(), tile);
    Session& session = buffer.session();
    for (int round = 0; round < 8; ++round) {
      session.Reset();
      const size_t largest = round == 0 ? kLongest : size_t{1} << (round % 6);
      for (size_t at = 0; at < kLongest;) {
        const size_t count = std::min<size_t>(1 + random() % largest, kLongest - at);
        ASSERT_TRUE(session.Feed(Tokens(at, count)).ok());
        at += count;
        ASSERT_TRUE(SameBits(session.logits(), expected_[at]))
            << "tile " << tile << ", position " << at << " after a part of " << count;
      }
    }
    // Observers see the same logits at every position.
    session.Reset();
    Recorder recorder;
    ASSERT_TRUE(session.Feed(tokens_, &recorder).ok());
    ASSERT_EQ(recorder.rows.size(), kLongest);
    for (size_t t = 0; t < kLongest; ++t) {
      ASSERT_TRUE(SameBits(recorder.rows[t], expected_[t + 1])) << "tile " << tile << ", " << t;
    }
  }
}

// Every model gives these bits with every compiler, kernel table and architecture.
TEST_P(Invariance, LogitsHashOfTheGoldenPrompt) {
  std::vector<float> all;
  for (size_t n = 1; n <= golden_prompt_.size(); ++n) {
    all.insert(all.end(), expected_[n].begin(), expected_[n].end());
  }
  const uint64_t hash =
      Checksum({reinterpret_cast<const uint8_t*>(all.data()), all.size() * sizeof(float)});
  char text[20];
  std::snprintf(text, sizeof(text), "0x%016" PRIx64, hash);
  EXPECT_EQ(hash, GetParam().logits_hash) << "is " << text;
}

TEST_P(Invariance, EveryKernelTableEqualsScalar) {
  for (const Kernels* table : CompiledKernels()) {
    if ((DetectCpuFeatures() & table->required) != table->required) {
      std::printf("[  SKIPPED ] %s: this CPU has %s\n", table->name,
                  CpuFeatureNames(DetectCpuFeatures()).c_str());
      continue;
    }
    SCOPED_TRACE(table->name);
    const auto other = Model::Open(converted_->path, {.isa = table->name});
    ASSERT_TRUE(other.ok()) << other.status().message();
    ASSERT_STREQ((*other)->kernels().name, table->name);
    const SessionBuffer buffer = NewSession(**other);
    Recorder recorder;
    ASSERT_TRUE(buffer.session().Feed(tokens_, &recorder).ok());
    for (size_t t = 0; t < kLongest; ++t) {
      ASSERT_TRUE(SameBits(recorder.rows[t], expected_[t + 1])) << "position " << t;
    }
  }
}

TEST_P(Invariance, ResetEqualsFresh) {
  const SessionBuffer buffer = NewSession(model());
  Session& session = buffer.session();
  std::vector<int32_t> other(tokens_.rbegin(), tokens_.rend());
  ASSERT_TRUE(session.Feed(other).ok());
  session.Reset();
  EXPECT_EQ(session.position(), 0u);
  EXPECT_TRUE(session.logits().empty());
  for (const size_t length : {size_t{1}, size_t{2}, kLongest}) {
    session.Reset();
    ASSERT_TRUE(session.Feed(Tokens(0, length)).ok());
    ExpectPosition(session, length);
  }
}

TEST_P(Invariance, SessionsDoNotInteract) {
  const SessionBuffer a = NewSession(model(), 16), b = NewSession(model(), 7);
  std::vector<int32_t> reversed(tokens_.rbegin(), tokens_.rend());
  const SessionBuffer alone = NewSession(model());
  ASSERT_TRUE(alone.session().Feed(reversed).ok());
  for (size_t at = 0; at < kLongest; at += 5) {
    ASSERT_TRUE(a.session().Feed(Tokens(at, 5)).ok());
    ASSERT_TRUE(b.session().Feed(std::span(reversed).subspan(at, 5)).ok());
    ExpectPosition(a.session(), at + 5);
  }
  EXPECT_TRUE(SameBits(b.session().logits(), alone.session().logits()));
}

// Cancels a session when a given token of a call has passed the layers.
class CancelAt final : public FeedObserver {
 public:
  CancelAt(Session& session, size_t token) : session_(session), token_(token) {}
  void OnLogits(size_t token, std::span<const float>) override {
    if (token == token_) session_.Cancel();
  }

 private:
  Session& session_;
  size_t token_;
};

TEST_P(Invariance, CancelLeavesAConsistentState) {
  const SessionBuffer buffer = NewSession(model(), 8);
  Session& session = buffer.session();
  session.Cancel();  // before: ends the next call with tokens, and only that
  EXPECT_TRUE(session.Feed({}).ok());
  EXPECT_EQ(session.Feed(tokens_).code(), Code::kCancelled);
  ExpectPosition(session, 0);
  ASSERT_TRUE(session.Feed(Tokens(0, 5)).ok());
  ExpectPosition(session, 5);

  CancelAt within(session, 10);  // in the second tile of this call: 16 tokens go in
  EXPECT_EQ(session.Feed(Tokens(5, 60), &within).code(), Code::kCancelled);
  ExpectPosition(session, 5 + 16);
  ASSERT_TRUE(session.Feed(Tokens(21, kLongest - 21)).ok());
  ExpectPosition(session, kLongest);

  session.Reset();
  std::vector<int32_t> refused(tokens_.begin(), tokens_.end());
  refused.back() = static_cast<int32_t>(model().config().vocab_rows);
  EXPECT_EQ(session.Feed(refused).code(), Code::kInvalidArgument);
  ExpectPosition(session, 0);
}

constexpr InvarianceCase kCases[] = {
    {"mamba1", WeightType::kQ8, 0x2c7e1e0aad2c01bdu},
    {"mamba1", WeightType::kQ4, 0x2aa91ac040191b81u},
    {"mamba1", WeightType::kF16, 0x77d310415ef67159u},
    {"mamba1", WeightType::kF32, 0xeacd4024c3976cd4u},
    {"mamba1-odd", WeightType::kQ8, 0x373e18eff61252b4u},
    {"mamba1-odd", WeightType::kQ4, 0x7905c44529390370u},
    {"falcon-mamba", WeightType::kQ8, 0xb0c76b523085d5b0u},
    {"falcon-mamba", WeightType::kQ4, 0x15f7757439268592u},
    {"mamba2", WeightType::kQ8, 0x727a197f562850abu},
    {"mamba2", WeightType::kQ4, 0x19b4f8cda17ad816u},
    {"mamba2", WeightType::kF16, 0x413f8f470251dcc7u},
    {"mamba2", WeightType::kF32, 0x8ad70fcee258698cu},
    {"codestral-mamba", WeightType::kQ8, 0x9058bb2f1fbe1de5u},
    {"codestral-mamba", WeightType::kQ4, 0xc19b8ff652b855ccu},
    {"mamba3-siso", WeightType::kQ8, 0x36fc954f8891b5a8u},
    {"mamba3-siso", WeightType::kQ4, 0x1db8dc38a464394bu},
    {"mamba3-mimo-norm", WeightType::kQ8, 0x6a513b8cbc0a367du},
    {"mamba3-mimo-norm", WeightType::kQ4, 0xa71dd32c2a323d00u},
    {"mamba3-mimo", WeightType::kQ8, 0x384ae098001056aeu},
    {"mamba3-mimo", WeightType::kQ4, 0xf29497caec76d51fu},
    {"mamba3-siso-mlp", WeightType::kQ8, 0x8bb8500a8f40b235u},
    {"mamba3-siso-mlp", WeightType::kQ4, 0x952a986070e43ac3u},
    {"jamba", WeightType::kQ8, 0x9dbc5bc93c72cceau},
    {"jamba", WeightType::kQ4, 0xb0b7b2595f63d31du},
    {"bamba", WeightType::kQ8, 0xa3b264fad237ee57u},
    {"bamba", WeightType::kQ4, 0xdbc426f94199741cu},
    {"granite-h-dense", WeightType::kQ8, 0xd8c4ef3af125b6d7u},
    {"granite-h-dense", WeightType::kQ4, 0xdd8ce58725f2b5bau},
    {"granite-h-moe", WeightType::kQ8, 0xc3a1c320dca2802au},
    {"granite-h-moe", WeightType::kQ4, 0xa396805fa5b4fc50u},
    {"nemotron-h", WeightType::kQ8, 0x0bf000a2c3b5945du},
    {"nemotron-h", WeightType::kQ4, 0xd201f7d998d530f4u},
    {"zamba2", WeightType::kQ8, 0xf8c38ccf3bf2bae1u},
    {"zamba2", WeightType::kQ4, 0x8a8b3df1a754f7c4u},
    {"falcon-h1", WeightType::kQ8, 0xeb5a1fe6ec91dfd1u},
    {"falcon-h1", WeightType::kQ4, 0xbc8c23ddb216ebf2u},
    {"granite-h-dense", WeightType::kQ8, 0x368b79c2fe3537ffu, KvChoice::kInt8},
    {"falcon-h1", WeightType::kQ8, 0xe541edca0854d974u, KvChoice::kInt8}};
INSTANTIATE_TEST_SUITE_P(Goldens, Invariance, testing::ValuesIn(kCases), CaseName);

}  // namespace
}  // namespace adder::test
