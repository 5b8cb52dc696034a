// libFuzzer: any bytes as a model file, with the checksums put right; what opens runs three tokens
// on the best kernels and on scalar ones, and its tokenizer encodes and decodes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "runtime/session_buffer.h"
#include "tests/file_checksums.h"

namespace {

constexpr size_t kLargestFile = size_t{1} << 20;
constexpr size_t kLargestSession = size_t{16} << 20;
constexpr uint32_t kTile = 2;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

void Run(std::span<const uint8_t> file, const char* isa) {
  const auto model = adder::Model::FromMemory(file, {.isa = isa});
  if (!model.ok()) return;
  const auto bytes = adder::Session::Bytes(**model, {.tile = kTile});
  if (!bytes.ok() || *bytes > kLargestSession) return;
  const auto buffer = adder::SessionBuffer::Create(**model, {.tile = kTile});
  if (!buffer.ok()) return;
  const auto last = static_cast<int32_t>((*model)->config().vocab_rows - 1);
  const int32_t tokens[] = {0, last / 2, last};
  if (!buffer->session().Feed(tokens).ok()) std::abort();  // all ids are valid
  if (const adder::Tokenizer* tokenizer = (*model)->tokenizer()) {
    (void)tokenizer->Encode("Once upon a time").ok();
    (void)tokenizer->Decode(tokens).ok();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > kLargestFile) return -1;
  // Exactly `size` bytes, so that reading behind them is noticed.
  void* memory = nullptr;
  if (::posix_memalign(&memory, adder::kAlignment, size > 0 ? size : 1) != 0) return -1;
  const std::unique_ptr<void, Free> owner(memory);
  auto* bytes = static_cast<uint8_t*>(memory);
  if (size > 0) std::memcpy(bytes, data, size);
  const std::span<uint8_t> file(bytes, size);
  adder::test::FixChecksums(file);
  Run(file, "");
  Run(file, "scalar");
  return 0;
}
