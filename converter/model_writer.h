// Writes a model file (FORMAT.md) under a temporary name and gives it its final name when it is
// complete and on disk. Whatever goes wrong before leaves the final name as it was.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quant/qtypes.h"
#include "runtime/new_file.h"
#include "runtime/status.h"

namespace adder {

struct TensorSpec {
  std::string name;  // at most kMaxTensorName bytes
  DType dtype;
  std::vector<uint64_t> shape;
};

class ModelWriter {
 public:
  // `tensors` may come in any order; the file's order is by name.
  static Result<ModelWriter> Create(const std::string& path, std::vector<TensorSpec> tensors);

  // The tensors in the order in which Append wants them.
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  // Data of the next tensor, whole.
  Status Append(std::span<const uint8_t> data);
  // After the last tensor; the size of the file. `tokenizer` may be empty.
  Result<uint64_t> Finish(std::span<const uint8_t> tokenizer, std::string_view metadata);

 private:
  explicit ModelWriter(NewFile file) : file_(std::move(file)) {}

  NewFile file_;
  std::vector<TensorSpec> tensors_;
  std::vector<uint64_t> checksums_;  // of the tensors written so far
  uint64_t table_offset_ = 0, data_offset_ = 0;
  uint64_t end_ = 0;  // where the next bytes go
};

}  // namespace adder
