// float32 matrices as NumPy files, format 1.0
// (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "runtime/new_file.h"
#include "runtime/status.h"

namespace adder::cli {

class NpyWriter {
 public:
  static Result<NpyWriter> Create(const std::string& path, uint64_t rows, uint64_t cols);
  Status Append(std::span<const float> row);
  Status Finish();  // after the last row

 private:
  NpyWriter(NewFile file, uint64_t rows, uint64_t cols)
      : file_(std::move(file)), rows_left_(rows), cols_(cols) {}

  NewFile file_;
  uint64_t rows_left_, cols_;
};

}  // namespace adder::cli
