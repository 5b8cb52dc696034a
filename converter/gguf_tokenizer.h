// The tokenizer that a GGUF file carries in its metadata, compiled into the tokenizer section of a
// model file.
#pragma once

#include <cstdint>
#include <vector>

#include "converter/gguf.h"
#include "runtime/status.h"

namespace adder {

// tokenizer.ggml.model "gpt2" is byte-level BPE, whose normalizer and pre-tokenizer are known by
// the name in tokenizer.ggml.pre; "llama" is the BPE of SentencePiece, whose merges follow from the
// scores of its pieces. Other names are kUnsupported. Empty: the file has no tokenizer.
Result<std::vector<uint8_t>> CompileGgufTokenizer(const GgufMetadata& metadata);

}  // namespace adder
