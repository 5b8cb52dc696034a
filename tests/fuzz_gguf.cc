// libFuzzer: any bytes as a GGUF file, mapped to a checkpoint; small tensors are read to the last
// element, and a tokenizer that compiles must parse, encode and decode.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "converter/gguf_checkpoint.h"
#include "converter/plan.h"
#include "runtime/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto gguf = adder::ReadGguf({data, size}, "fuzz");
  if (!gguf.ok()) return 0;
  for (const auto& [name, tensor] : gguf->tensors) {
    if (tensor.elements() <= 4096) (void)adder::ReadF32(tensor, name).ok();
  }
  const auto checkpoint = adder::Checkpoint::FromParts(gguf->config, gguf->tensors);
  (void)adder::PlanModel(checkpoint, "").ok();
  if (gguf->tokenizer_section.empty()) return 0;
  const auto tokenizer = adder::Tokenizer::Parse(gguf->tokenizer_section);
  if (!tokenizer.ok()) std::abort();  // the compiler and the reader disagree
  const auto ids = tokenizer->Encode("It's 12 \xE2\x96\x81 caf\xC3\xA9<s>  \n<|endoftext|> a");
  if (!ids.ok()) return 0;
  const auto text = tokenizer->Decode(*ids);
  if (!text.ok()) std::abort();  // ids of its own making
  return 0;
}
