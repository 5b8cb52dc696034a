// The flat model file, read in place: header, sections, tensor records. FORMAT.md is normative.
//
// Parse validates everything once; afterwards no accessor can fail or read outside the bytes.
// Mapped files, memory buffers and the fuzzer share it. The file's checksums over header, metadata,
// tokenizer and tensor records are always checked (they are small); those over tensor data, which
// would read the whole file, only by VerifyData.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quant/qtypes.h"
#include "runtime/status.h"

namespace adder {

inline constexpr uint8_t kFileMagic[8] = {0x89, 'A', 'D', 'D', 'E', 'R', '\r', '\n'};
inline constexpr uint32_t kFileVersion = 1;
inline constexpr size_t kMaxRank = 4;
inline constexpr size_t kMaxTensorName = 63;
inline constexpr uint32_t kMaxSections = 16;

enum class SectionKind : uint32_t {
  kMetadata = 1,
  kTensorTable = 2,
  kTensorData = 3,
  kTokenizer = 4
};

// On-disk structures; all integers little-endian.
struct FileHeader {
  uint8_t magic[8];
  uint32_t version;
  uint32_t section_count;
  uint64_t file_bytes;
  uint64_t checksum;  // XXH3-64 of the header with this field zero, then the section records
  uint8_t reserved[32];
};
static_assert(sizeof(FileHeader) == 64);

struct SectionRecord {
  uint32_t kind;
  uint32_t reserved;
  uint64_t offset;
  uint64_t bytes;
  uint64_t checksum;  // XXH3-64 of the section; 0 for tensor data, whose tensors have their own
};
static_assert(sizeof(SectionRecord) == 32);

struct TensorRecord {
  char name[kMaxTensorName + 1];  // padded with NUL
  uint32_t dtype;
  uint32_t rank;
  uint32_t shape[kMaxRank];  // unused dimensions are 0
  uint64_t offset;           // from the start of the file
  uint64_t bytes;
  uint64_t checksum;  // XXH3-64 of the data
  uint8_t reserved[16];
};
static_assert(sizeof(TensorRecord) == 128);

// A tensor of the file: a view that lives as long as the bytes given to Parse.
struct Tensor {
  std::string_view name;
  DType dtype;
  std::vector<uint64_t> shape;
  std::span<const uint8_t> data;
  uint64_t checksum;
};

// XXH3-64 with seed 0 (https://github.com/Cyan4973/xxHash).
uint64_t Checksum(std::span<const uint8_t> bytes);

// Of the header, its checksum field taken as zero, and the section records behind it.
uint64_t HeaderChecksum(FileHeader header, std::span<const uint8_t> section_records);

// Bytes of a tensor of this type and shape, or an error when they are no valid combination.
Result<uint64_t> TensorBytes(DType dtype, std::span<const uint64_t> shape);

// "[64, 128]", for messages.
std::string ShapeText(std::span<const uint64_t> shape);

class ModelFile {
 public:
  // `bytes` must stay valid and be aligned to 64 (kInvalidArgument otherwise).
  static Result<ModelFile> Parse(std::span<const uint8_t> bytes);

  std::string_view metadata() const { return metadata_; }            // JSON, parsed by ModelConfig
  std::span<const uint8_t> tokenizer() const { return tokenizer_; }  // empty: none
  const std::vector<Tensor>& tensors() const { return tensors_; }    // sorted by name
  const Tensor* Find(std::string_view name) const;
  uint64_t bytes() const { return file_bytes_; }
  // The checksum of the header. It covers those of all sections, and through the tensor table those
  // of all tensors: files that differ anywhere have different ones.
  uint64_t identity() const { return identity_; }

  // Reads all tensor data and compares checksums; names the first tensor that differs.
  Status VerifyData() const;

 private:
  ModelFile() = default;
  std::string_view metadata_;
  std::span<const uint8_t> tokenizer_;
  std::vector<Tensor> tensors_;
  uint64_t file_bytes_ = 0;
  uint64_t identity_ = 0;
};

}  // namespace adder
