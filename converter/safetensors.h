// The safetensors container: 8 bytes of header length, a JSON header, the data.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "converter/checkpoint.h"
#include "runtime/status.h"

namespace adder {

// Tensors of a whole file in memory, all checked to lie inside `bytes`; the file's name is for
// messages. Overlapping and missing ranges are errors; bytes after the last tensor are a warning.
Result<TensorMap> ParseSafetensors(std::span<const uint8_t> bytes, const std::string& name,
                                   std::vector<std::string>* warnings);

}  // namespace adder
