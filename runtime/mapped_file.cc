#include "runtime/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace adder {

Result<MappedFile> MappedFile::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const Code code = errno == ENOENT ? Code::kNotFound : Code::kIo;
    return Error(code, "%s: cannot open: %s", path.c_str(), std::strerror(errno));
  }
  struct stat info {};
  Status status;
  MappedFile file;
  if (::fstat(fd, &info) != 0) {
    status = Error(Code::kIo, "%s: cannot stat: %s", path.c_str(), std::strerror(errno));
  } else if (!S_ISREG(info.st_mode)) {
    status = Error(Code::kInvalidArgument, "%s: not a regular file", path.c_str());
  } else if (info.st_size == 0) {
    status = Error(Code::kCorruptFile, "%s: the file is empty", path.c_str());
  } else {
    const size_t size = static_cast<size_t>(info.st_size);
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
      status = Error(Code::kIo, "%s: cannot map: %s", path.c_str(), std::strerror(errno));
    } else {
      file.data_ = data;
      file.size_ = size;
    }
  }
  ::close(fd);  // a mapping outlives its descriptor
  if (!status.ok()) return status;
  return file;
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace adder
