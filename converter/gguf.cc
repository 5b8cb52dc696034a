#include "converter/gguf.h"

#include <algorithm>
#include <cinttypes>
#include <iterator>

#include "converter/little_endian.h"
#include "converter/text.h"

namespace adder {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint64_t kMaxKey = 65535;      // bytes, as the format says
constexpr uint64_t kMaxTensorName = 64;  // bytes, as the format says
constexpr uint32_t kMaxRank = 4;
constexpr int64_t kDefaultAlignment = 32, kMaxAlignment = 65536;

// Bytes of a value by its type; 0: as long as it says itself.
constexpr uint32_t kValueBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

// Number formats of tensors by their number in the file. Those that are not read keep their name.
struct TensorType {
  uint32_t number;
  const char* name;
  std::optional<SourceType> type;
};
constexpr TensorType kTensorTypes[] = {{0, "F32", SourceType::kF32},
                                       {1, "F16", SourceType::kF16},
                                       {2, "Q4_0", SourceType::kQ4_0},
                                       {3, "Q4_1", SourceType::kQ4_1},
                                       {6, "Q5_0", SourceType::kQ5_0},
                                       {7, "Q5_1", SourceType::kQ5_1},
                                       {8, "Q8_0", SourceType::kQ8_0},
                                       {9, "Q8_1", {}},
                                       {10, "Q2_K", {}},
                                       {11, "Q3_K", {}},
                                       {12, "Q4_K", SourceType::kQ4_K},
                                       {13, "Q5_K", SourceType::kQ5_K},
                                       {14, "Q6_K", SourceType::kQ6_K},
                                       {15, "Q8_K", {}},
                                       {16, "IQ2_XXS", {}},
                                       {17, "IQ2_XS", {}},
                                       {18, "IQ3_XXS", {}},
                                       {19, "IQ1_S", {}},
                                       {20, "IQ4_NL", {}},
                                       {21, "IQ3_S", {}},
                                       {22, "IQ2_S", {}},
                                       {23, "IQ4_XS", {}},
                                       {24, "I8", {}},
                                       {25, "I16", {}},
                                       {26, "I32", SourceType::kI32},
                                       {27, "I64", SourceType::kI64},
                                       {28, "F64", SourceType::kF64},
                                       {29, "IQ1_M", {}},
                                       {30, "BF16", SourceType::kBF16},
                                       {34, "TQ1_0", {}},
                                       {35, "TQ2_0", {}},
                                       {39, "MXFP4", {}}};

struct Range {
  uint64_t begin, end;
  const std::string* tensor;
};

class Parser {
 public:
  Parser(std::span<const uint8_t> bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  Result<Gguf> Run() {
    ADDER_RETURN_IF_ERROR(ReadHeader());
    std::map<std::string, GgufValue, std::less<>> values;
    for (uint64_t i = 0; i < n_values_; ++i) ADDER_RETURN_IF_ERROR(ReadEntry(&values));
    Gguf out;
    out.metadata = GgufMetadata(name_, std::move(values));
    ADDER_RETURN_IF_ERROR(ReadAlignment(out.metadata));
    for (uint64_t i = 0; i < n_tensors_; ++i) ADDER_RETURN_IF_ERROR(ReadTensor(&out.tensors));
    ADDER_RETURN_IF_ERROR(Place(&out.tensors));
    return out;
  }

 private:
  // `count` things of `size` bytes each, at the current place.
  Status Need(uint64_t count, uint64_t size, const std::string& what) const {
    const uint64_t left = bytes_.size() - at_;
    if (count <= left / size) return {};
    return Error(Code::kCorruptFile,
                 "%s: the file ends inside %s, %" PRIu64 " of %" PRIu64 " x %" PRIu64
                 " bytes are left",
                 name_.c_str(), what.c_str(), left, count, size);
  }
  template <typename T>
  Result<T> Read(const std::string& what) {
    ADDER_RETURN_IF_ERROR(Need(1, sizeof(T), what));
    const T value = LoadLittle<T>(bytes_.data() + at_);
    at_ += sizeof(T);
    return value;
  }
  Result<std::string_view> ReadString(const std::string& what) {
    ADDER_ASSIGN_OR_RETURN(const uint64_t length, Read<uint64_t>(what));
    ADDER_RETURN_IF_ERROR(Need(length, 1, what));
    const auto* text = reinterpret_cast<const char*>(bytes_.data()) + at_;
    at_ += static_cast<size_t>(length);
    return std::string_view(text, static_cast<size_t>(length));
  }
  Result<std::string> ReadName(const char* what, uint64_t limit) {
    ADDER_ASSIGN_OR_RETURN(const std::string_view text, ReadString(what));
    if (text.empty() || text.size() > limit) {
      return Error(Code::kCorruptFile, "%s: %s has %zu bytes, expected 1 to %" PRIu64,
                   name_.c_str(), what, text.size(), limit);
    }
    return std::string(text);
  }

  Status ReadHeader() {
    ADDER_ASSIGN_OR_RETURN(const uint32_t magic, Read<uint32_t>("the header"));
    if (magic != kMagic) {
      return Error(Code::kCorruptFile, "%s: begins with 0x%08" PRIx32 ", not with \"GGUF\"",
                   name_.c_str(), magic);
    }
    ADDER_ASSIGN_OR_RETURN(const uint32_t version, Read<uint32_t>("the header"));
    if (version != 0 && (version & 0xffff) == 0) {
      return Error(Code::kUnsupported, "%s: a big-endian GGUF file; only little-endian is read",
                   name_.c_str());
    }
    if (version != 2 && version != 3) {
      return Error(Code::kUnsupported, "%s: GGUF version %" PRIu32 ", only 2 and 3 are read",
                   name_.c_str(), version);
    }
    ADDER_ASSIGN_OR_RETURN(n_tensors_, Read<uint64_t>("the header"));
    ADDER_ASSIGN_OR_RETURN(n_values_, Read<uint64_t>("the header"));
    return {};
  }

  Result<GgufType> ReadType(const std::string& what) {
    ADDER_ASSIGN_OR_RETURN(const uint32_t type, Read<uint32_t>(what));
    if (type < std::size(kValueBytes)) return static_cast<GgufType>(type);
    return Error(Code::kCorruptFile, "%s: %s has value type %" PRIu32 ", which does not exist",
                 name_.c_str(), what.c_str(), type);
  }

  Status ReadEntry(std::map<std::string, GgufValue, std::less<>>* values) {
    ADDER_ASSIGN_OR_RETURN(std::string key, ReadName("a metadata key", kMaxKey));
    const std::string what = "metadata " + Shown(key);
    GgufValue value{};
    ADDER_ASSIGN_OR_RETURN(value.type, ReadType(what));
    if (value.type == GgufType::kArray) {
      value.is_array = true;
      ADDER_ASSIGN_OR_RETURN(value.type, ReadType(what));
      ADDER_ASSIGN_OR_RETURN(value.count, Read<uint64_t>(what));
      if (value.type == GgufType::kArray) {
        return Error(Code::kUnsupported, "%s: %s is an array of arrays", name_.c_str(),
                     what.c_str());
      }
    }
    value.data = bytes_.data() + at_;
    ADDER_RETURN_IF_ERROR(SkipValues(value, what));
    if (!values->emplace(std::move(key), value).second) {
      return Error(Code::kCorruptFile, "%s: %s is given twice", name_.c_str(), what.c_str());
    }
    return {};
  }

  Status SkipValues(const GgufValue& value, const std::string& what) {
    if (value.type == GgufType::kString) {
      for (uint64_t i = 0; i < value.count; ++i) ADDER_RETURN_IF_ERROR(ReadString(what).status());
      return {};
    }
    const uint32_t size = kValueBytes[static_cast<uint32_t>(value.type)];
    ADDER_RETURN_IF_ERROR(Need(value.count, size, what));
    for (uint64_t i = 0; value.type == GgufType::kBool && i < value.count; ++i) {
      if (value.data[i] > 1) {
        return Error(Code::kCorruptFile, "%s: %s is a BOOL of value %u", name_.c_str(),
                     what.c_str(), unsigned{value.data[i]});
      }
    }
    at_ += static_cast<size_t>(value.count * size);
    return {};
  }

  Status ReadAlignment(const GgufMetadata& metadata) {
    ADDER_ASSIGN_OR_RETURN(const int64_t alignment,
                           metadata.Int("general.alignment", kDefaultAlignment));
    if (alignment < 1 || alignment > kMaxAlignment || (alignment & (alignment - 1)) != 0) {
      return Error(Code::kCorruptFile,
                   "%s: general.alignment is %" PRId64 ", expected a power of two up to %" PRId64,
                   name_.c_str(), alignment, kMaxAlignment);
    }
    alignment_ = static_cast<uint64_t>(alignment);
    return {};
  }

  static Result<SourceType> FindType(const std::string& where, uint32_t number) {
    const auto* found = std::find_if(std::begin(kTensorTypes), std::end(kTensorTypes),
                                     [&](const TensorType& t) { return t.number == number; });
    if (found == std::end(kTensorTypes)) {
      return Error(Code::kUnsupported, "%s: stored as type %" PRIu32 ", which is not known",
                   where.c_str(), number);
    }
    if (found->type) return *found->type;
    return Error(Code::kUnsupported,
                 "%s: stored as %s; weights are read from F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, "
                 "Q5_1, Q4_K, Q5_K and Q6_K",
                 where.c_str(), found->name);
  }

  // Name, dimensions (the one that lies together first), type, offset into the data.
  Status ReadTensor(TensorMap* tensors) {
    ADDER_ASSIGN_OR_RETURN(std::string tensor_name, ReadName("a tensor name", kMaxTensorName));
    const std::string where = name_ + ": " + Shown(tensor_name);
    const std::string what = "tensor " + Shown(tensor_name);
    ADDER_ASSIGN_OR_RETURN(const uint32_t rank, Read<uint32_t>(what));
    if (rank == 0 || rank > kMaxRank) {
      return Error(Code::kCorruptFile, "%s: %" PRIu32 " dimensions, expected 1 to %" PRIu32,
                   where.c_str(), rank, kMaxRank);
    }
    SourceTensor tensor;
    tensor.file = name_;
    tensor.shape.resize(rank);
    for (uint32_t axis = rank; axis-- > 0;) {
      ADDER_ASSIGN_OR_RETURN(tensor.shape[axis], Read<uint64_t>(what));
      if (tensor.shape[axis] == 0) {
        return Error(Code::kCorruptFile, "%s: a dimension of size 0", where.c_str());
      }
    }
    ADDER_ASSIGN_OR_RETURN(const uint32_t type, Read<uint32_t>(what));
    ADDER_ASSIGN_OR_RETURN(tensor.type, FindType(where, type));
    const uint64_t block = SourceTypeElements(tensor.type);
    if (tensor.shape.back() % block != 0) {
      return Error(Code::kCorruptFile,
                   "%s: rows of %" PRIu64 " elements, %s needs a multiple of %" PRIu64,
                   where.c_str(), tensor.shape.back(), SourceTypeName(tensor.type), block);
    }
    uint64_t elements = 1, bytes = 0;
    for (const uint64_t size : tensor.shape) {
      if (__builtin_mul_overflow(elements, size, &elements)) elements = 0;
      if (elements == 0) break;
    }
    if (elements == 0 ||
        __builtin_mul_overflow(elements / block, SourceTypeBytes(tensor.type), &bytes)) {
      return Error(Code::kCorruptFile, "%s: the shape's product exceeds 64 bits", where.c_str());
    }
    ADDER_ASSIGN_OR_RETURN(const uint64_t offset, Read<uint64_t>(what));
    if (offset % alignment_ != 0) {
      return Error(Code::kCorruptFile,
                   "%s: begins at byte %" PRIu64 ", not a multiple of the alignment %" PRIu64,
                   where.c_str(), offset, alignment_);
    }
    const auto [place, added] = tensors->emplace(std::move(tensor_name), std::move(tensor));
    if (!added) {
      return Error(Code::kCorruptFile, "%s: the tensor is given twice", where.c_str());
    }
    ranges_.push_back({offset, bytes, &place->first});  // the end follows in Place
    return {};
  }

  // The data begins at the next multiple of the alignment.
  Status Place(TensorMap* tensors) {
    const uint64_t padding = (alignment_ - at_ % alignment_) % alignment_;
    const uint64_t begin = std::min<uint64_t>(at_ + padding, bytes_.size());
    const std::span<const uint8_t> data = bytes_.subspan(static_cast<size_t>(begin));
    for (Range& range : ranges_) {
      const uint64_t size = range.end;
      if (range.begin > data.size() || size > data.size() - range.begin) {
        return Error(Code::kCorruptFile,
                     "%s: %s: %" PRIu64 " bytes from byte %" PRIu64 " of %zu bytes of data",
                     name_.c_str(), Shown(*range.tensor).c_str(), size, range.begin, data.size());
      }
      range.end = range.begin + size;
      tensors->find(*range.tensor)->second.data = data.data() + range.begin;
    }
    std::sort(ranges_.begin(), ranges_.end(),
              [](const Range& a, const Range& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < ranges_.size(); ++i) {
      const Range& previous = ranges_[i - 1];
      if (ranges_[i].begin >= previous.end) continue;
      return Error(Code::kCorruptFile,
                   "%s: %s begins at byte %" PRIu64 ", inside %s which ends at %" PRIu64,
                   name_.c_str(), Shown(*ranges_[i].tensor).c_str(), ranges_[i].begin,
                   Shown(*previous.tensor).c_str(), previous.end);
    }
    return {};
  }

  std::span<const uint8_t> bytes_;
  const std::string& name_;
  size_t at_ = 0;
  uint64_t n_tensors_ = 0, n_values_ = 0, alignment_ = 0;
  std::vector<Range> ranges_;
};

}  // namespace

Result<Gguf> ParseGguf(std::span<const uint8_t> bytes, const std::string& name) {
  return Parser(bytes, name).Run();
}

}  // namespace adder
