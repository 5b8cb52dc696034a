// A reader of the pickles that torch.save writes. It is an interpreter of a few opcodes over plain
// values: it imports nothing, calls nothing, and names whatever else a pickle asks for.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "converter/checkpoint.h"
#include "runtime/status.h"

namespace adder {

// One tensor as pickled: a strided view of a storage that lies elsewhere. The view is not checked
// against the storage here.
struct PickledTensor {
  std::string_view key = {};  // of the storage; a part of the pickle
  SourceType type = SourceType::kF32;
  uint64_t storage_elements = 0;
  uint64_t offset = 0;  // in elements, as the strides
  std::vector<uint64_t> shape = {}, strides = {};
};

// The tensors of the pickled dict, by name; of its "state_dict" or "model" when it has none itself.
// Values that are no tensors are skipped. A pickle that cannot be read to its end is an error that
// names the opcode or global and the byte.
Result<std::map<std::string, PickledTensor>> ReadPickledTensors(std::span<const uint8_t> bytes,
                                                                const std::string& name);

}  // namespace adder
