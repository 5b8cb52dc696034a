// Files that another machine made (tests/data/state): their states load and go on everywhere with
// the same bits, and every machine saves the same bytes.
#include <gtest/gtest.h>

#include "runtime/generate.h"
#include "runtime/session_buffer.h"
#include "tests/converted_model.h"
#include "tests/state_blob.h"
#include "tests/text_sink.h"

namespace adder::test {
namespace {

const std::string kFolder = std::string(ADDER_SOURCE_DIR) + "/tests/data/state/";

struct DataCase {
  const char* name;
  SessionOptions options;
  uint64_t logits_hash;  // XXH3-64 of the logits behind 20 more tokens
};

const DataCase kCases[] = {
    {"falcon-h1-q8.state", {}, 0xa6ef5ab15057b196u},
    {"falcon-h1-q8-slide.state",
     {.context = 20,
      .when_full = ContextPolicy::kSlide,
      .state_type = StateType::kInt16,
      .kv_type = KvChoice::kInt8},
     0xc26100ccb481d193u},
};

// 41 tokens: a prompt, and a generation that is kept open.
std::vector<uint8_t> MadeHere(const Model& model, const SessionOptions& options) {
  const auto buffer = SessionBuffer::Create(model, options);
  EXPECT_TRUE(buffer.ok());
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 33; ++i) prompt.push_back(i * 37 % 200);
  GenerateOptions generate;
  generate.max_tokens = 8;
  generate.ignore_eos = true;
  generate.keep_open = true;
  generate.sampler.temperature = 1.0f;
  generate.sampler.repetition_penalty = 1.1f;
  generate.sampler.penalty_window = 5;
  generate.sampler.seed = 3;
  CollectingSink sink;
  const auto result = Generate(buffer->session(), prompt, generate, sink);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return Saved(buffer->session());
}

class StateData : public testing::TestWithParam<DataCase> {};

TEST_P(StateData, IsTheSameOnEveryMachine) {
  const auto model = Model::Open(kFolder + "falcon-h1-q8.adder");
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::vector<uint8_t> committed = ReadFileBytes(kFolder + GetParam().name);
  const std::vector<uint8_t> made = MadeHere(**model, GetParam().options);
  if (made != committed) {
    const std::string path = testing::TempDir() + GetParam().name;
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(made.data()),
               static_cast<std::streamsize>(made.size()));
    ADD_FAILURE() << "this machine saves other bytes, see " << path;
  }
  for (const uint32_t tile : {1u, 64u}) {
    SessionOptions options = GetParam().options;
    options.tile = tile;
    const auto buffer = SessionBuffer::Create(**model, options);
    ASSERT_TRUE(buffer.ok());
    const Status loaded = StateBlob::Load(buffer->session(), committed);
    ASSERT_TRUE(loaded.ok()) << loaded.message();
    std::vector<int32_t> more;
    for (int32_t i = 0; i < 20; ++i) more.push_back(i * 11 % 256);
    ASSERT_TRUE(buffer->session().Feed(more).ok());
    const auto logits = buffer->session().logits();
    EXPECT_EQ(Checksum({reinterpret_cast<const uint8_t*>(logits.data()), logits.size_bytes()}),
              GetParam().logits_hash);
  }
}

INSTANTIATE_TEST_SUITE_P(Files, StateData, testing::ValuesIn(kCases));

}  // namespace
}  // namespace adder::test
