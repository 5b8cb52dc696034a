// Bytes that are no state of this session: refused with a code of their own, and nothing changes.
#include <gtest/gtest.h>

#include <cinttypes>

#include "runtime/session_buffer.h"
#include "runtime/session_file.h"
#include "tests/converted_model.h"
#include "tests/state_blob.h"

namespace adder::test {
namespace {

constexpr int32_t kTokens[] = {3, 1, 4, 1, 5, 9, 2, 6};

SessionBuffer NewSession(const Model& model, const SessionOptions& options = {}) {
  auto buffer = SessionBuffer::Create(model, options);
  EXPECT_TRUE(buffer.ok()) << buffer.status().message();
  return std::move(*buffer);
}

class CorruptState : public testing::Test {
 protected:
  void SetUp() override {
    file_ = ConvertedModel(GoldenFolder("falcon-h1"), WeightType::kQ8);
    ASSERT_NE(file_->model, nullptr);
    const SessionBuffer source = NewSession(model());
    ASSERT_TRUE(source.session().Feed(std::span(kTokens).first(3)).ok());
    OpenGeneration& g = source.session().generation();
    g.open = true;
    g.position = 3;
    g.hash = source.session().token_hash();
    g.sampler_bytes = 16, g.text_bytes = 2;
    std::fill_n(g.sampler, 16, uint8_t{7});
    std::fill_n(g.text, 2, 'x');
    blob_ = Saved(source.session());
  }
  const Model& model() const { return *file_->model; }

  // `session` refuses `blob` and stays as it is.
  static void Refuses(Session& session, std::span<const uint8_t> blob, Code code,
                      const std::string& message) {
    const std::vector<uint8_t> before = Saved(session);
    const std::vector<float> logits(session.logits().begin(), session.logits().end());
    const Status loaded = StateBlob::Load(session, blob);
    EXPECT_EQ(loaded.code(), code) << loaded.message();
    EXPECT_EQ(loaded.message(), message);
    EXPECT_EQ(Saved(session), before);
    ASSERT_EQ(session.logits().size(), logits.size());
    EXPECT_EQ(std::memcmp(session.logits().data(), logits.data(), session.logits().size_bytes()),
              0);
  }

  std::unique_ptr<ConvertedFile> file_;
  std::vector<uint8_t> blob_;
};

TEST_F(CorruptState, EveryFlippedByteIsRefused) {
  const SessionBuffer buffer = NewSession(model(), {.checkpoints = 1});
  Session& session = buffer.session();
  ASSERT_TRUE(session.Feed(kTokens).ok());
  ASSERT_TRUE(session.Checkpoint().ok());
  const std::vector<uint8_t> before = Saved(session);
  std::vector<uint8_t> bad = blob_;
  for (size_t i = 0; i < bad.size(); ++i) {
    bad[i] ^= static_cast<uint8_t>(1 + i % 255);
    ASSERT_FALSE(StateBlob::Load(session, bad).ok()) << "byte " << i;
    bad[i] = blob_[i];
    if (i % 997 == 0) {
      ASSERT_EQ(Saved(session), before) << "byte " << i;
    }
  }
  bad.push_back(0);
  EXPECT_EQ(StateBlob::Load(session, bad).code(), Code::kCorruptFile);
  ASSERT_EQ(Saved(session), before);
  ASSERT_TRUE(session.RollBack(std::size(kTokens)).ok());
  ASSERT_TRUE(session.FeedOne(7).ok());
  const SessionBuffer undisturbed = NewSession(model());
  ASSERT_TRUE(undisturbed.session().Feed(kTokens).ok());
  ASSERT_TRUE(undisturbed.session().FeedOne(7).ok());
  EXPECT_EQ(Saved(session), Saved(undisturbed.session()));
  ASSERT_TRUE(StateBlob::Load(session, blob_).ok());
  EXPECT_EQ(Saved(session), blob_);
}

TEST_F(CorruptState, EveryTruncationIsRefused) {
  const SessionBuffer buffer = NewSession(model());
  for (size_t size = 0; size < blob_.size(); ++size) {
    // Of exactly this length, so that a sanitizer sees what is read behind it.
    const std::vector<uint8_t> cut(blob_.begin(), blob_.begin() + static_cast<ptrdiff_t>(size));
    ASSERT_EQ(StateBlob::Load(buffer.session(), cut).code(), Code::kCorruptFile)
        << size << " bytes";
  }
  EXPECT_EQ(buffer.session().position(), 0u);
}

TEST_F(CorruptState, CodesAndMessages) {
  const SessionBuffer buffer = NewSession(model());
  Session& session = buffer.session();
  ASSERT_TRUE(session.Feed(kTokens).ok());
  const auto refuses = [&](Code code, const std::string& message, const auto& change) {
    Refuses(session, Changed(blob_, change), code, message);
  };
  const std::string state = "session state: ";
  Refuses(session, {}, Code::kCorruptFile, state + "0 bytes, the header alone has 128");
  std::vector<uint8_t> text(500, 'x');
  Refuses(session, text, Code::kCorruptFile, state + "wrong first bytes, this is none");
  Refuses(session, std::span(blob_).first(blob_.size() - 1), Code::kCorruptFile,
          state + std::to_string(blob_.size() - 1) + " bytes, the header says " +
              std::to_string(blob_.size()) + " (truncated?)");
  refuses(Code::kUnsupported, state + "format version 2, this build reads 1",
          [](StateHeader& h) { h.version = 2; });
  std::vector<uint8_t> flipped = blob_;
  flipped[50] ^= 1;
  Refuses(session, flipped, Code::kCorruptFile, state + "checksum of the header differs");
  flipped = blob_;
  flipped.back() ^= 1;
  Refuses(session, flipped, Code::kCorruptFile, state + "checksum of the contents differs");
  char foreign[200];
  std::snprintf(foreign, sizeof(foreign),
                "the state belongs to the model file %016" PRIx64 ", the session to %016" PRIx64
                " (checksums of their headers)",
                ~model().file().identity(), model().file().identity());
  refuses(Code::kOtherModel, foreign, [](StateHeader& h) { h.model = ~h.model; });
  refuses(Code::kOtherType, "state_type of the state is int16, of the session f32",
          [](StateHeader& h) { h.state_type = 1; });
  refuses(Code::kCorruptFile, state + "state_type 2, expected 1",
          [](StateHeader& h) { h.state_type = 2; });
  refuses(Code::kOtherType, "kv_type of the state is int8, of the session f16 (or f32)",
          [](StateHeader& h) { h.kv_type = 1; });
  refuses(Code::kCorruptFile, state + "kv_type 7, expected 1",
          [](StateHeader& h) { h.kv_type = 7; });
  refuses(Code::kContextLost,
          "the state has 3 tokens with a context of 2, the session has a context of 4096 and stops "
          "when it is full: the tokens must fit both, or the contexts be equal",
          [](StateHeader& h) { h.context = 2; });
  refuses(Code::kContextLost,
          "the state has 4097 tokens with a context of 4096, the session has a context of 4096 and "
          "stops when it is full: the tokens must fit both, or the contexts be equal",
          [](StateHeader& h) { h.position = 4097; });
  refuses(Code::kCorruptFile, state + "position 4611686018427387905, expected 4611686018427387904",
          [](StateHeader& h) { h.position = (uint64_t{1} << 62) + 1; });
  refuses(Code::kCorruptFile, state + "hidden bytes 252, expected 256",
          [](StateHeader& h) { h.hidden_bytes -= 4; });
  const StateHeader good = HeaderOf(blob_);
  refuses(Code::kCorruptFile, state + "state bytes 0, expected " + std::to_string(good.state_bytes),
          [](StateHeader& h) { h.state_bytes = 0; });
  refuses(Code::kCorruptFile,
          state + "kv bytes " + std::to_string(good.kv_bytes) + ", expected " +
              std::to_string(good.kv_bytes / 3 * 4),
          [](StateHeader& h) { h.position = 4; });
  refuses(Code::kCorruptFile, state + "generation bytes 35, expected 34",
          [](StateHeader& h) { h.generation_bytes = 35; });
  refuses(Code::kCorruptFile, state + "reserved bytes are not zero",
          [](StateHeader& h) { h.reserved[15] = 1; });

  // Within the generation: its header is 34 bytes before the end.
  const auto generation = [&](size_t at, uint8_t value) {
    std::vector<uint8_t> changed = blob_;
    changed[changed.size() - 34 + at] = value;
    FixStateChecksums(changed);
    return changed;
  };
  Refuses(session, generation(0, 17), Code::kCorruptFile,
          state + "generation bytes 34, expected 35");
  Refuses(session, generation(8, 2), Code::kCorruptFile, state + "text_begins 2, expected 1");
  Refuses(session, generation(12, 1), Code::kCorruptFile, state + "reserved bits 1, expected 0");
}

TEST_F(CorruptState, OtherSessions) {
  const auto other_file = ConvertedModel(GoldenFolder("falcon-h1"), WeightType::kQ4);
  const SessionBuffer other_model = NewSession(*other_file->model);
  EXPECT_EQ(StateBlob::Load(other_model.session(), blob_).code(), Code::kOtherModel);
  const SessionBuffer source = NewSession(model());
  ASSERT_TRUE(StateBlob::Load(source.session(), blob_).ok());
  EXPECT_EQ(other_model.session().CopyFrom(source.session()).code(), Code::kOtherModel);
  const SessionBuffer int16 = NewSession(model(), {.state_type = StateType::kInt16});
  EXPECT_EQ(StateBlob::Load(int16.session(), blob_).code(), Code::kOtherType);
  EXPECT_EQ(int16.session().CopyFrom(source.session()).code(), Code::kOtherType);
  const SessionBuffer int8 = NewSession(model(), {.kv_type = KvChoice::kInt8});
  EXPECT_EQ(StateBlob::Load(int8.session(), blob_).code(), Code::kOtherType);
  const SessionBuffer small = NewSession(model(), {.context = 2});
  EXPECT_EQ(StateBlob::Load(small.session(), blob_).code(), Code::kContextLost);
  EXPECT_EQ(small.session().CopyFrom(source.session()).code(), Code::kContextLost);
  EXPECT_EQ(small.session().position(), 0u);
  // A slid text fits sessions that slide with the same context only.
  const SessionBuffer slides =
      NewSession(model(), {.context = 2, .when_full = ContextPolicy::kSlide});
  ASSERT_TRUE(slides.session().Feed(kTokens).ok());
  const std::vector<uint8_t> slid = Saved(slides.session());
  EXPECT_EQ(StateBlob::Load(small.session(), slid).code(), Code::kContextLost);
  EXPECT_EQ(StateBlob::Load(source.session(), slid).code(), Code::kContextLost);
  EXPECT_EQ(StateBlob::Load(slides.session(), slid).code(), Code::kOk);
  // A model without attention layers has no context to compare.
  const auto mamba = ConvertedModel(GoldenFolder("mamba1"), WeightType::kQ8);
  const SessionBuffer a = NewSession(*mamba->model, {.context = 1}),
                      b = NewSession(*mamba->model, {.context = 2});
  ASSERT_TRUE(a.session().Feed(kTokens).ok());
  EXPECT_TRUE(StateBlob::Load(b.session(), Saved(a.session())).ok());
  EXPECT_EQ(Saved(a.session()), Saved(b.session()));
}

TEST_F(CorruptState, RoomForIt) {
  const SessionBuffer buffer = NewSession(model());
  std::vector<uint8_t> room(StateBlob::Bytes(buffer.session()) - 1, 0xaa);
  const Status saved = StateBlob::Save(buffer.session(), room);
  EXPECT_EQ(saved.code(), Code::kBufferTooSmall);
  EXPECT_EQ(saved.message(), "room for " + std::to_string(room.size()) + " bytes, the state has " +
                                 std::to_string(room.size() + 1));
  EXPECT_EQ(room, std::vector<uint8_t>(room.size(), 0xaa));
}

TEST_F(CorruptState, Files) {
  const TempDir folder;
  const SessionBuffer buffer = NewSession(model());
  Session& session = buffer.session();
  EXPECT_EQ(LoadStateFile(session, folder / "none").code(), Code::kNotFound);
  ASSERT_TRUE(StateBlob::Load(session, blob_).ok());
  const std::string path = folder / "state";
  ASSERT_TRUE(SaveStateFile(session, path).ok());
  EXPECT_EQ(ReadFileBytes(path), blob_);
  ASSERT_TRUE(session.FeedOne(1).ok());
  ASSERT_TRUE(SaveStateFile(session, path).ok());
  session.Reset();
  ASSERT_TRUE(LoadStateFile(session, path).ok());
  EXPECT_EQ(session.position(), 4u);
  EXPECT_EQ(ReadFileBytes(path), Saved(session));
  folder.Write("cut", std::string_view("short"));
  const Status cut = LoadStateFile(session, folder / "cut");
  EXPECT_EQ(cut.code(), Code::kCorruptFile);
  EXPECT_EQ(cut.message(), folder / "cut" + ": session state: 5 bytes, the header alone has 128");
  EXPECT_EQ(SaveStateFile(session, folder.path()).code(), Code::kInvalidArgument);
  EXPECT_EQ(SaveStateFile(session, folder / "no/such/folder").code(), Code::kIo);
  size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path()))
    ++files;
  EXPECT_EQ(files, 2u);  // no temporary ones
}

}  // namespace
}  // namespace adder::test
