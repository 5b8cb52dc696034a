#include "runtime/linear.h"

#include <algorithm>

#include "runtime/scalar_math.h"

namespace adder {

Activations Activations::Carve(Arena* arena, size_t max_tokens, size_t cols) {
  Activations activations;
  const size_t groups = Groups(cols);
  activations.cols_ = cols;
  activations.quantized_.values = arena->Take<int8_t>(max_tokens * groups * kGroup);
  activations.quantized_.scales = arena->Take<float>(max_tokens * groups);
  activations.quantized_.sums = arena->Take<int32_t>(max_tokens * groups);
  return activations;
}

void Activations::QuantizeGroups(const Kernels& kernels, size_t token, size_t begin, size_t end) {
  if (begin == end) return;
  const size_t first = begin * kGroup;
  const size_t group = token * Groups(cols_) + begin;
  kernels.quantize_row(x_ + token * stride_ + first, std::min(end * kGroup, cols_) - first,
                       quantized_.values + group * kGroup, quantized_.scales + group,
                       quantized_.sums + group);
}

Activations Activations::From(size_t token) const {
  Activations rows = *this;
  const size_t groups = token * Groups(cols_);
  rows.x_ += token * stride_;
  rows.quantized_ = {quantized_.values + groups * kGroup, quantized_.scales + groups,
                     quantized_.sums + groups};
  return rows;
}

void Linear::Apply(const Kernels& kernels, size_t begin, size_t end, const Activations& x,
                   size_t tokens, float* y, size_t y_stride) const {
  const size_t first = begin * kLanes;
  const size_t blocks = end - begin;
  const uint8_t* w = weights + MatrixWeightBytes(dtype, first, cols);
  const uint8_t* s = scales + MatrixScaleBytes(dtype, first, cols);
  y += first;
  switch (dtype) {
    case DType::kMatF32:
      kernels.matmul_f32(reinterpret_cast<const float*>(w), blocks, cols, x.x(), x.stride(), tokens,
                         y, y_stride);
      break;
    case DType::kMatF16:
      kernels.matmul_f16(reinterpret_cast<const uint16_t*>(w), blocks, cols, x.x(), x.stride(),
                         tokens, y, y_stride);
      break;
    case DType::kMatQ8:
      kernels.matmul_q8(reinterpret_cast<const int8_t*>(w), reinterpret_cast<const float*>(s),
                        blocks, Groups(cols), &x.quantized(), tokens, y, y_stride);
      break;
    case DType::kMatQ4:
      kernels.matmul_q4(w, reinterpret_cast<const uint16_t*>(s), blocks, Groups(cols),
                        &x.quantized(), tokens, y, y_stride);
      break;
    case DType::kF32:
      break;  // no matrix: Model binds only matrices as Linear
  }
  if (bias == nullptr) return;
  for (size_t t = 0; t < tokens; ++t) {
    kernels.add(bias + first, blocks * kLanes, y + t * y_stride);
  }
}

void Linear::ReadRow(size_t row, float* out) const {
  const size_t block = row / kLanes;
  const size_t lane = row % kLanes;
  const size_t groups = Groups(cols);
  switch (dtype) {
    case DType::kMatF32: {
      const float* w = reinterpret_cast<const float*>(weights) + block * cols * kLanes + lane;
      for (size_t k = 0; k < cols; ++k) out[k] = w[k * kLanes];
      break;
    }
    case DType::kMatF16: {
      const uint16_t* w = reinterpret_cast<const uint16_t*>(weights) + block * cols * kLanes + lane;
      for (size_t k = 0; k < cols; ++k) out[k] = F16ToF32(w[k * kLanes]);
      break;
    }
    case DType::kMatQ8: {
      const int8_t* w = reinterpret_cast<const int8_t*>(weights) + block * groups * kGroup * kLanes;
      const float scale = reinterpret_cast<const float*>(scales)[row];
      for (size_t k = 0; k < cols; ++k) {
        out[k] = scale * static_cast<float>(w[(k / 4 * kLanes + lane) * 4 + k % 4]);
      }
      break;
    }
    case DType::kMatQ4: {
      const uint8_t* w = weights + block * groups * kGroup * kLanes / 2;
      const uint16_t* scale = reinterpret_cast<const uint16_t*>(scales) + block * groups * kLanes;
      for (size_t k = 0; k < cols; ++k) {
        const size_t group = k / kGroup, low = k % (kGroup / 2);
        const uint8_t pair =
            w[group * kGroup * kLanes / 2 + (low / 4 * kLanes + lane) * 4 + low % 4];
        const int nibble = k % kGroup < kGroup / 2 ? pair & 15 : pair >> 4;
        out[k] = F16ToF32(scale[group * kLanes + lane]) * static_cast<float>(nibble - 8);
      }
      break;
    }
    case DType::kF32:
      break;
  }
}

}  // namespace adder
