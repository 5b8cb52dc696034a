// A model of one layer with random weights, written tensor by tensor: what tests of a kind of layer
// compare with its equations and with itself.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "converter/model_writer.h"
#include "quant/pack.h"
#include "runtime/kernels_dispatch.h"
#include "runtime/session_buffer.h"
#include "tests/temp_dir.h"

namespace adder::test {

using Vec = std::vector<double>;

class BlockModel {
 public:
  static constexpr uint32_t kVocab = 48;

  BlockModel(const Mixer& mixer, uint32_t d_model, uint64_t seed = 1) : random_(seed) {
    config_.family = "test";
    config_.type = "f32";
    config_.d_model = d_model;
    config_.vocab_size = config_.vocab_rows = kVocab;
    config_.tied_head = true;
    config_.layers = {{.norm_eps = 1e-5f, .mixer = mixer}};
    AddMatrix("embedding", DType::kMatF32, kVocab, d_model, 1);
    AddFloats("final_norm", {d_model}, 0.5f, 1.5f);
    AddFloats("layers.0.norm", {d_model}, 0.5f, 1.5f);
  }

  // Uniform within low..high.
  void AddFloats(const std::string& name, std::vector<uint64_t> shape, float low, float high) {
    uint64_t count = 1;
    for (const uint64_t n : shape) count *= n;
    Tensor& tensor = tensors_[name];
    tensor = {DType::kF32, std::move(shape), Random(count, low, high)};
  }
  // Uniform, of such a size that products with rows of size 1 have about the size `gain`.
  void AddMatrix(const std::string& name, DType type, uint64_t rows, uint64_t cols,
                 float gain = 1) {
    const float limit = name == "embedding" ? 1.7f : gain * std::sqrt(3 / static_cast<float>(cols));
    tensors_[name] = {type, {rows, cols}, Random(rows * cols, -limit, limit)};
  }
  void AddBias(const std::string& matrix, float low, float high) {
    const uint64_t rows = tensors_.at(matrix).shape[0];
    AddFloats(matrix + ".bias", {RoundUp(rows, kLanes)}, low, high);
    std::vector<float>& values = tensors_.at(matrix + ".bias").values;
    std::fill(values.begin() + static_cast<std::ptrdiff_t>(rows), values.end(), 0.0f);
  }
  std::vector<float>& Values(const std::string& name) { return tensors_.at(name).values; }
  const std::vector<float>& Values(const std::string& name) const {
    return tensors_.at(name).values;
  }
  void Remove(const std::string& name) { tensors_.erase(name); }
  bool Has(const std::string& name) const { return tensors_.contains(name); }

  // Writes the file and opens it with the kernels `isa`; empty: the best.
  Result<std::unique_ptr<Model>> TryOpen(const std::string& isa = "") const {
    const TempDir folder;
    std::vector<TensorSpec> specs;
    for (const auto& [name, tensor] : tensors_) specs.push_back({name, tensor.type, tensor.shape});
    auto writer = ModelWriter::Create(folder / "model.adder", specs);
    EXPECT_TRUE(writer.ok()) << writer.status().message();
    for (const TensorSpec& spec : writer->tensors()) {
      const Status written = writer->Append(Packed(tensors_.at(spec.name)));
      EXPECT_TRUE(written.ok()) << written.message();
    }
    const auto size = writer->Finish({}, config_.ToJson());
    EXPECT_TRUE(size.ok()) << size.status().message();
    return Model::Open(folder / "model.adder", {.isa = isa});
  }
  std::unique_ptr<Model> Open(const std::string& isa = "") const {
    auto model = TryOpen(isa);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return model.ok() ? std::move(*model) : nullptr;
  }

  // For references, in double precision.
  Vec Embedding(int32_t token) const {
    const auto row = Values("embedding").begin() + std::ptrdiff_t{token} * config_.d_model;
    return Vec(row, row + std::ptrdiff_t{config_.d_model});
  }
  Vec Normed(const Vec& h) const {
    double squares = 0;
    for (const double v : h) squares += v * v;
    Vec u(h.size());
    for (size_t i = 0; i < h.size(); ++i) {
      u[i] = h[i] / std::sqrt(squares / static_cast<double>(h.size()) + 1e-5) *
             Values("layers.0.norm")[i];
    }
    return u;
  }
  // W x + bias of the layer's matrix `name`.
  Vec Times(const std::string& name, const Vec& x) const {
    const Tensor& w = tensors_.at("layers.0." + name);
    Vec y(w.shape[0], 0.0);
    for (size_t r = 0; r < y.size(); ++r) {
      for (size_t c = 0; c < x.size(); ++c) y[r] += double{w.values[r * x.size() + c]} * x[c];
      if (Has("layers.0." + name + ".bias")) y[r] += Values("layers.0." + name + ".bias")[r];
    }
    return y;
  }

 private:
  struct Tensor {
    DType type;
    std::vector<uint64_t> shape;
    std::vector<float> values;  // row-major
  };

  std::vector<float> Random(uint64_t count, float low, float high) {
    std::vector<float> values(count);
    for (float& v : values) {
      v = low + (high - low) * static_cast<float>(random_() >> 40) * 0x1p-24f;
    }
    return values;
  }

  static std::vector<uint8_t> Packed(const Tensor& tensor) {
    if (tensor.type == DType::kF32) {
      std::vector<uint8_t> bytes(tensor.values.size() * sizeof(float));
      std::memcpy(bytes.data(), tensor.values.data(), bytes.size());
      return bytes;
    }
    const MatrixShape shape = {tensor.shape[0], tensor.shape[1]};
    std::vector<uint8_t> bytes(MatrixBytes(tensor.type, shape.rows, shape.cols));
    const Status packed = PackMatrix(tensor.type, shape, tensor.values, {}, bytes);
    EXPECT_TRUE(packed.ok()) << packed.message();
    return bytes;
  }

  ModelConfig config_;
  std::map<std::string, Tensor> tensors_;
  std::mt19937_64 random_;
};

inline std::vector<int32_t> SomeTokens(size_t count) {
  std::vector<int32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<int32_t>(i * 29 % BlockModel::kVocab);
  }
  return tokens;
}

// The residual stream behind the layer, d_model values for each token. `first` tokens go in alone.
inline std::vector<float> HiddenBehind(const Model& model, std::span<const int32_t> tokens,
                                       const SessionOptions& options, size_t first = 0) {
  class Recorder final : public FeedObserver {
   public:
    explicit Recorder(size_t d_model) : d_model_(d_model) {}
    void OnHidden(size_t, size_t, size_t count, const float* hidden, size_t stride) override {
      for (size_t t = 0; t < count; ++t) {
        rows.insert(rows.end(), hidden + t * stride, hidden + t * stride + d_model_);
      }
    }
    std::vector<float> rows;

   private:
    size_t d_model_;
  };
  const auto buffer = SessionBuffer::Create(model, options);
  EXPECT_TRUE(buffer.ok()) << buffer.status().message();
  Recorder recorder(model.config().d_model);
  EXPECT_TRUE(buffer->session().Feed(tokens.first(first), &recorder).ok());
  EXPECT_TRUE(buffer->session().Feed(tokens.subspan(first), &recorder).ok());
  return recorder.rows;
}

// Largest difference from the reference, in standard deviations of what the layer added.
// `layer(h)` is what it adds to the row h.
template <typename Layer>
double LayerError(const BlockModel& model, std::span<const float> hidden,
                  std::span<const int32_t> tokens, const Layer& layer) {
  double largest = 0, squares = 0;
  size_t at = 0;
  for (const int32_t token : tokens) {
    const Vec h = model.Embedding(token);
    const Vec added = layer(h);
    for (size_t i = 0; i < h.size(); ++i, ++at) {
      const double error = std::fabs(hidden[at] - (h[i] + added[i]));
      if (!(error <= largest)) largest = error;
      squares += added[i] * added[i];
    }
  }
  EXPECT_EQ(at, hidden.size());
  return largest / std::sqrt(squares / static_cast<double>(at));
}

// Every kernel table that runs here, tile, split and number of threads gives the bits of the scalar
// kernels on single tokens, which are returned.
inline std::vector<float> ExpectSameBits(const BlockModel& builder,
                                         std::span<const int32_t> tokens) {
  const auto scalar = builder.Open("scalar");
  const std::vector<float> expected = HiddenBehind(*scalar, tokens, {.tile = 1});
  const auto expect = [&](const Model& model, const SessionOptions& options, size_t first) {
    const std::vector<float> hidden = HiddenBehind(model, tokens, options, first);
    ASSERT_EQ(hidden.size(), expected.size());
    EXPECT_EQ(std::memcmp(hidden.data(), expected.data(), hidden.size() * sizeof(float)), 0)
        << "tile " << options.tile << ", " << options.threads << " threads, split at " << first;
  };
  for (const Kernels* table : CompiledKernels()) {
    if ((table->required & ~DetectCpuFeatures()) != 0) continue;
    SCOPED_TRACE(table->name);
    const auto model = builder.Open(table->name);
    for (const auto& [tile, threads] : std::initializer_list<std::pair<uint32_t, uint32_t>>{
             {1, 1}, {2, 1}, {7, 1}, {64, 1}, {1, 2}, {5, 2}, {64, 3}}) {
      expect(*model, {.tile = tile, .threads = threads}, 0);
    }
    for (const size_t first : {size_t{1}, tokens.size() / 2, tokens.size() - 1}) {
      expect(*model, {.tile = 16}, first);
    }
  }
  return expected;
}

}  // namespace adder::test
