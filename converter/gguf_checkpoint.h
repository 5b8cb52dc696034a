// A GGUF file seen as the Hugging Face checkpoint that it was made from: its tensors and settings
// under the names that the families' plans (families.h) look for.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "converter/checkpoint.h"
#include "converter/json.h"
#include "runtime/status.h"

namespace adder {

struct GgufCheckpoint {
  Config config;  // as config.json
  TensorMap tensors;
  std::optional<std::string> chat_template;
  std::vector<uint8_t> tokenizer_section;  // empty: none
  std::string origin;                      // Checkpoint::origin
  std::vector<std::string> warnings;
};

// Tensors point into `bytes`; `name` is the file's, for messages. Architectures without a mapping
// are kUnsupported with their name.
Result<GgufCheckpoint> ReadGguf(std::span<const uint8_t> bytes, const std::string& name);

}  // namespace adder
