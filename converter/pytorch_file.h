// Checkpoints of torch.save (pytorch_model.bin): a zip archive of a pickle and raw storages.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "converter/checkpoint.h"
#include "runtime/status.h"

namespace adder {

// Tensors of a whole file in memory; every element of every view lies inside its storage, and every
// storage inside `bytes`. Tied tensors point at the same bytes. The file's name is for messages.
Result<TensorMap> ParsePytorchFile(std::span<const uint8_t> bytes, const std::string& name);

}  // namespace adder
