#include "converter/model_writer.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <utility>

#include "runtime/model_file.h"

namespace adder {
namespace {

constexpr uint32_t kSections = 4;  // table, data, tokenizer, metadata, in this order in the file

template <typename T>
std::span<const uint8_t> BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace

Result<ModelWriter> ModelWriter::Create(const std::string& path, std::vector<TensorSpec> tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; });
  ADDER_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path, NewFile::Access::kEveryone));
  ModelWriter writer(std::move(file));
  writer.table_offset_ =
      RoundUp(sizeof(FileHeader) + kSections * sizeof(SectionRecord), kAlignment);
  writer.data_offset_ =
      RoundUp(writer.table_offset_ + tensors.size() * sizeof(TensorRecord), kAlignment);
  writer.end_ = writer.data_offset_;
  writer.tensors_ = std::move(tensors);
  return writer;
}

Status ModelWriter::Append(std::span<const uint8_t> data) {
  if (checksums_.size() == tensors_.size()) {
    return Error(Code::kInternal, "%s: more data than tensors", file_.path().c_str());
  }
  const TensorSpec& spec = tensors_[checksums_.size()];
  ADDER_ASSIGN_OR_RETURN(const uint64_t expected, TensorBytes(spec.dtype, spec.shape));
  if (data.size() != expected) {
    return Error(Code::kInternal, "%s: %zu bytes, expected %" PRIu64, spec.name.c_str(),
                 data.size(), expected);
  }
  ADDER_RETURN_IF_ERROR(file_.WriteAt(end_, data));
  checksums_.push_back(Checksum(data));
  end_ = RoundUp(end_ + data.size(), kAlignment);
  return {};
}

Result<uint64_t> ModelWriter::Finish(std::span<const uint8_t> tokenizer,
                                     std::string_view metadata) {
  if (checksums_.size() != tensors_.size()) {
    return Error(Code::kInternal, "%s: %zu of %zu tensors written", file_.path().c_str(),
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

  ADDER_RETURN_IF_ERROR(file_.WriteAt(table_offset_, BytesOf(table)));
  ADDER_RETURN_IF_ERROR(file_.WriteAt(tokenizer_offset, tokenizer));
  ADDER_RETURN_IF_ERROR(file_.WriteAt(metadata_offset, metadata_bytes));
  ADDER_RETURN_IF_ERROR(file_.WriteAt(sizeof(header), BytesOf(sections)));
  ADDER_RETURN_IF_ERROR(
      file_.WriteAt(0, {reinterpret_cast<const uint8_t*>(&header), sizeof(header)}));
  ADDER_RETURN_IF_ERROR(file_.Finish());
  return header.file_bytes;
}

}  // namespace adder
