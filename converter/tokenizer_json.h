// Compiles a Hugging Face tokenizer.json (BPE) into the tokenizer section of a model file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/status.h"

namespace adder {

// Models, normalizers, pre-tokenizers, post-processors and decoders outside the supported set are
// kUnsupported with their name; contradictions (a merge of unknown pieces, an id given twice) are
// kCorruptFile. The same text always gives the same bytes.
Result<std::vector<uint8_t>> CompileTokenizer(std::string_view tokenizer_json);

}  // namespace adder
