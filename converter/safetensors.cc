#include "converter/safetensors.h"

#include <algorithm>
#include <cinttypes>
#include <string_view>

#include "converter/text.h"

namespace adder {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;
constexpr int64_t kMaxInteger = int64_t{1} << 53;
constexpr size_t kMaxRank = 8;

struct Range {
  uint64_t begin, end;
  const std::string* tensor;
};

Result<SourceType> ParseType(const std::string& where, const std::string& dtype) {
  for (const SourceType type : {SourceType::kF32, SourceType::kF16, SourceType::kBF16,
                                SourceType::kF64, SourceType::kI32, SourceType::kI64}) {
    if (dtype == SourceTypeName(type)) return type;
  }
  static constexpr std::string_view kOther[] = {
      "BOOL", "U8",      "I8",      "U16",     "I16",     "U32",     "U64",         "C64",
      "F4",   "F6_E2M3", "F6_E3M2", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"};
  if (std::find(std::begin(kOther), std::end(kOther), dtype) != std::end(kOther)) {
    return Error(Code::kUnsupported,
                 "%s: stored as %s; weights are read from F32, F16, BF16, F64, I32 and I64",
                 where.c_str(), dtype.c_str());
  }
  return Error(Code::kCorruptFile, "%s: unknown dtype \"%s\"", where.c_str(), Shown(dtype).c_str());
}

Result<uint64_t> ParseInteger(const std::string& where, const char* field, const Json& value) {
  if (value.type() != Json::Type::kInt || value.AsInt() < 0 || value.AsInt() > kMaxInteger) {
    return Error(Code::kCorruptFile, "%s: %s holds %s, expected an integer from 0 to 2^53",
                 where.c_str(), field, value.Describe().c_str());
  }
  return static_cast<uint64_t>(value.AsInt());
}

// The entry of one tensor: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}.
Result<SourceTensor> ParseTensor(const std::string& where, const Json& entry,
                                 std::span<const uint8_t> data, Range* range) {
  if (!entry.is_object()) {
    return Error(Code::kCorruptFile, "%s: is %s, expected an object", where.c_str(),
                 entry.Describe().c_str());
  }
  const Json* dtype = entry.Find("dtype");
  const Json* shape = entry.Find("shape");
  const Json* offsets = entry.Find("data_offsets");
  for (const auto& [value, field] :
       {std::pair{dtype, "dtype"}, std::pair{shape, "shape"}, std::pair{offsets, "data_offsets"}}) {
    if (value == nullptr) return Error(Code::kCorruptFile, "%s: no %s", where.c_str(), field);
  }
  for (const auto& [key, value] : entry.members()) {
    if (&value != dtype && &value != shape && &value != offsets) {
      return Error(Code::kCorruptFile, "%s: unexpected field \"%s\"", where.c_str(),
                   Shown(key).c_str());
    }
  }
  if (!dtype->is_string()) {
    return Error(Code::kCorruptFile, "%s: dtype is %s, expected a string", where.c_str(),
                 dtype->Describe().c_str());
  }
  if (!shape->is_array() || shape->items().size() > kMaxRank) {
    return Error(Code::kCorruptFile, "%s: shape is %s, expected an array of at most %zu",
                 where.c_str(), shape->Describe().c_str(), kMaxRank);
  }
  if (!offsets->is_array() || offsets->items().size() != 2) {
    return Error(Code::kCorruptFile, "%s: data_offsets is %s, expected an array of 2",
                 where.c_str(), offsets->Describe().c_str());
  }

  SourceTensor tensor;
  ADDER_ASSIGN_OR_RETURN(tensor.type, ParseType(where, dtype->AsString()));
  uint64_t size = SourceTypeBytes(tensor.type);
  for (const Json& item : shape->items()) {
    ADDER_ASSIGN_OR_RETURN(const uint64_t dimension, ParseInteger(where, "shape", item));
    if (__builtin_mul_overflow(size, dimension, &size)) {
      return Error(Code::kCorruptFile, "%s: the shape's product exceeds 64 bits", where.c_str());
    }
    tensor.shape.push_back(dimension);
  }
  ADDER_ASSIGN_OR_RETURN(range->begin, ParseInteger(where, "data_offsets", offsets->items()[0]));
  ADDER_ASSIGN_OR_RETURN(range->end, ParseInteger(where, "data_offsets", offsets->items()[1]));
  if (range->begin > range->end) {
    return Error(Code::kCorruptFile, "%s: begins at %" PRIu64 ", after its end %" PRIu64,
                 where.c_str(), range->begin, range->end);
  }
  if (range->end > data.size()) {
    return Error(Code::kCorruptFile, "%s: ends at byte %" PRIu64 " of %zu bytes of data",
                 where.c_str(), range->end, data.size());
  }
  if (range->end - range->begin != size) {
    return Error(Code::kCorruptFile, "%s: %" PRIu64 " bytes, its shape and dtype need %" PRIu64,
                 where.c_str(), range->end - range->begin, size);
  }
  tensor.data = data.data() + range->begin;
  return tensor;
}

Status CheckMetadata(const std::string& name, const Json& metadata) {
  if (!metadata.is_object()) {
    return Error(Code::kCorruptFile, "%s: __metadata__ is %s, expected an object", name.c_str(),
                 metadata.Describe().c_str());
  }
  for (const auto& [key, value] : metadata.members()) {
    if (!value.is_string()) {
      return Error(Code::kCorruptFile, "%s: __metadata__ %s is %s, expected a string", name.c_str(),
                   Shown(key).c_str(), value.Describe().c_str());
    }
  }
  return {};
}

// The ranges must tile the data without overlap or hole.
Status CheckTiling(const std::string& name, std::vector<Range> ranges, uint64_t data_size,
                   std::vector<std::string>* warnings) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  uint64_t covered = 0;
  const std::string* previous = nullptr;
  for (const Range& range : ranges) {
    if (range.begin < covered) {
      return Error(Code::kCorruptFile,
                   "%s: %s begins at byte %" PRIu64 ", inside %s which ends at %" PRIu64,
                   name.c_str(), Shown(*range.tensor).c_str(), range.begin,
                   Shown(*previous).c_str(), covered);
    }
    if (range.begin > covered) {
      return Error(Code::kCorruptFile,
                   "%s: a hole before %s: bytes %" PRIu64 " to %" PRIu64 " belong to no tensor",
                   name.c_str(), Shown(*range.tensor).c_str(), covered, range.begin);
    }
    covered = range.end;
    previous = range.tensor;
  }
  if (covered < data_size) {
    warnings->push_back(name + ": " + std::to_string(data_size - covered) +
                        " bytes after the last tensor are ignored");
  }
  return {};
}

}  // namespace

Result<TensorMap> ParseSafetensors(std::span<const uint8_t> bytes, const std::string& name,
                                   std::vector<std::string>* warnings) {
  if (bytes.size() < 8) {
    return Error(Code::kCorruptFile, "%s: %zu bytes, a safetensors file has at least 8",
                 name.c_str(), bytes.size());
  }
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= uint64_t{bytes[i]} << (8 * i);
  if (length == 0 || length > kMaxHeader) {
    return Error(Code::kCorruptFile,
                 "%s: a header of %" PRIu64 " bytes, expected 1 to %" PRIu64
                 " (is it a safetensors file?)",
                 name.c_str(), length, kMaxHeader);
  }
  if (length > bytes.size() - 8) {
    return Error(Code::kCorruptFile, "%s: a header of %" PRIu64 " bytes in a file of %zu bytes",
                 name.c_str(), length, bytes.size());
  }
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + 8,
                                static_cast<size_t>(length));
  if (header[0] != '{') {
    return Error(Code::kCorruptFile, "%s: the header begins with byte 0x%02x, expected {",
                 name.c_str(), bytes[8]);
  }
  ADDER_ASSIGN_OR_RETURN(const Json root, Json::Parse(header, name + " header"));
  if (!root.is_object()) {  // {"__float__": "NaN"} reads as a number
    return Error(Code::kCorruptFile, "%s: the header is %s, expected an object", name.c_str(),
                 root.Describe().c_str());
  }
  const std::span<const uint8_t> data = bytes.subspan(8 + static_cast<size_t>(length));
  TensorMap tensors;
  std::vector<Range> ranges;
  for (const auto& [key, entry] : root.members()) {
    if (key == "__metadata__") {
      ADDER_RETURN_IF_ERROR(CheckMetadata(name, entry));
      continue;
    }
    Range range{0, 0, &key};
    ADDER_ASSIGN_OR_RETURN(SourceTensor tensor,
                           ParseTensor(name + ": " + Shown(key), entry, data, &range));
    tensor.file = name;
    ranges.push_back(range);
    tensors.emplace(key, std::move(tensor));
  }
  ADDER_RETURN_IF_ERROR(CheckTiling(name, std::move(ranges), data.size(), warnings));
  return tensors;
}

}  // namespace adder
