// libFuzzer: any bytes as tokenizer.json. What compiles must parse, encode and decode.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "converter/tokenizer_json.h"
#include "runtime/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto section = adder::CompileTokenizer({reinterpret_cast<const char*>(data), size});
  if (!section.ok()) return 0;
  const auto tokenizer = adder::Tokenizer::Parse(*section);
  if (!tokenizer.ok()) std::abort();  // the compiler and the reader disagree
  const auto ids = tokenizer->Encode("It's 12 \xE2\x96\x81 caf\xC3\xA9<s>  \n<|endoftext|> a");
  if (!ids.ok()) return 0;
  const auto text = tokenizer->Decode(*ids);
  if (!text.ok()) std::abort();  // ids of its own making
  return 0;
}
