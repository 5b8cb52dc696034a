// float32 matrices as NumPy files, format 1.0
// (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/status.h"

namespace adder::cli {

// Rows go to a temporary file beside `path`, which gets its name when it is complete and on disk.
// Whatever goes wrong before leaves `path` as it was.
class NpyWriter {
 public:
  static Result<NpyWriter> Create(const std::string& path, uint64_t rows, uint64_t cols);
  NpyWriter(NpyWriter&& other) noexcept;
  NpyWriter& operator=(NpyWriter&&) = delete;
  ~NpyWriter();  // removes the temporary file unless Finish succeeded

  Status Append(std::span<const float> row);
  Status Finish();  // after the last row

 private:
  NpyWriter(std::string path, uint64_t rows, uint64_t cols);
  Status Fail(const std::string& path, const char* what) const;

  std::string path_, temporary_path_;
  uint64_t rows_left_, cols_;
  int fd_ = -1;
};

}  // namespace adder::cli
