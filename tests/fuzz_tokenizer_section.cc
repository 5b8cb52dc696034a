// libFuzzer: any bytes as the tokenizer section of a model file.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "runtime/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tokenizer = adder::Tokenizer::Parse({data, size});
  if (!tokenizer.ok()) return 0;
  for (const bool parse_special : {true, false}) {
    const auto ids = tokenizer->Encode("It's 12 \xE2\x96\x81 caf\xC3\xA9<s>  \n<|endoftext|> a",
                                       {.parse_special = parse_special});
    if (!ids.ok()) continue;
    for (const int32_t id : *ids) {
      if (id < 0 || id >= tokenizer->size()) std::abort();
    }
    (void)tokenizer->Decode(*ids).ok();
  }
  std::string out;
  for (int32_t id = -1; id <= tokenizer->size() && id < 300; ++id) {
    (void)tokenizer->AppendPiece(id, id % 2 == 0, id % 3 == 0, &out).ok();
    if (tokenizer->FindPiece(tokenizer->PieceText(id)) >= tokenizer->size()) std::abort();
  }
  return 0;
}
