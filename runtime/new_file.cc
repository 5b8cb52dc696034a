#include "runtime/new_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace adder {
namespace {

constexpr int kMaxNames = 1000;  // that killed programs have left behind

Status SystemError(const std::string& path, const char* what) {
  return Error(Code::kIo, "%s: %s: %s", path.c_str(), what, std::strerror(errno));
}

// Makes the new name last beyond a loss of power, where the file system can.
void FlushFolder(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "."
                             : slash == 0               ? "/"
                                                        : path.substr(0, slash);
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

}  // namespace

Result<NewFile> NewFile::Create(const std::string& path, Access access) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return Error(Code::kInvalidArgument, "%s: exists and is not a regular file", path.c_str());
  }
  NewFile file(path);
  const std::string stem = path + ".tmp" + std::to_string(::getpid());
  for (int i = 0; i < kMaxNames && file.fd_ < 0; ++i) {
    file.temporary_path_ = i == 0 ? stem : stem + "-" + std::to_string(i);
    file.fd_ = ::open(file.temporary_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                      static_cast<mode_t>(access));
    if (file.fd_ < 0 && errno != EEXIST) break;
  }
  if (file.fd_ < 0) return SystemError(file.temporary_path_, "cannot create");
  return file;
}

NewFile::NewFile(NewFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_path_(std::move(other.temporary_path_)),
      fd_(std::exchange(other.fd_, -1)),
      end_(other.end_) {}

NewFile::~NewFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_path_.c_str());
}

Status NewFile::WriteAt(uint64_t offset, std::span<const uint8_t> data) {
  while (!data.empty()) {
    const ssize_t written = ::pwrite(fd_, data.data(), data.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError(temporary_path_, "cannot write");
    if (written == 0) return Error(Code::kIo, "%s: nothing was written", temporary_path_.c_str());
    offset += static_cast<uint64_t>(written);
    data = data.subspan(static_cast<size_t>(written));
  }
  return {};
}

Status NewFile::Append(std::span<const uint8_t> data) {
  ADDER_RETURN_IF_ERROR(WriteAt(end_, data));
  end_ += data.size();
  return {};
}

Status NewFile::Finish() {
  if (::fsync(fd_) != 0) return SystemError(temporary_path_, "cannot flush");
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    return SystemError(path_, "cannot rename to it");
  }
  ::close(std::exchange(fd_, -1));
  FlushFolder(path_);
  return {};
}

}  // namespace adder
