// Matrices between row-major f32 and the layouts of the model file (qtypes.h).
//
// Everything works one row block (kLanes rows) at a time and allocates nothing, so that tensors
// larger than memory stream through, and blocks can be packed in any order or in parallel.
// The result depends on nothing but the weights: converting twice gives the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quant/qtypes.h"
#include "runtime/status.h"

namespace adder {

// Bytes of one row block: of its weights, and of its scales (0 for types without).
uint64_t BlockWeightBytes(DType type, uint64_t cols);
uint64_t BlockScaleBytes(DType type, uint64_t cols);

struct MatrixShape {
  size_t rows, cols;
};

// Packs row block `block` of a matrix.
//   rows        f32 [min(kLanes, shape.rows - block * kLanes)][shape.cols], row-major
//   importance  [shape.cols], what an error in each column costs (quantize.h), or nullptr; used by
//               mat_q4 only
//   weights     BlockWeightBytes(type, cols); in the file at block * that
//   scales      BlockScaleBytes(type, cols); in the file after all weights, at block * that
// Padding rows and columns become weights 0 with scale 0 (in mat_q4: nibble 8). The pointers need
// no alignment. Errors name row and column: weights that are not finite, that overflow f16, or
// that need a mat_q4 scale beyond f16.
Status PackRowBlock(DType type, MatrixShape shape, size_t block, const float* rows,
                    const float* importance, uint8_t* weights, uint8_t* scales);

// Packs a whole matrix; out.size() must be MatrixBytes(type, rows, cols).
Status PackMatrix(DType type, MatrixShape shape, std::span<const float> matrix,
                  std::span<const float> importance, std::span<uint8_t> out);

// The weights of row block `block` as f32 [min(kLanes, shape.rows - block * kLanes)][shape.cols].
// The bytes may be anything: scales that are not finite give weights that are not.
void UnpackRowBlock(DType type, MatrixShape shape, size_t block, const uint8_t* weights,
                    const uint8_t* scales, float* rows);

// The inverse of PackMatrix, up to rounding.
Status UnpackMatrix(DType type, MatrixShape shape, std::span<const uint8_t> packed,
                    std::span<float> matrix);

}  // namespace adder
