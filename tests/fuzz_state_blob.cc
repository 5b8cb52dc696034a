// libFuzzer: any bytes as a saved state, as they are and with the checksums put right. What loads
// goes on for two tokens and saves again; what does not leaves the session as it was.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "runtime/generate.h"
#include "runtime/session_buffer.h"
#include "runtime/session_state.h"
#include "tests/state_checksums.h"

namespace {

using adder::StateBlob;

class NoSink final : public adder::TextSink {
 public:
  bool OnText(std::string_view, int32_t) override { return true; }
};

std::vector<uint8_t> Saved(const adder::Session& session) {
  std::vector<uint8_t> blob(StateBlob::Bytes(session));
  if (!StateBlob::Save(session, blob).ok()) std::abort();
  return blob;
}

void Load(adder::Session& session, std::span<const uint8_t> blob) {
  session.Reset();
  const int32_t tokens[] = {1, 2, 3};
  if (!session.Feed(tokens).ok()) std::abort();
  const std::vector<uint8_t> before = Saved(session);
  if (!StateBlob::Load(session, blob).ok()) {
    if (Saved(session) != before) std::abort();
    return;
  }
  if (session.position() > 0 && session.room() > 2) {
    adder::GenerateOptions options;
    options.max_tokens = 1;
    options.sampler.penalty_window = 2;
    options.sampler.presence_penalty = 1;
    options.resume = session.open_generation() != nullptr;
    NoSink sink;
    (void)adder::Generate(session, {}, options, sink).ok();  // logits may be NaN
    if (!session.FeedOne(1).ok()) std::abort();
  }
  const std::vector<uint8_t> after = Saved(session);
  if (!StateBlob::Load(session, after).ok()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* const model = [] {
    auto opened =
        adder::Model::Open(std::string(ADDER_SOURCE_DIR) + "/tests/data/state/falcon-h1-q8.adder");
    if (!opened.ok()) std::abort();
    return new std::unique_ptr<adder::Model>(std::move(*opened));
  }();
  static const auto* const sessions = [] {
    auto* made = new std::vector<adder::SessionBuffer>;
    for (const auto policy : {adder::ContextPolicy::kStop, adder::ContextPolicy::kSlide}) {
      auto buffer =
          adder::SessionBuffer::Create(**model, {.tile = 2, .context = 20, .when_full = policy});
      if (!buffer.ok()) std::abort();
      made->push_back(std::move(*buffer));
    }
    return made;
  }();
  std::vector<uint8_t> blob(data, data + size);
  for (const bool fixed : {false, true}) {
    if (fixed) adder::test::FixStateChecksums(blob);
    for (const adder::SessionBuffer& buffer : *sessions) Load(buffer.session(), blob);
  }
  return 0;
}
