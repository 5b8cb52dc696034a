// Number formats of the model file: names, lane and group sizes, layouts and byte counts.
// Plain data that kernels, runtime and converter share; includes nothing but integer types.
// FORMAT.md, section "Tensor types", is the normative description.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace adder {

inline constexpr size_t kLanes = 16;      // output rows or channels that one kernel step handles
inline constexpr size_t kGroup = 32;      // inputs that share an activation scale, and a q4 scale
inline constexpr size_t kAlignment = 64;  // of every tensor, section, and kernel buffer, bytes
inline constexpr uint64_t kMaxDim = uint64_t{1} << 28;  // of one dimension, elements

// Values are written in model files: never renumber.
//
// Matrices [rows, cols] are stored for the kernels in blocks of kLanes rows ("row blocks"), rows
// padded with zeros to kLanes and, for q8 and q4, columns to kGroup:
//   mat_f32, mat_f16  [row block][col][16 rows]
//   mat_q8            int8 [row block][col / 4][16 rows][4 cols], then f32 scale [row block][16];
//                     weight = scale * value, value in -127..127
//   mat_q4            per row block and group of 32 columns 256 bytes [4 chunks][16 rows][4 cols]:
//                     byte (chunk c, row r, j) holds column 4c+j in its low and column 16+4c+j in
//                     its high nibble; then f16 scale [row block][group][16];
//                     weight = scale * (nibble - 8)
enum class DType : uint32_t {
  kF32 = 1,     // array of any rank, row-major, not padded
  kMatF32 = 2,  // matrix
  kMatF16 = 3,
  kMatQ8 = 4,
  kMatQ4 = 5,
};

constexpr size_t RoundUp(size_t n, size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
constexpr size_t RowBlocks(size_t rows) { return (rows + kLanes - 1) / kLanes; }
constexpr size_t Groups(size_t cols) { return (cols + kGroup - 1) / kGroup; }

constexpr bool IsMatrix(DType t) { return t >= DType::kMatF32 && t <= DType::kMatQ4; }
constexpr bool IsQuantized(DType t) { return t == DType::kMatQ8 || t == DType::kMatQ4; }

constexpr const char* DTypeName(DType t) {
  switch (t) {
    case DType::kF32:
      return "f32";
    case DType::kMatF32:
      return "mat_f32";
    case DType::kMatF16:
      return "mat_f16";
    case DType::kMatQ8:
      return "mat_q8";
    case DType::kMatQ4:
      return "mat_q4";
  }
  return "unknown";
}

// Bytes of the weights of a matrix, without its scales. Dimensions must be <= kMaxDim.
constexpr uint64_t MatrixWeightBytes(DType t, uint64_t rows, uint64_t cols) {
  const uint64_t padded_rows = RowBlocks(rows) * kLanes;
  switch (t) {
    case DType::kMatF32:
      return padded_rows * cols * 4;
    case DType::kMatF16:
      return padded_rows * cols * 2;
    case DType::kMatQ8:
      return padded_rows * Groups(cols) * kGroup;
    case DType::kMatQ4:
      return padded_rows * Groups(cols) * (kGroup / 2);
    default:
      return 0;
  }
}

// Bytes of the scales that follow the weights.
constexpr uint64_t MatrixScaleBytes(DType t, uint64_t rows, uint64_t cols) {
  const uint64_t padded_rows = RowBlocks(rows) * kLanes;
  switch (t) {
    case DType::kMatQ8:
      return padded_rows * 4;
    case DType::kMatQ4:
      return padded_rows * Groups(cols) * 2;
    default:
      return 0;
  }
}

constexpr uint64_t MatrixBytes(DType t, uint64_t rows, uint64_t cols) {
  return MatrixWeightBytes(t, rows, cols) + MatrixScaleBytes(t, rows, cols);
}

}  // namespace adder
