// Checkpoints of a few thousand random weights, of any shape and with every option, for tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/safetensors_writer.h"
#include "tests/temp_dir.h"

namespace adder::test {

struct FloatArray {
  std::vector<uint64_t> shape;
  std::vector<float> values;
};
using Weights = std::map<std::string, FloatArray>;  // by checkpoint name

enum class NormKind { kGateThenNorm, kNormThenGate, kNone };

struct Mamba2Shape {
  size_t d_model = 32, n_heads = 4, head_dim = 16, n_groups = 1, d_state = 8, d_conv = 4;
  size_t layers = 2, vocab = 40;
  bool bias = false, conv_bias = true, d_has_hdim = false;
  bool original = false;  // mamba_ssm's names and keys, which alone have the options below
  NormKind norm = NormKind::kGateThenNorm;
  double dt_min = 0, dt_max = INFINITY;

  size_t d_inner() const { return n_heads * head_dim; }
  size_t bc() const { return 2 * n_groups * d_state; }
};

struct Mamba1Shape {
  size_t d_model = 20, d_inner = 50, d_state = 3, dt_rank = 2, d_conv = 2;
  size_t layers = 2, vocab = 40;
  bool bias = true, conv_bias = true;
};

struct TinyCheckpoint {
  Weights weights;
  std::string config;  // config.json
  std::string embedding = "backbone.embeddings.weight";

  std::map<std::string, RawTensor> Tensors() const {
    std::map<std::string, RawTensor> out;
    for (const auto& [name, array] : weights) out[name] = FloatTensor(array.shape, array.values);
    return out;
  }
  void Write(const TempDir& folder) const {
    folder.Write("config.json", config);
    folder.Write("model.safetensors", SafetensorsFile(Tensors()));
  }
};

class WeightMaker {
 public:
  explicit WeightMaker(Weights* weights) : weights_(weights) {}
  // Uniform in center +- spread.
  void Add(const std::string& name, std::vector<uint64_t> shape, double center, double spread) {
    size_t count = 1;
    for (const uint64_t dim : shape) count *= dim;
    FloatArray array{std::move(shape), std::vector<float>(count)};
    for (float& value : array.values) {
      const double unit = static_cast<double>(random_()) / 4294967295.0;
      value = static_cast<float>(center + spread * (2 * unit - 1));
    }
    (*weights_)[name] = std::move(array);
  }
  void Matrix(const std::string& name, size_t rows, size_t cols) {
    Add(name, {rows, cols}, 0, 1.7 / std::sqrt(static_cast<double>(cols)));
  }

 private:
  Weights* weights_;
  std::mt19937 random_{20240229};
};

inline std::string Number(double value) {
  return std::isinf(value) ? "Infinity" : std::to_string(value);
}

inline TinyCheckpoint MakeMamba2(const Mamba2Shape& s) {
  TinyCheckpoint out;
  if (s.original) out.embedding = "backbone.embedding.weight";
  WeightMaker make(&out.weights);
  make.Add(out.embedding, {s.vocab, s.d_model}, 0, 1);
  make.Add("backbone.norm_f.weight", {s.d_model}, 1, 0.5);
  make.Matrix("lm_head.weight", s.vocab, s.d_model);
  const size_t conv_channels = s.d_inner() + s.bc();
  const size_t in_rows = 2 * s.d_inner() + s.bc() + s.n_heads;
  for (size_t i = 0; i < s.layers; ++i) {
    const std::string layer = "backbone.layers." + std::to_string(i) + ".";
    const std::string mixer = layer + "mixer.";
    make.Add(layer + "norm.weight", {s.d_model}, 1, 0.5);
    make.Matrix(mixer + "in_proj.weight", in_rows, s.d_model);
    make.Add(mixer + "conv1d.weight", {conv_channels, 1, s.d_conv}, 0, 1);
    make.Add(mixer + "dt_bias", {s.n_heads}, -1, 2);
    make.Add(mixer + "A_log", {s.n_heads}, 0.5, 1);
    make.Add(mixer + "D", {s.d_has_hdim ? s.d_inner() : s.n_heads}, 0.5, 1);
    if (s.norm != NormKind::kNone) make.Add(mixer + "norm.weight", {s.d_inner()}, 1, 0.5);
    make.Matrix(mixer + "out_proj.weight", s.d_model, s.d_inner());
    if (s.conv_bias) make.Add(mixer + "conv1d.bias", {conv_channels}, 0, 0.5);
    if (s.bias) {
      make.Add(mixer + "in_proj.bias", {in_rows}, 0, 0.5);
      make.Add(mixer + "out_proj.bias", {s.d_model}, 0, 0.5);
    }
  }
  const auto number = [](size_t n) { return std::to_string(n); };
  const auto flag = [](bool b) { return std::string(b ? "true" : "false"); };
  const std::string limit = "[" + Number(s.dt_min) + ", " + Number(s.dt_max) + "]";
  if (s.original) {
    out.config = "{\"d_model\": " + number(s.d_model) + ", \"n_layer\": " + number(s.layers) +
                 ", \"vocab_size\": " + number(s.vocab) +
                 ", \"tie_embeddings\": false, \"ssm_cfg\": {\"layer\": \"Mamba2\", \"d_state\": " +
                 number(s.d_state) + ", \"headdim\": " + number(s.head_dim) +
                 ", \"ngroups\": " + number(s.n_groups) +
                 ", \"rmsnorm\": " + flag(s.norm != NormKind::kNone) +
                 ", \"norm_before_gate\": " + flag(s.norm == NormKind::kNormThenGate) +
                 ", \"D_has_hdim\": " + flag(s.d_has_hdim) + ", \"dt_limit\": " + limit + "}}";
  } else {
    out.config = "{\"model_type\": \"mamba2\", \"hidden_size\": " + number(s.d_model) +
                 ", \"num_hidden_layers\": " + number(s.layers) +
                 ", \"vocab_size\": " + number(s.vocab) + ", \"head_dim\": " + number(s.head_dim) +
                 ", \"n_groups\": " + number(s.n_groups) +
                 ", \"state_size\": " + number(s.d_state) + ", \"use_bias\": " + flag(s.bias) +
                 ", \"use_conv_bias\": " + flag(s.conv_bias) +
                 ", \"tie_word_embeddings\": false, \"time_step_limit\": " + limit + "}";
  }
  return out;
}

inline TinyCheckpoint MakeMamba1(const Mamba1Shape& s) {
  TinyCheckpoint out;
  WeightMaker make(&out.weights);
  make.Add(out.embedding, {s.vocab, s.d_model}, 0, 1);
  make.Add("backbone.norm_f.weight", {s.d_model}, 1, 0.5);
  make.Matrix("lm_head.weight", s.vocab, s.d_model);
  for (size_t i = 0; i < s.layers; ++i) {
    const std::string layer = "backbone.layers." + std::to_string(i) + ".";
    const std::string mixer = layer + "mixer.";
    make.Add(layer + "norm.weight", {s.d_model}, 1, 0.5);
    make.Matrix(mixer + "in_proj.weight", 2 * s.d_inner, s.d_model);
    make.Add(mixer + "conv1d.weight", {s.d_inner, 1, s.d_conv}, 0, 1);
    make.Matrix(mixer + "x_proj.weight", s.dt_rank + 2 * s.d_state, s.d_inner);
    make.Matrix(mixer + "dt_proj.weight", s.d_inner, s.dt_rank);
    make.Add(mixer + "dt_proj.bias", {s.d_inner}, -1, 2);
    make.Add(mixer + "A_log", {s.d_inner, s.d_state}, 0.5, 1);
    make.Add(mixer + "D", {s.d_inner}, 0.5, 1);
    make.Matrix(mixer + "out_proj.weight", s.d_model, s.d_inner);
    if (s.conv_bias) make.Add(mixer + "conv1d.bias", {s.d_inner}, 0, 0.5);
    if (s.bias) {
      make.Add(mixer + "in_proj.bias", {2 * s.d_inner}, 0, 0.5);
      make.Add(mixer + "out_proj.bias", {s.d_model}, 0, 0.5);
    }
  }
  out.config = "{\"model_type\": \"mamba\", \"hidden_size\": " + std::to_string(s.d_model) +
               ", \"num_hidden_layers\": " + std::to_string(s.layers) +
               ", \"vocab_size\": " + std::to_string(s.vocab) +
               ", \"use_bias\": " + (s.bias ? "true" : "false") +
               ", \"tie_word_embeddings\": false}";
  return out;
}

}  // namespace adder::test
