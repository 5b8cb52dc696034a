// One tensor of a checkpoint as float32: element formats, strides, and the refusal of values that
// are not weights.
#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>

#include "converter/checkpoint.h"
#include "converter/gguf_dequantize.h"
#include "converter/little_endian.h"

namespace adder {
namespace {

// Each format below: bytes of an element, and its value as float. What float32 cannot hold becomes
// NaN, so that one test finds everything to refuse.
struct F32 {
  static constexpr size_t kBytes = 4;
  static float Read(const uint8_t* p) { return std::bit_cast<float>(LoadLittle<uint32_t>(p)); }
};

struct BF16 {
  static constexpr size_t kBytes = 2;
  static float Read(const uint8_t* p) {
    return std::bit_cast<float>(static_cast<uint32_t>(LoadLittle<uint16_t>(p)) << 16);
  }
};

struct F16 {
  static constexpr size_t kBytes = 2;
  static float Read(const uint8_t* p) { return LoadHalf(p); }
};

struct F64 {
  static constexpr size_t kBytes = 8;
  static float Read(const uint8_t* p) {
    const double value = std::bit_cast<double>(LoadLittle<uint64_t>(p));
    return std::fabs(value) <= double{FLT_MAX} ? static_cast<float>(value) : NAN;
  }
};

template <typename Bits, typename Integer>
struct Int {
  static constexpr size_t kBytes = sizeof(Bits);
  static float Read(const uint8_t* p) {
    const auto value = std::bit_cast<Integer>(LoadLittle<Bits>(p));
    constexpr Integer kExact = Integer{1} << FLT_MANT_DIG;
    return value >= -kExact && value <= kExact ? static_cast<float>(value) : NAN;
  }
};

template <typename Format>
void ReadContiguous(const SourceTensor& tensor, std::vector<float>* out) {
  const uint8_t* p = tensor.data;
  for (float& value : *out) {
    value = Format::Read(p);
    p += Format::kBytes;
  }
}

// Row-major over the shape: `index` counts like an odometer, `at` is its element in the storage.
template <typename Format>
void ReadStrided(const SourceTensor& tensor, std::vector<float>* out) {
  std::vector<uint64_t> index(tensor.shape.size(), 0);
  uint64_t at = 0;
  for (float& value : *out) {
    value = Format::Read(tensor.data + at * Format::kBytes);
    for (size_t axis = index.size(); axis-- > 0;) {
      at += tensor.strides[axis];
      if (++index[axis] < tensor.shape[axis]) break;
      at -= tensor.strides[axis] * tensor.shape[axis];
      index[axis] = 0;
    }
  }
}

template <typename Format>
void Read(const SourceTensor& tensor, std::vector<float>* out) {
  tensor.strides.empty() ? ReadContiguous<Format>(tensor, out) : ReadStrided<Format>(tensor, out);
}

// Rows 2 i and 2 i + 1 of a head become i and i + half again.
std::vector<float> WithoutPairs(const SourceTensor& tensor, const std::vector<float>& paired) {
  const size_t rows = tensor.shape[0], width = paired.size() / rows;
  const size_t head = rows / tensor.paired_heads, half = head / 2;
  std::vector<float> out(paired.size());
  for (size_t row = 0; row < rows; ++row) {
    const size_t at = row % head;
    const size_t from = row - at + at % half * 2 + at / half;
    std::copy_n(paired.data() + from * width, width, out.data() + row * width);
  }
  return out;
}

}  // namespace

const char* SourceTypeName(SourceType type) {
  static constexpr const char* kNames[] = {"F32",  "F16",  "BF16", "F64",  "I32",  "I64",  "Q4_0",
                                           "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"};
  return kNames[static_cast<size_t>(type)];
}

size_t SourceTypeBytes(SourceType type) {
  static constexpr size_t kBytes[] = {4, 2, 2, 8, 4, 8, 18, 20, 22, 24, 34, 144, 176, 210};
  return kBytes[static_cast<size_t>(type)];
}

size_t SourceTypeElements(SourceType type) {
  if (type < SourceType::kQ4_0) return 1;
  return type < SourceType::kQ4_K ? 32 : 256;
}

uint64_t SourceTensor::elements() const {
  uint64_t count = 1;
  for (const uint64_t size : shape) count *= size;
  return count;
}

SourceTensor SourceTensor::Slice(uint64_t index) const {
  SourceTensor slice = *this;
  slice.shape.erase(slice.shape.begin());
  const uint64_t stride = strides.empty() ? slice.elements() : strides[0];
  if (!strides.empty()) slice.strides.erase(slice.strides.begin());
  slice.data += index * stride / SourceTypeElements(type) * SourceTypeBytes(type);
  return slice;
}

bool SourceTensor::SameStorage(const SourceTensor& other) const {
  return data == other.data && type == other.type && shape == other.shape &&
         strides == other.strides && elements() > 0;
}

Result<std::vector<float>> ReadF32(const SourceTensor& tensor, const std::string& name) {
  std::vector<float> out(tensor.elements());
  switch (tensor.type) {
    case SourceType::kF32:
      Read<F32>(tensor, &out);
      break;
    case SourceType::kF16:
      Read<F16>(tensor, &out);
      break;
    case SourceType::kBF16:
      Read<BF16>(tensor, &out);
      break;
    case SourceType::kF64:
      Read<F64>(tensor, &out);
      break;
    case SourceType::kI32:
      Read<Int<uint32_t, int32_t>>(tensor, &out);
      break;
    case SourceType::kI64:
      Read<Int<uint64_t, int64_t>>(tensor, &out);
      break;
    default:
      DequantizeBlocks(tensor.type, tensor.data, out);
      break;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    if (!std::isfinite(out[i])) {
      return Error(Code::kCorruptFile,
                   "%s: %s: element %zu of %zu (%s) is NaN, infinite or beyond "
                   "float32",
                   tensor.file.c_str(), name.c_str(), i, out.size(), SourceTypeName(tensor.type));
    }
  }
  return tensor.paired_heads == 0 ? out : WithoutPairs(tensor, out);
}

}  // namespace adder
