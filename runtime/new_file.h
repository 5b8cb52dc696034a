// A file that gets its name when it is complete and on disk. Whatever goes wrong or is killed
// before leaves an older file of that name as it was.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/status.h"

namespace adder {

class NewFile {
 public:
  // Who may read and write it, as far as the umask lets them.
  enum class Access { kEveryone = 0666, kOwner = 0600 };

  // A temporary file beside `path`. What is there and no regular file is not replaced.
  static Result<NewFile> Create(const std::string& path, Access access);
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile();  // removes the temporary file unless Finish succeeded

  Status WriteAt(uint64_t offset, std::span<const uint8_t> data);
  Status Append(std::span<const uint8_t> data);  // behind what was appended before
  Status Finish();

  const std::string& path() const { return path_; }

 private:
  explicit NewFile(std::string path) : path_(std::move(path)) {}

  std::string path_, temporary_path_;
  int fd_ = -1;
  uint64_t end_ = 0;
};

}  // namespace adder
