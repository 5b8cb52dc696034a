#include "runtime/model_file.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstring>

namespace adder {
namespace {

static_assert(std::endian::native == std::endian::little, "model files are read in place");

Status Corrupt(const std::string& what) {
  return Status(Code::kCorruptFile, "model file: " + what);
}

bool AllZero(std::span<const uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b == 0; });
}

bool InRange(uint64_t offset, uint64_t bytes, uint64_t size) {
  return bytes <= size && offset <= size - bytes;
}

struct Sections {
  std::span<const uint8_t> metadata, table, data, tokenizer;
  uint64_t data_offset = 0;
};

Result<FileHeader> ReadHeader(std::span<const uint8_t> bytes) {
  FileHeader header;
  if (bytes.size() < sizeof(header)) {
    return Error(Code::kCorruptFile, "model file: %zu bytes, the header alone has %zu",
                 bytes.size(), sizeof(header));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, kFileMagic, sizeof(kFileMagic)) != 0) {
    return Corrupt("not an Adder model (wrong first bytes); adder convert makes one");
  }
  if (header.version != kFileVersion) {
    return Error(Code::kUnsupported,
                 "model file: format version %" PRIu32 ", this build reads %" PRIu32,
                 header.version, kFileVersion);
  }
  if (header.file_bytes != bytes.size()) {
    return Error(Code::kCorruptFile,
                 "model file: %zu bytes, the header says %" PRIu64 " (truncated?)", bytes.size(),
                 header.file_bytes);
  }
  if (header.section_count == 0 || header.section_count > kMaxSections) {
    return Error(Code::kCorruptFile, "model file: %" PRIu32 " sections, expected 1 to %" PRIu32,
                 header.section_count, kMaxSections);
  }
  return header;
}

Result<Sections> ReadSections(std::span<const uint8_t> bytes, const FileHeader& header) {
  const size_t records_bytes = header.section_count * sizeof(SectionRecord);
  if (!InRange(sizeof(header), records_bytes, bytes.size())) {
    return Corrupt("the section records end behind the file");
  }
  const auto records = bytes.subspan(sizeof(header), records_bytes);
  if (HeaderChecksum(header, records) != header.checksum)
    return Corrupt("checksum of the header differs");

  Sections sections;
  uint64_t end_of_last = sizeof(header) + records_bytes;
  for (uint32_t i = 0; i < header.section_count; ++i) {
    SectionRecord record;
    std::memcpy(&record, records.data() + i * sizeof(record), sizeof(record));
    if (record.offset % kAlignment != 0 || record.offset < end_of_last ||
        !InRange(record.offset, record.bytes, bytes.size())) {
      return Error(
          Code::kCorruptFile,
          "model file: section %" PRIu32 " at %" PRIu64 " + %" PRIu64
          " bytes is misaligned, overlaps the one before, or ends behind the file (%zu bytes)",
          i, record.offset, record.bytes, bytes.size());
    }
    end_of_last = record.offset + record.bytes;
    const auto section = bytes.subspan(record.offset, record.bytes);
    std::span<const uint8_t>* slot = nullptr;
    switch (static_cast<SectionKind>(record.kind)) {
      case SectionKind::kMetadata:
        slot = &sections.metadata;
        break;
      case SectionKind::kTensorTable:
        slot = &sections.table;
        break;
      case SectionKind::kTensorData:
        slot = &sections.data;
        break;
      case SectionKind::kTokenizer:
        slot = &sections.tokenizer;
        break;
    }
    if (slot == nullptr) continue;  // a later version's optional section
    if (slot->data() != nullptr) {
      return Error(Code::kCorruptFile, "model file: two sections of kind %" PRIu32, record.kind);
    }
    *slot = section;
    if (slot == &sections.data) {
      sections.data_offset = record.offset;
    } else if (Checksum(section) != record.checksum) {
      return Error(Code::kCorruptFile, "model file: checksum of section kind %" PRIu32 " differs",
                   record.kind);
    }
  }
  if (sections.metadata.empty()) return Corrupt("no metadata section");
  if (sections.table.empty()) return Corrupt("no tensor table section");
  if (sections.data.empty()) return Corrupt("no tensor data section");
  return sections;
}

Result<Tensor> ReadTensor(const uint8_t* bytes, const uint8_t* record_bytes,
                          const Sections& sections) {
  TensorRecord record;
  std::memcpy(&record, record_bytes, sizeof(record));
  const size_t length = ::strnlen(record.name, sizeof(record.name));
  if (length == 0 || length > kMaxTensorName)
    return Corrupt("a tensor name is empty or has no end");
  Tensor tensor;
  tensor.name = {reinterpret_cast<const char*>(record_bytes) + offsetof(TensorRecord, name),
                 length};
  const auto fail = [&](const std::string& what) {
    return Corrupt(std::string(tensor.name) + ": " + what);
  };
  if (!AllZero({record_bytes + length, sizeof(record.name) - length}) ||
      !AllZero(record.reserved)) {
    return fail("bytes that must be zero are not");
  }
  if (record.rank == 0 || record.rank > kMaxRank) {
    return fail(std::to_string(record.rank) + " dimensions, expected 1 to " +
                std::to_string(kMaxRank));
  }
  for (size_t i = 0; i < kMaxRank; ++i) {
    if (i < record.rank) {
      tensor.shape.push_back(record.shape[i]);
    } else if (record.shape[i] != 0) {
      return fail("a dimension beyond its rank");
    }
  }
  tensor.dtype = static_cast<DType>(record.dtype);
  const Result<uint64_t> expected = TensorBytes(tensor.dtype, tensor.shape);
  if (!expected.ok()) return Annotate(expected.status(), "model file: " + std::string(tensor.name));
  if (record.bytes != *expected) {
    return fail(std::to_string(record.bytes) + " bytes, expected " + std::to_string(*expected));
  }
  if (record.offset % kAlignment != 0 || record.offset < sections.data_offset ||
      !InRange(record.offset - sections.data_offset, record.bytes, sections.data.size())) {
    return fail("offset " + std::to_string(record.offset) +
                " is misaligned or outside the data section");
  }
  tensor.data = {bytes + record.offset, record.bytes};
  tensor.checksum = record.checksum;
  return tensor;
}

}  // namespace

uint64_t Checksum(std::span<const uint8_t> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

uint64_t HeaderChecksum(FileHeader header, std::span<const uint8_t> section_records) {
  uint8_t joined[sizeof(header) + kMaxSections * sizeof(SectionRecord)];
  header.checksum = 0;
  std::memcpy(joined, &header, sizeof(header));
  std::memcpy(joined + sizeof(header), section_records.data(), section_records.size());
  return Checksum({joined, sizeof(header) + section_records.size()});
}

std::string ShapeText(std::span<const uint64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

Result<uint64_t> TensorBytes(DType dtype, std::span<const uint64_t> shape) {
  uint64_t elements = 1;
  for (const uint64_t dim : shape) {
    if (dim == 0 || dim > kMaxDim) {
      return Error(Code::kCorruptFile, "dimension %" PRIu64 ", expected 1 to %" PRIu64, dim,
                   kMaxDim);
    }
    if (elements > (uint64_t{1} << 56) / dim) {
      return Error(Code::kCorruptFile, "shape %s has too many elements", ShapeText(shape).c_str());
    }
    elements *= dim;
  }
  if (dtype == DType::kF32) return elements * sizeof(float);
  if (!IsMatrix(dtype)) {
    return Error(Code::kUnsupported, "tensor type %" PRIu32 " is not known to this build",
                 static_cast<uint32_t>(dtype));
  }
  if (shape.size() != 2) {
    return Error(Code::kCorruptFile, "%s needs 2 dimensions, has %zu", DTypeName(dtype),
                 shape.size());
  }
  return MatrixBytes(dtype, shape[0], shape[1]);
}

Result<ModelFile> ModelFile::Parse(std::span<const uint8_t> bytes) {
  if (reinterpret_cast<uintptr_t>(bytes.data()) % kAlignment != 0) {
    return Error(Code::kInvalidArgument, "model bytes must be aligned to %zu", kAlignment);
  }
  ADDER_ASSIGN_OR_RETURN(const FileHeader header, ReadHeader(bytes));
  ADDER_ASSIGN_OR_RETURN(const Sections sections, ReadSections(bytes, header));
  if (sections.table.size() % sizeof(TensorRecord) != 0) {
    return Error(Code::kCorruptFile, "model file: tensor table of %zu bytes is no multiple of %zu",
                 sections.table.size(), sizeof(TensorRecord));
  }
  ModelFile file;
  file.file_bytes_ = bytes.size();
  file.identity_ = header.checksum;
  file.metadata_ = {reinterpret_cast<const char*>(sections.metadata.data()),
                    sections.metadata.size()};
  file.tokenizer_ = sections.tokenizer;
  file.tensors_.reserve(sections.table.size() / sizeof(TensorRecord));
  for (size_t at = 0; at < sections.table.size(); at += sizeof(TensorRecord)) {
    ADDER_ASSIGN_OR_RETURN(Tensor tensor,
                           ReadTensor(bytes.data(), sections.table.data() + at, sections));
    if (!file.tensors_.empty() && !(file.tensors_.back().name < tensor.name)) {
      return Corrupt("tensors " + std::string(file.tensors_.back().name) + " and " +
                     std::string(tensor.name) + " are out of order or equal");
    }
    file.tensors_.push_back(std::move(tensor));
  }
  return file;
}

const Tensor* ModelFile::Find(std::string_view name) const {
  const auto it = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const Tensor& t, std::string_view n) { return t.name < n; });
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

Status ModelFile::VerifyData() const {
  for (const Tensor& tensor : tensors_) {
    if (Checksum(tensor.data) != tensor.checksum) {
      return Corrupt(std::string(tensor.name) + ": checksum differs, the file is damaged");
    }
  }
  return {};
}

}  // namespace adder
