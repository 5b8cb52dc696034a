// A session that was saved, loaded, forked or rolled back gives the logits of one that was not, bit
// for bit: every family, type of weights and type of state, at random points, into sessions with
// other tiles, threads and contexts.
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "runtime/session_buffer.h"
#include "tests/converted_model.h"
#include "tests/state_blob.h"

namespace adder::test {
namespace {

constexpr size_t kLongest = 72;

SessionBuffer NewSession(const Model& model, const SessionOptions& options) {
  auto buffer = SessionBuffer::Create(model, options);
  EXPECT_TRUE(buffer.ok()) << buffer.status().message();
  return std::move(*buffer);
}

// A text and the logits behind each of its tokens, as an undisturbed session gives them.
class Text {
 public:
  Text(const Model& model, SessionOptions options, size_t length) {
    std::mt19937 random(11);
    options.tile = 1;
    const SessionBuffer buffer = NewSession(model, options);
    logits_.emplace_back();
    for (size_t i = 0; i < length; ++i) {
      tokens_.push_back(static_cast<int32_t>(random() % model.config().vocab_rows));
      EXPECT_TRUE(buffer.session().FeedOne(tokens_.back()).ok());
      const auto logits = buffer.session().logits();
      logits_.emplace_back(logits.begin(), logits.end());
    }
  }

  std::span<const int32_t> tokens() const { return tokens_; }
  Status FeedTo(Session& session, uint64_t end) const {
    return session.Feed(tokens().subspan(session.position(), end - session.position()));
  }
  testing::AssertionResult Holds(const Session& session, uint64_t position) const {
    if (session.position() != position)
      return testing::AssertionFailure()
             << "position " << session.position() << ", not " << position;
    const auto logits = session.logits();
    const auto& expected = logits_[position];
    if (logits.size() != expected.size() ||
        (!expected.empty() &&
         std::memcmp(logits.data(), expected.data(), logits.size_bytes()) != 0))
      return testing::AssertionFailure() << "other logits at position " << position;
    return testing::AssertionSuccess();
  }

 private:
  std::vector<int32_t> tokens_;
  std::vector<std::vector<float>> logits_;
};

struct Case {
  const char* folder;
  WeightType type;
};

std::string CaseName(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.folder;
  std::replace(name.begin(), name.end(), '-', '_');
  for (const auto& [type, text] : kWeightTypes) {
    if (type == info.param.type) name += std::string("_") + text;
  }
  return name;
}

class State : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    converted_ = ConvertedModel(GoldenFolder(GetParam().folder), GetParam().type);
    ASSERT_NE(converted_->model, nullptr);
  }
  const Model& model() const { return *converted_->model; }
  bool HasAttention() const { return model().KvBytesPerToken() > 0; }

  // All combinations of types that the model has.
  std::vector<SessionOptions> Types() const {
    std::vector<SessionOptions> all;
    for (const StateType state : {StateType::kF32, StateType::kInt16}) {
      for (const KvChoice kv : {KvChoice::kDefault, KvChoice::kInt8}) {
        const SessionOptions options = {.state_type = state, .kv_type = kv};
        if (Session::Bytes(model(), options).ok()) all.push_back(options);
      }
    }
    return all;
  }

 private:
  std::unique_ptr<ConvertedFile> converted_;
};

TEST_P(State, SurvivesRandomSavesLoadsForksAndRollBacks) {
  std::mt19937 random(5);
  for (const SessionOptions& types : Types()) {
    const Text text(model(), types, kLongest);
    std::vector<SessionBuffer> sessions;
    for (const auto& [tile, threads, context] :
         {std::array{64u, 1u, 4096u}, {1u, 2u, 80u}, {7u, 1u, 300u}}) {
      SessionOptions options = types;
      options.tile = tile, options.threads = threads, options.context = context;
      options.checkpoints = 3;
      sessions.push_back(NewSession(model(), options));
    }
    std::vector<std::vector<uint8_t>> blobs;
    for (int step = 0; step < 60; ++step) {
      Session& session = sessions[random() % sessions.size()].session();
      uint64_t expected = session.position();
      switch (random() % 6) {
        case 0:
        case 1:
          expected += random() % (kLongest - expected + 1) / 2;
          ASSERT_TRUE(text.FeedTo(session, expected).ok());
          break;
        case 2:
          blobs.push_back(Saved(session));
          break;
        case 3: {
          if (blobs.empty()) break;
          const auto& blob = blobs[random() % blobs.size()];
          const Status loaded = StateBlob::Load(session, blob);
          ASSERT_TRUE(loaded.ok()) << loaded.message();
          expected = HeaderOf(blob).position;
          // The context is the session's own; all else is what was loaded.
          const auto again =
              Changed(Saved(session), [&](StateHeader& h) { h.context = HeaderOf(blob).context; });
          ASSERT_EQ(again, blob);
          break;
        }
        case 4: {
          const Session& other = sessions[random() % sessions.size()].session();
          const Status copied = session.CopyFrom(other);
          ASSERT_TRUE(copied.ok()) << copied.message();
          expected = other.position();
          break;
        }
        case 5: {
          const size_t marks = session.checkpoint_count();
          if (marks == 0 || random() % 2 == 0) {
            ASSERT_TRUE(session.Checkpoint().ok());
          } else {
            expected = session.checkpoint_position(random() % marks);
            ASSERT_TRUE(session.RollBack(expected).ok());
          }
          break;
        }
      }
      ASSERT_TRUE(text.Holds(session, expected)) << "step " << step;
    }
    for (const SessionBuffer& buffer : sessions) {
      ASSERT_TRUE(text.FeedTo(buffer.session(), kLongest).ok());
      EXPECT_TRUE(text.Holds(buffer.session(), kLongest));
    }
  }
}

TEST_P(State, SurvivesASlidingContext) {
  if (!HasAttention()) GTEST_SKIP() << "no attention layers";
  for (SessionOptions options : Types()) {
    options.context = 10;
    options.when_full = ContextPolicy::kSlide;
    options.checkpoints = 4;
    const Text text(model(), options, kLongest);
    const SessionBuffer a = NewSession(model(), options), c = NewSession(model(), options);
    for (const uint64_t position : {5u, 10u, 11u, 30u, 41u, 60u}) {
      // In memory full of ones, which are NaN in every type.
      std::vector<uint8_t> blob;
      ASSERT_TRUE(text.FeedTo(a.session(), position).ok());
      blob = Saved(a.session());
      const size_t bytes = *Session::Bytes(model(), options);
      std::unique_ptr<void, decltype(&std::free)> memory(
          std::aligned_alloc(kAlignment, RoundUp(bytes, kAlignment)), &std::free);
      std::memset(memory.get(), 0xff, bytes);
      const auto placed = Session::Place(model(), options, memory.get(), bytes);
      ASSERT_TRUE(placed.ok());
      Session& b = **placed;
      ASSERT_TRUE(StateBlob::Load(b, blob).ok());
      ASSERT_TRUE(text.Holds(b, position));
      EXPECT_EQ(Saved(b), blob);
      ASSERT_TRUE(c.session().CopyFrom(b).ok());
      for (Session* session : {&b, &c.session()}) {
        ASSERT_TRUE(text.FeedTo(*session, position + 3).ok());
        EXPECT_TRUE(text.Holds(*session, position + 3));
        ASSERT_TRUE(text.FeedTo(*session, kLongest).ok());
        EXPECT_TRUE(text.Holds(*session, kLongest));
      }
      b.~Session();
    }
  }
}

TEST_P(State, RollsBackOnASlidingContextAsLongAsKeysAreThere) {
  if (!HasAttention()) GTEST_SKIP() << "no attention layers";
  const SessionOptions options = {
      .context = 10, .when_full = ContextPolicy::kSlide, .checkpoints = 8};
  const Text text(model(), options, kLongest);
  const SessionBuffer buffer = NewSession(model(), options);
  Session& session = buffer.session();
  const auto mark = [&](uint64_t position) {
    ASSERT_TRUE(text.FeedTo(session, position).ok());
    ASSERT_TRUE(session.Checkpoint().ok());
  };
  for (const uint64_t position : {20u, 30u, 40u}) mark(position);
  // The ring has 32 slots: of 30 to 40 it needs 20 to 40 and then 10 to 40.
  ASSERT_TRUE(text.FeedTo(session, 52).ok());
  ASSERT_TRUE(session.RollBack(30).ok());
  EXPECT_TRUE(text.Holds(session, 30));
  const Status lost = session.RollBack(20);
  EXPECT_EQ(lost.code(), Code::kContextLost);
  EXPECT_EQ(lost.message(),
            "back at position 20 attention would look back on 10 tokens, but all before position "
            "20 have been overwritten");
  EXPECT_TRUE(text.Holds(session, 30));
  EXPECT_EQ(session.RollBack(40).code(), Code::kNotFound);  // went with the roll back to 30
  uint64_t reused = 0;
  ASSERT_TRUE(session.FeedFromStart(text.tokens().first(25), &reused).ok());
  EXPECT_EQ(reused, 0u);  // not from the checkpoint at 20
  EXPECT_TRUE(text.Holds(session, 25));
  ASSERT_TRUE(text.FeedTo(session, kLongest).ok());
  EXPECT_TRUE(text.Holds(session, kLongest));
}

TEST_P(State, FeedsOnlyWhatIsNewOfAText) {
  const SessionOptions options = {.tile = 5, .checkpoints = 3};
  const Text text(model(), options, kLongest);
  const SessionBuffer buffer = NewSession(model(), options);
  Session& session = buffer.session();
  const auto expect = [&](size_t length, uint64_t expected_reused) {
    uint64_t reused = 99;
    const Status fed = session.FeedFromStart(text.tokens().first(length), &reused);
    ASSERT_TRUE(fed.ok()) << fed.message();
    EXPECT_EQ(reused, expected_reused);
    EXPECT_TRUE(text.Holds(session, length));
  };
  expect(20, 0);
  expect(24, 20);
  expect(24, 24);
  ASSERT_TRUE(session.Checkpoint().ok());
  expect(40, 24);
  ASSERT_TRUE(session.Checkpoint().ok());
  expect(60, 40);
  expect(50, 40);
  expect(39, 24);
  EXPECT_EQ(session.checkpoint_count(), 1u);
  expect(23, 0);
  EXPECT_EQ(session.checkpoint_count(), 0u);
  expect(30, 23);
  ASSERT_TRUE(session.Checkpoint().ok());
  // Another text, which differs in one token before, at and behind the checkpoint.
  for (const size_t at : {3u, 29u, 30u, 34u}) {
    std::vector<int32_t> other(text.tokens().begin(), text.tokens().begin() + 36);
    other[at] = (other[at] + 1) % static_cast<int32_t>(model().config().vocab_rows);
    expect(36, 30);
    uint64_t reused = 99;
    const SessionBuffer fork = NewSession(model(), options);
    ASSERT_TRUE(session.FeedFromStart(other, &reused).ok());
    EXPECT_EQ(reused, at < 30 ? 0u : 30u);
    ASSERT_TRUE(fork.session().Feed(other).ok());
    EXPECT_EQ(Saved(fork.session()), Saved(session));
    expect(30, reused);
    ASSERT_TRUE(session.Checkpoint().ok());
  }
  // Refused or cancelled.
  std::vector<int32_t> refused(text.tokens().begin(), text.tokens().begin() + 40);
  refused.back() = -1;
  uint64_t reused = 99;
  expect(35, 30);
  EXPECT_EQ(session.FeedFromStart(refused, &reused).code(), Code::kInvalidArgument);
  EXPECT_TRUE(text.Holds(session, 35));
  EXPECT_EQ(reused, 99u);
  session.Cancel();
  EXPECT_EQ(session.FeedFromStart(text.tokens().first(33), &reused).code(), Code::kCancelled);
  EXPECT_EQ(reused, 30u);
  EXPECT_TRUE(text.Holds(session, 30));
  expect(0, 0);
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* folder :
       {"mamba1", "mamba1-odd", "falcon-mamba", "mamba2", "codestral-mamba", "mamba3-siso",
        "mamba3-mimo-norm", "mamba3-mimo", "mamba3-siso-mlp", "jamba", "bamba", "granite-h-dense",
        "granite-h-moe", "nemotron-h", "zamba2", "falcon-h1"}) {
    for (const WeightType type : {WeightType::kF32, WeightType::kQ8, WeightType::kQ4}) {
      cases.push_back({folder, type});
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Goldens, State, testing::ValuesIn(Cases()), CaseName);

TEST(Checkpoints, AreARing) {
  const auto file = ConvertedModel(GoldenFolder("mamba1"), WeightType::kQ8);
  const Text text(*file->model, {}, 30);
  const SessionBuffer none = NewSession(*file->model, {});
  EXPECT_EQ(none.session().Checkpoint().code(), Code::kInvalidArgument);
  EXPECT_EQ(none.session().RollBack(0).code(), Code::kNotFound);
  const SessionBuffer buffer = NewSession(*file->model, {.checkpoints = 3});
  Session& session = buffer.session();
  const auto positions = [&] {
    std::vector<uint64_t> all;
    for (size_t i = 0; i < session.checkpoint_count(); ++i)
      all.push_back(session.checkpoint_position(i));
    return all;
  };
  using Positions = std::vector<uint64_t>;
  for (const uint64_t position : {0u, 5u, 5u, 9u}) {
    ASSERT_TRUE(text.FeedTo(session, position).ok());
    ASSERT_TRUE(session.Checkpoint().ok());
  }
  EXPECT_EQ(positions(), (Positions{0, 5, 9}));
  ASSERT_TRUE(text.FeedTo(session, 12).ok());
  ASSERT_TRUE(session.Checkpoint().ok());
  EXPECT_EQ(positions(), (Positions{5, 9, 12}));
  ASSERT_TRUE(text.FeedTo(session, 20).ok());
  EXPECT_EQ(session.RollBack(10).message(), "no checkpoint at position 10, there are 3 others");
  EXPECT_TRUE(text.Holds(session, 20));
  ASSERT_TRUE(session.RollBack(9).ok());
  EXPECT_TRUE(text.Holds(session, 9));
  EXPECT_EQ(positions(), (Positions{5, 9}));
  ASSERT_TRUE(session.RollBack(9).ok());  // as often as one likes
  for (const uint64_t position : {11u, 13u}) {
    ASSERT_TRUE(text.FeedTo(session, position).ok());
    ASSERT_TRUE(session.Checkpoint().ok());
  }
  EXPECT_EQ(positions(), (Positions{9, 11, 13}));
  session.Reset();
  EXPECT_EQ(positions(), Positions{});
  EXPECT_EQ(Session::Bytes(*file->model, {.checkpoints = 4097}).status().message(),
            "checkpoints is 4097, expected 0 to 4096");
}

}  // namespace
}  // namespace adder::test
