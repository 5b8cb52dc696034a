#include "quant/pack.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "quant/quantize.h"
#include "runtime/scalar_math.h"

static_assert(std::endian::native == std::endian::little, "model files are little-endian");

namespace adder {
namespace {

// Values of T that need not be aligned.
template <typename T>
void Store(uint8_t* base, size_t index, T value) {
  std::memcpy(base + index * sizeof(T), &value, sizeof(T));
}

template <typename T>
T Load(const uint8_t* base, size_t index) {
  T value;
  std::memcpy(&value, base + index * sizeof(T), sizeof(T));
  return value;
}

// Positions within a row block.
size_t FloatIndex(size_t row, size_t col) { return col * kLanes + row; }
size_t Q8Index(size_t row, size_t col) { return (col / 4 * kLanes + row) * 4 + col % 4; }

constexpr size_t kGroupBytes = kLanes * kGroup / 2;  // of mat_q4

// Byte of columns `low` and low + 16 of a group.
size_t Q4Index(size_t row, size_t group, size_t low) {
  return group * kGroupBytes + (low / 4 * kLanes + row) * 4 + low % 4;
}

Status CheckShape(DType type, MatrixShape shape) {
  if (!IsMatrix(type)) {
    return Error(Code::kInvalidArgument, "type %u (%s) is not a matrix type",
                 static_cast<unsigned>(type), DTypeName(type));
  }
  if (shape.rows == 0 || shape.cols == 0 || shape.rows > kMaxDim || shape.cols > kMaxDim) {
    return Error(Code::kInvalidArgument, "matrix of %zu x %zu, expected 1..%zu each", shape.rows,
                 shape.cols, static_cast<size_t>(kMaxDim));
  }
  return {};
}

Status CheckCount(size_t count, MatrixShape shape) {
  const uint64_t expected = uint64_t{shape.rows} * shape.cols;  // at most kMaxDim^2
  if (count == expected) return {};
  return Error(Code::kInvalidArgument, "matrix of %zu floats, expected %llu", count,
               static_cast<unsigned long long>(expected));
}

Status CheckFinite(const float* x, size_t row, size_t cols) {
  for (size_t col = 0; col < cols; ++col) {
    if (!std::isfinite(x[col])) {
      return Error(Code::kUnsupported, "row %zu, column %zu: weight %g is not finite", row, col,
                   static_cast<double>(x[col]));
    }
  }
  return {};
}

Status CheckImportance(std::span<const float> importance, size_t cols) {
  if (importance.empty()) return {};
  if (importance.size() != cols) {
    return Error(Code::kInvalidArgument, "%zu importances, expected %zu", importance.size(), cols);
  }
  for (size_t col = 0; col < cols; ++col) {
    if (!std::isfinite(importance[col]) || importance[col] < 0.0f) {
      return Error(Code::kInvalidArgument, "importance %g of column %zu, expected finite and >= 0",
                   static_cast<double>(importance[col]), col);
    }
  }
  return {};
}

Status PackRowF16(const float* x, size_t lane, size_t row, size_t cols, uint8_t* weights) {
  for (size_t col = 0; col < cols; ++col) {
    const uint16_t half = F32ToF16(x[col]);
    if ((half & 0x7fffu) >= 0x7c00u) {
      return Error(Code::kUnsupported, "row %zu, column %zu: weight %g exceeds f16, at most %g",
                   row, col, static_cast<double>(x[col]), static_cast<double>(kF16Max));
    }
    Store<uint16_t>(weights, FloatIndex(lane, col), half);
  }
  return {};
}

void PackRowQ8(const float* x, size_t lane, size_t cols, uint8_t* weights, uint8_t* scales) {
  const float scale = RowScaleQ8(x, cols);
  Store<float>(scales, lane, scale);
  for (size_t col = 0; col < cols; ++col) {
    Store<int8_t>(weights, Q8Index(lane, col), ValueQ8(x[col], scale));
  }
}

Status PackRowQ4(const float* x, const float* importance, size_t lane, size_t row, size_t cols,
                 uint8_t* weights, uint8_t* scales) {
  for (size_t group = 0; group < Groups(cols); ++group) {
    const size_t first = group * kGroup;
    const size_t count = cols - first < kGroup ? cols - first : kGroup;
    float padded_x[kGroup] = {}, padded_importance[kGroup] = {};
    std::memcpy(padded_x, x + first, count * sizeof(float));
    if (importance != nullptr) {
      std::memcpy(padded_importance, importance + first, count * sizeof(float));
    }
    GroupQ4 q;
    if (!QuantizeGroupQ4(padded_x, importance != nullptr ? padded_importance : nullptr, &q)) {
      return Error(Code::kUnsupported,
                   "row %zu, group %zu (columns %zu to %zu): weights need a scale above %g, the "
                   "largest of f16",
                   row, group, first, first + count - 1, static_cast<double>(kF16Max));
    }
    Store<uint16_t>(scales, group * kLanes + lane, q.scale);
    for (size_t low = 0; low < kGroup / 2; ++low) {
      weights[Q4Index(lane, group, low)] =
          static_cast<uint8_t>(q.nibbles[low] | q.nibbles[low + kGroup / 2] << 4);
    }
  }
  return {};
}

}  // namespace

uint64_t BlockWeightBytes(DType type, uint64_t cols) {
  return MatrixWeightBytes(type, kLanes, cols);
}

uint64_t BlockScaleBytes(DType type, uint64_t cols) { return MatrixScaleBytes(type, kLanes, cols); }

Status PackRowBlock(DType type, MatrixShape shape, size_t block, const float* rows,
                    const float* importance, uint8_t* weights, uint8_t* scales) {
  ADDER_RETURN_IF_ERROR(CheckShape(type, shape));
  if (block >= RowBlocks(shape.rows)) {
    return Error(Code::kInvalidArgument, "row block %zu of %zu", block, RowBlocks(shape.rows));
  }
  // Padding first: in mat_q4 the byte of two zero weights is 0x88.
  std::memset(weights, type == DType::kMatQ4 ? 0x88 : 0, BlockWeightBytes(type, shape.cols));
  if (IsQuantized(type)) std::memset(scales, 0, BlockScaleBytes(type, shape.cols));

  const size_t first = block * kLanes;
  for (size_t lane = 0; lane < kLanes && first + lane < shape.rows; ++lane) {
    const float* x = rows + lane * shape.cols;
    const size_t row = first + lane;
    ADDER_RETURN_IF_ERROR(CheckFinite(x, row, shape.cols));
    switch (type) {
      case DType::kMatF32:
        for (size_t col = 0; col < shape.cols; ++col) Store(weights, FloatIndex(lane, col), x[col]);
        break;
      case DType::kMatF16:
        ADDER_RETURN_IF_ERROR(PackRowF16(x, lane, row, shape.cols, weights));
        break;
      case DType::kMatQ8:
        PackRowQ8(x, lane, shape.cols, weights, scales);
        break;
      case DType::kMatQ4:
        ADDER_RETURN_IF_ERROR(PackRowQ4(x, importance, lane, row, shape.cols, weights, scales));
        break;
      case DType::kF32:
        break;  // refused by CheckShape
    }
  }
  return {};
}

Status PackMatrix(DType type, MatrixShape shape, std::span<const float> matrix,
                  std::span<const float> importance, std::span<uint8_t> out) {
  ADDER_RETURN_IF_ERROR(CheckShape(type, shape));
  ADDER_RETURN_IF_ERROR(CheckImportance(importance, shape.cols));
  ADDER_RETURN_IF_ERROR(CheckCount(matrix.size(), shape));
  const uint64_t bytes = MatrixBytes(type, shape.rows, shape.cols);
  if (out.size() != bytes) {
    return Error(Code::kInvalidArgument, "buffer of %zu bytes, expected %llu", out.size(),
                 static_cast<unsigned long long>(bytes));
  }
  uint8_t* scales = out.data() + MatrixWeightBytes(type, shape.rows, shape.cols);
  for (size_t block = 0; block < RowBlocks(shape.rows); ++block) {
    ADDER_RETURN_IF_ERROR(PackRowBlock(type, shape, block,
                                       matrix.data() + block * kLanes * shape.cols,
                                       importance.empty() ? nullptr : importance.data(),
                                       out.data() + block * BlockWeightBytes(type, shape.cols),
                                       scales + block * BlockScaleBytes(type, shape.cols)));
  }
  return {};
}

void UnpackRowBlock(DType type, MatrixShape shape, size_t block, const uint8_t* weights,
                    const uint8_t* scales, float* rows) {
  const size_t first = block * kLanes;
  for (size_t lane = 0; lane < kLanes && first + lane < shape.rows; ++lane) {
    for (size_t col = 0; col < shape.cols; ++col) {
      float& weight = rows[lane * shape.cols + col];
      switch (type) {
        case DType::kMatF32:
          weight = Load<float>(weights, FloatIndex(lane, col));
          break;
        case DType::kMatF16:
          weight = F16ToF32(Load<uint16_t>(weights, FloatIndex(lane, col)));
          break;
        case DType::kMatQ8:
          weight = Load<float>(scales, lane) *
                   static_cast<float>(Load<int8_t>(weights, Q8Index(lane, col)));
          break;
        case DType::kMatQ4: {
          const size_t group = col / kGroup, low = col % (kGroup / 2);
          const int byte = weights[Q4Index(lane, group, low)];
          const int nibble = col % kGroup < kGroup / 2 ? byte & 15 : byte >> 4;
          weight = F16ToF32(Load<uint16_t>(scales, group * kLanes + lane)) *
                   static_cast<float>(nibble - 8);
          break;
        }
        case DType::kF32:
          break;  // not a matrix
      }
    }
  }
}

Status UnpackMatrix(DType type, MatrixShape shape, std::span<const uint8_t> packed,
                    std::span<float> matrix) {
  ADDER_RETURN_IF_ERROR(CheckShape(type, shape));
  const uint64_t bytes = MatrixBytes(type, shape.rows, shape.cols);
  if (packed.size() != bytes) {
    return Error(Code::kInvalidArgument, "%zu bytes, expected %llu", packed.size(),
                 static_cast<unsigned long long>(bytes));
  }
  ADDER_RETURN_IF_ERROR(CheckCount(matrix.size(), shape));
  const uint8_t* scales = packed.data() + MatrixWeightBytes(type, shape.rows, shape.cols);
  for (size_t block = 0; block < RowBlocks(shape.rows); ++block) {
    UnpackRowBlock(type, shape, block, packed.data() + block * BlockWeightBytes(type, shape.cols),
                   scales + block * BlockScaleBytes(type, shape.cols),
                   matrix.data() + block * kLanes * shape.cols);
  }
  return {};
}

}  // namespace adder
