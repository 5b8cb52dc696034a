#include "runtime/session_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "runtime/mapped_file.h"
#include "runtime/session_state.h"

namespace adder {
namespace {

Status SystemError(const std::string& path, const char* what) {
  return Error(Code::kIo, "%s: %s: %s", path.c_str(), what, std::strerror(errno));
}

// Of a temporary file: closes and removes it unless it got its name.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& path)
      : path_(path + ".tmpXXXXXX"), fd_(::mkstemp(path_.data())) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    if (!named_) ::unlink(path_.c_str());
  }

  Status Write(std::span<const uint8_t> data) {
    if (fd_ < 0) return SystemError(path_, "cannot create");
    ::fcntl(fd_, F_SETFD, FD_CLOEXEC);
    while (!data.empty()) {
      const ssize_t written = ::write(fd_, data.data(), data.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return SystemError(path_, "cannot write");
      if (written == 0) return Error(Code::kIo, "%s: nothing was written", path_.c_str());
      data = data.subspan(static_cast<size_t>(written));
    }
    return ::fsync(fd_) == 0 ? Status() : SystemError(path_, "cannot flush");
  }

  Status Rename(const std::string& path) {
    if (::rename(path_.c_str(), path.c_str()) != 0) return SystemError(path, "cannot rename to it");
    named_ = true;
    return {};
  }

 private:
  std::string path_;
  int fd_;
  bool named_ = false;
};

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

Status SaveStateFile(const Session& session, const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return Error(Code::kInvalidArgument, "%s: exists and is not a regular file", path.c_str());
  }
  const size_t bytes = StateBlob::Bytes(session);
  const std::unique_ptr<uint8_t, decltype(&std::free)> memory(
      static_cast<uint8_t*>(std::malloc(bytes)), &std::free);
  if (memory == nullptr) {
    return Error(Code::kOutOfMemory, "%s: the state needs %zu bytes", path.c_str(), bytes);
  }
  const std::span<uint8_t> blob(memory.get(), bytes);
  ADDER_RETURN_IF_ERROR(StateBlob::Save(session, blob));
  TemporaryFile file(path);
  ADDER_RETURN_IF_ERROR(file.Write(blob));
  ADDER_RETURN_IF_ERROR(file.Rename(path));
  FlushFolder(path);
  return {};
}

Status LoadStateFile(Session& session, const std::string& path) {
  ADDER_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return Annotate(StateBlob::Load(session, file.bytes()), path);
}

}  // namespace adder
