// Model files of random weights, of any plan of layers, made without a checkpoint.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "converter/model_writer.h"
#include "quant/pack.h"
#include "runtime/model.h"
#include "tests/temp_dir.h"

namespace adder::test {

// An array of the file as its mathematics sees it: matrices row-major.
struct MadeTensor {
  DType dtype;
  std::vector<uint64_t> shape;
  std::vector<float> values;
};

class MadeModel {
 public:
  // Adds embedding (also the head) and final norm.
  MadeModel(uint32_t d_model, uint32_t vocab) {
    config.family = "made";
    config.type = "f32";
    config.d_model = d_model;
    config.vocab_size = config.vocab_rows = vocab;
    config.tied_head = true;
    Matrix("embedding", vocab, d_model, 1);
    Floats("final_norm", {d_model}, 1, 0.3);
  }

  // f32 in center +- spread.
  std::vector<float>& Floats(const std::string& name, std::vector<uint64_t> shape, double center,
                             double spread) {
    return Add(name, DType::kF32, std::move(shape), center, spread);
  }
  // Columns and rows of heads that are padding become 0.
  std::vector<float>& Matrix(const std::string& name, size_t rows, size_t cols, double spread = 0) {
    if (spread == 0) spread = 1.7 / std::sqrt(static_cast<double>(cols));
    return Add(name, matrix_type, {rows, cols}, 0, spread);
  }
  // Matrix whose rows or columns are heads of head_dim channels padded to kLanes.
  void HeadRows(const std::string& name, size_t heads, size_t head_dim, size_t cols) {
    const size_t padded = RoundUp(head_dim, kLanes);
    std::vector<float>& values = Matrix(name, heads * padded, cols);
    for (size_t i = 0; i < values.size(); ++i) {
      if (i / cols % padded >= head_dim) values[i] = 0;
    }
  }
  void HeadColumns(const std::string& name, size_t rows, size_t heads, size_t head_dim) {
    const size_t padded = RoundUp(head_dim, kLanes);
    std::vector<float>& values = Matrix(name, rows, heads * padded);
    for (size_t i = 0; i < values.size(); ++i) {
      if (i % padded >= head_dim) values[i] = 0;
    }
  }
  // A vector over heads, as above.
  void HeadFloats(const std::string& name, size_t heads, size_t head_dim, double spread) {
    const size_t padded = RoundUp(head_dim, kLanes);
    std::vector<float>& values = Floats(name, {heads * padded}, 0, spread);
    for (size_t i = 0; i < values.size(); ++i) {
      if (i % padded >= head_dim) values[i] = 0;
    }
  }

  bool Has(const std::string& name) const { return tensors.contains(name); }
  const std::vector<float>& Get(const std::string& name) const { return tensors.at(name).values; }

  // The file in `folder`.
  std::string Write(const TempDir& folder) const {
    std::vector<TensorSpec> specs;
    for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.dtype, tensor.shape});
    const std::string path = folder / "model.adder";
    auto writer = ModelWriter::Create(path, specs);
    EXPECT_TRUE(writer.ok()) << writer.status().message();
    for (const auto& [name, tensor] : tensors) {  // in the writer's order: by name
      EXPECT_TRUE(writer->Append(Pack(tensor)).ok()) << name;
    }
    EXPECT_TRUE(writer->Finish({}, config.ToJson()).ok());
    return path;
  }
  std::unique_ptr<Model> Open(const ModelOptions& options = {}) const {
    const TempDir folder;
    auto model = Model::Open(Write(folder), options);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return model.ok() ? std::move(*model) : nullptr;
  }

  ModelConfig config;
  DType matrix_type = DType::kMatF32;
  std::map<std::string, MadeTensor> tensors;

 private:
  std::vector<float>& Add(const std::string& name, DType dtype, std::vector<uint64_t> shape,
                          double center, double spread) {
    size_t count = 1;
    for (const uint64_t dim : shape) count *= dim;
    MadeTensor& tensor = tensors[name] = {dtype, std::move(shape), std::vector<float>(count)};
    for (float& value : tensor.values) {
      const double unit = static_cast<double>(random_()) / 4294967295.0;
      value = static_cast<float>(center + spread * (2 * unit - 1));
    }
    return tensor.values;
  }

  static std::vector<uint8_t> Pack(const MadeTensor& tensor) {
    if (!IsMatrix(tensor.dtype)) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(tensor.values.data());
      return {bytes, bytes + tensor.values.size() * sizeof(float)};
    }
    const MatrixShape shape = {tensor.shape[0], tensor.shape[1]};
    std::vector<uint8_t> out(MatrixBytes(tensor.dtype, shape.rows, shape.cols));
    EXPECT_TRUE(PackMatrix(tensor.dtype, shape, tensor.values, {}, out).ok());
    return out;
  }

  std::mt19937 random_{20240229};
};

}  // namespace adder::test
