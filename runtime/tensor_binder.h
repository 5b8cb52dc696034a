// Takes tensors of a model file by name and checks type and shape. Keeps the first error, so that a
// block's constructor can bind everything and look once.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "runtime/linear.h"
#include "runtime/model_file.h"

namespace adder {

class TensorBinder {
 public:
  TensorBinder(const ModelFile& file, std::string prefix)
      : file_(&file), prefix_(std::move(prefix)) {}

  // Matrix [rows, cols] of any matrix type, with the vector "<name>.bias" [padded rows] if present.
  Linear Matrix(const std::string& name, uint64_t rows, uint64_t cols) {
    Linear linear;
    linear.rows = rows;
    linear.cols = cols;
    const Tensor* tensor = Find(name, {rows, cols});
    if (tensor == nullptr) return linear;
    if (!IsMatrix(tensor->dtype)) {
      Fail(name, std::string("has type ") + DTypeName(tensor->dtype) + ", expected a matrix type");
      return linear;
    }
    linear.dtype = tensor->dtype;
    linear.weights = tensor->data.data();
    linear.scales = linear.weights + MatrixWeightBytes(linear.dtype, rows, cols);
    if (file_->Find(prefix_ + name + ".bias") != nullptr) {
      linear.bias = Floats(name + ".bias", {RowBlocks(rows) * kLanes});
    }
    return linear;
  }

  // Array of f32 with exactly this shape.
  const float* Floats(const std::string& name, std::initializer_list<uint64_t> shape) {
    const Tensor* tensor = Find(name, shape);
    if (tensor == nullptr) return nullptr;
    if (tensor->dtype != DType::kF32) {
      Fail(name, std::string("has type ") + DTypeName(tensor->dtype) + ", expected f32");
      return nullptr;
    }
    return reinterpret_cast<const float*>(tensor->data.data());
  }

  // Of the tensors "<prefix><nested>...", and "<top>..." of the file; with errors of their own.
  TensorBinder Nested(const std::string& nested) const { return {*file_, prefix_ + nested}; }
  TensorBinder OfFile(const std::string& top) const { return {*file_, top}; }

  const Status& status() const { return status_; }

 private:
  const Tensor* Find(const std::string& name, std::vector<uint64_t> shape) {
    const Tensor* tensor = file_->Find(prefix_ + name);
    if (tensor == nullptr) {
      Fail(name, "is missing");
    } else if (tensor->shape != shape) {
      Fail(name, "has shape " + ShapeText(tensor->shape) + ", expected " + ShapeText(shape));
      return nullptr;
    }
    return tensor;
  }

  void Fail(const std::string& name, const std::string& what) {
    if (status_.ok())
      status_ = Status(Code::kCorruptFile, "model file: " + prefix_ + name + " " + what);
  }

  const ModelFile* file_;
  std::string prefix_;
  Status status_;
};

}  // namespace adder
