#include "cli/npy_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>

#include "cli/output.h"

namespace adder::cli {
namespace {

// Magic, version, length of the dictionary; the dictionary ends with a line break so that the whole
// is a multiple of 64 bytes.
std::string Header(uint64_t rows, uint64_t cols) {
  std::string dictionary =
      Format("{'descr': '<f4', 'fortran_order': False, 'shape': (%" PRIu64 ", %" PRIu64 "), }",
             rows, cols);
  constexpr size_t kPrefix = 10;
  dictionary.append(63 - (kPrefix + dictionary.size()) % 64, ' ').push_back('\n');
  std::string header("\x93NUMPY\x01\x00", 8);
  header.push_back(static_cast<char>(dictionary.size() & 0xff));
  header.push_back(static_cast<char>(dictionary.size() >> 8));
  return header + dictionary;
}

}  // namespace

NpyWriter::NpyWriter(std::string path, uint64_t rows, uint64_t cols)
    : path_(std::move(path)),
      temporary_path_(path_ + ".tmp" + std::to_string(::getpid())),
      rows_left_(rows),
      cols_(cols) {}

NpyWriter::NpyWriter(NpyWriter&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_path_(std::move(other.temporary_path_)),
      rows_left_(other.rows_left_),
      cols_(other.cols_),
      fd_(std::exchange(other.fd_, -1)) {}

NpyWriter::~NpyWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_path_.c_str());
}

Status NpyWriter::Fail(const std::string& path, const char* what) const {
  return Error(Code::kIo, "%s: %s: %s", path.c_str(), what, std::strerror(errno));
}

Result<NpyWriter> NpyWriter::Create(const std::string& path, uint64_t rows, uint64_t cols) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return Error(Code::kInvalidArgument, "%s: exists and is not a regular file", path.c_str());
  }
  NpyWriter writer(path, rows, cols);
  writer.fd_ =
      ::open(writer.temporary_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (writer.fd_ < 0) return writer.Fail(writer.temporary_path_, "cannot create");
  const Status written = WriteAll(writer.fd_, Header(rows, cols));
  if (!written.ok()) return Annotate(written, writer.temporary_path_);
  return writer;
}

Status NpyWriter::Append(std::span<const float> row) {
  if (rows_left_ == 0 || row.size() != cols_) {
    return Error(Code::kInternal, "%s: row of %zu values, expected %" PRIu64 " more of %" PRIu64,
                 path_.c_str(), row.size(), rows_left_, cols_);
  }
  --rows_left_;
  // Adder runs on little-endian machines only; '<f4' is what lies in memory.
  const std::string_view bytes(reinterpret_cast<const char*>(row.data()), row.size_bytes());
  return Annotate(WriteAll(fd_, bytes), temporary_path_);
}

Status NpyWriter::Finish() {
  if (rows_left_ != 0) {
    return Error(Code::kInternal, "%s: %" PRIu64 " rows are missing", path_.c_str(), rows_left_);
  }
  if (::fsync(fd_) != 0) return Fail(temporary_path_, "cannot flush");
  if (std::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    return Fail(path_, "cannot rename to it");
  }
  ::close(std::exchange(fd_, -1));
  return {};
}

}  // namespace adder::cli
