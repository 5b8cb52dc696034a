#include "converter/model_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <utility>

#include "runtime/model_file.h"

namespace adder {
namespace {

constexpr uint32_t kSections = 4;  // table, data, tokenizer, metadata, in this order in the file

Status SystemError(const std::string& path, const char* what) {
  return Error(Code::kIo, "%s: %s: %s", path.c_str(), what, std::strerror(errno));
}

template <typename T>
std::span<const uint8_t> BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace

Result<ModelWriter> ModelWriter::Create(const std::string& path, std::vector<TensorSpec> tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; });
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return Error(Code::kInvalidArgument, "%s: exists and is not a regular file", path.c_str());
  }
  ModelWriter writer;
  writer.path_ = path;
  writer.temporary_path_ = path + ".tmp" + std::to_string(::getpid());
  writer.table_offset_ =
      RoundUp(sizeof(FileHeader) + kSections * sizeof(SectionRecord), kAlignment);
  writer.data_offset_ =
      RoundUp(writer.table_offset_ + tensors.size() * sizeof(TensorRecord), kAlignment);
  writer.end_ = writer.data_offset_;
  writer.tensors_ = std::move(tensors);
  writer.fd_ =
      ::open(writer.temporary_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (writer.fd_ < 0) return SystemError(writer.temporary_path_, "cannot create");
  return writer;
}

ModelWriter::ModelWriter(ModelWriter&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_path_(std::move(other.temporary_path_)),
      fd_(std::exchange(other.fd_, -1)),
      tensors_(std::move(other.tensors_)),
      checksums_(std::move(other.checksums_)),
      table_offset_(other.table_offset_),
      data_offset_(other.data_offset_),
      end_(other.end_) {}

ModelWriter::~ModelWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_path_.c_str());
}

Status ModelWriter::Write(uint64_t offset, std::span<const uint8_t> data) {
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

Status ModelWriter::Append(std::span<const uint8_t> data) {
  if (checksums_.size() == tensors_.size()) {
    return Error(Code::kInternal, "%s: more data than tensors", path_.c_str());
  }
  const TensorSpec& spec = tensors_[checksums_.size()];
  ADDER_ASSIGN_OR_RETURN(const uint64_t expected, TensorBytes(spec.dtype, spec.shape));
  if (data.size() != expected) {
    return Error(Code::kInternal, "%s: %zu bytes, expected %" PRIu64, spec.name.c_str(),
                 data.size(), expected);
  }
  ADDER_RETURN_IF_ERROR(Write(end_, data));
  checksums_.push_back(Checksum(data));
  end_ = RoundUp(end_ + data.size(), kAlignment);
  return {};
}

Result<uint64_t> ModelWriter::Finish(std::span<const uint8_t> tokenizer,
                                     std::string_view metadata) {
  if (checksums_.size() != tensors_.size()) {
    return Error(Code::kInternal, "%s: %zu of %zu tensors written", path_.c_str(),
                 checksums_.size(), tensors_.size());
  }
  std::vector<TensorRecord> table(tensors_.size());
  uint64_t offset = data_offset_;
  for (size_t i = 0; i < table.size(); ++i) {
    const TensorSpec& spec = tensors_[i];
    TensorRecord& record = table[i];
    record = {};
    if (spec.name.size() > kMaxTensorName || spec.shape.empty() || spec.shape.size() > kMaxRank) {
      return Error(Code::kInternal, "tensor %s: name or shape %s cannot be stored",
                   spec.name.c_str(), ShapeText(spec.shape).c_str());
    }
    ADDER_ASSIGN_OR_RETURN(record.bytes, TensorBytes(spec.dtype, spec.shape));
    std::memcpy(record.name, spec.name.data(), spec.name.size());
    record.dtype = static_cast<uint32_t>(spec.dtype);
    record.rank = static_cast<uint32_t>(spec.shape.size());
    std::transform(spec.shape.begin(), spec.shape.end(), record.shape,
                   [](uint64_t dim) { return static_cast<uint32_t>(dim); });
    record.offset = offset;
    record.checksum = checksums_[i];
    offset = RoundUp(offset + record.bytes, kAlignment);
  }
  const std::span<const uint8_t> metadata_bytes(reinterpret_cast<const uint8_t*>(metadata.data()),
                                                metadata.size());
  std::vector<SectionRecord> sections;
  const auto add = [&](SectionKind kind, uint64_t at, uint64_t bytes, uint64_t checksum) {
    sections.push_back({static_cast<uint32_t>(kind), 0, at, bytes, checksum});
  };
  add(SectionKind::kTensorTable, table_offset_, BytesOf(table).size(), Checksum(BytesOf(table)));
  add(SectionKind::kTensorData, data_offset_, end_ - data_offset_, 0);
  const uint64_t tokenizer_offset = end_;
  add(SectionKind::kTokenizer, tokenizer_offset, tokenizer.size(), Checksum(tokenizer));
  const uint64_t metadata_offset = RoundUp(tokenizer_offset + tokenizer.size(), kAlignment);
  add(SectionKind::kMetadata, metadata_offset, metadata.size(), Checksum(metadata_bytes));

  FileHeader header = {};
  std::memcpy(header.magic, kFileMagic, sizeof(kFileMagic));
  header.version = kFileVersion;
  header.section_count = kSections;
  header.file_bytes = metadata_offset + metadata.size();
  header.checksum = HeaderChecksum(header, BytesOf(sections));

  ADDER_RETURN_IF_ERROR(Write(table_offset_, BytesOf(table)));
  ADDER_RETURN_IF_ERROR(Write(tokenizer_offset, tokenizer));
  ADDER_RETURN_IF_ERROR(Write(metadata_offset, metadata_bytes));
  ADDER_RETURN_IF_ERROR(Write(sizeof(header), BytesOf(sections)));
  ADDER_RETURN_IF_ERROR(Write(0, {reinterpret_cast<const uint8_t*>(&header), sizeof(header)}));
  if (::fsync(fd_) != 0) return SystemError(temporary_path_, "cannot flush");
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0)
    return SystemError(path_, "cannot rename to it");
  ::close(std::exchange(fd_, -1));
  return header.file_bytes;
}

}  // namespace adder
