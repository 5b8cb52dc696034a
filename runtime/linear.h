// Matrices of the model file as linear layers, and the activations they read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/qtypes.h"
#include "runtime/arena.h"
#include "runtime/kernels.h"

namespace adder {

struct Linear;

// Rows of activations [tokens][cols], and their quantized form when a reader wants it. Several
// linear layers that read the same rows share one quantization.
class Activations {
 public:
  // Room for up to `max_tokens` quantized rows of `cols` values.
  static Activations Carve(Arena* arena, size_t max_tokens, size_t cols);

  // Points at rows x [tokens][stride]. `quantizing`: some reader wants QuantizeRow of every row.
  void Set(const float* x, size_t stride, bool quantizing) {
    x_ = x;
    stride_ = stride;
    quantizing_ = quantizing;
  }
  void QuantizeRow(const Kernels& kernels, size_t token) {
    QuantizeGroups(kernels, token, 0, Groups(cols_));
  }
  // Groups [begin, end) of columns of a row.
  void QuantizeGroups(const Kernels& kernels, size_t token, size_t begin, size_t end);

  // The rows from `token` on.
  Activations From(size_t token) const;

  const float* x() const { return x_; }
  size_t stride() const { return stride_; }
  size_t cols() const { return cols_; }
  bool quantizing() const { return quantizing_; }
  // The quantized rows; scales and sums lie in rows of Groups(cols).
  const QuantizedRows& quantized() const { return quantized_; }

 private:
  const float* x_ = nullptr;
  size_t stride_ = 0;
  size_t cols_ = 0;
  bool quantizing_ = false;
  QuantizedRows quantized_ = {};
};

// y = W x + bias. Weights [rows, cols] lie packed in the model file (quant/qtypes.h).
struct Linear {
  DType dtype = DType::kMatF32;
  size_t rows = 0;
  size_t cols = 0;
  const uint8_t* weights = nullptr;
  const uint8_t* scales = nullptr;  // q8 and q4
  const float* bias = nullptr;      // [padded_rows()] or nullptr: none

  size_t row_blocks() const { return RowBlocks(rows); }
  size_t padded_rows() const { return RowBlocks(rows) * kLanes; }
  uint64_t bytes() const { return MatrixBytes(dtype, rows, cols); }
  bool quantized() const { return IsQuantized(dtype); }

  // Rows of row blocks [begin, end) of y [tokens][y_stride]; rows beyond `rows` become 0.
  void Apply(const Kernels& kernels, size_t begin, size_t end, const Activations& x, size_t tokens,
             float* y, size_t y_stride) const;

  // Row `row` as floats (an embedding look-up), out [cols].
  void ReadRow(size_t row, float* out) const;
};

}  // namespace adder
