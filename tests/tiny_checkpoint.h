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
  size_t d_ff = 0;   // of an MLP behind every mixer; original only
  size_t d_mlp = 0;  // inner width beside that of the heads (d_ssm); original only
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
  size_t d_ff = 0;  // as above
  bool bias = true, conv_bias = true;
  bool original = false;
};

struct Mamba3Shape {
  size_t d_model = 32, n_heads = 4, head_dim = 16, n_groups = 1, d_state = 8, rank = 1;
  size_t layers = 2, vocab = 40, d_ff = 0;
  bool mimo = false, out_norm = false;
  double rope_fraction = 0.5, a_floor = 1e-4;

  size_t d_inner() const { return n_heads * head_dim; }
  size_t bc() const { return rank * n_groups * d_state; }
  size_t n_angles() const {
    return static_cast<size_t>(static_cast<double>(d_state) * rope_fraction) / 2;
  }
};

struct TinyCheckpoint {
  Weights weights;
  std::string config;        // config.json
  std::string mamba_config;  // mamba_config.json, if any
  std::string embedding = "backbone.embeddings.weight";

  std::map<std::string, RawTensor> Tensors() const {
    std::map<std::string, RawTensor> out;
    for (const auto& [name, array] : weights) out[name] = FloatTensor(array.shape, array.values);
    return out;
  }
  void Write(const TempDir& folder) const {
    folder.Write("config.json", config);
    if (!mamba_config.empty()) folder.Write("mamba_config.json", mamba_config);
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
  // The MLP of the original package's layers; nothing if d_ff is 0.
  void Mlp(const std::string& layer, size_t d_model, size_t d_ff) {
    if (d_ff == 0) return;
    Add(layer + "norm2.weight", {d_model}, 1, 0.5);
    Matrix(layer + "mlp.fc1.weight", 2 * d_ff, d_model);
    Matrix(layer + "mlp.fc2.weight", d_model, d_ff);
  }

 private:
  Weights* weights_;
  std::mt19937 random_{20240229};
};

inline std::string Number(double value) {
  return std::isinf(value) ? "Infinity" : std::to_string(value);
}

// The keys of the original package that all mixers share. d_intermediate is what d_ff was before it
// was rounded up.
inline std::string OriginalConfig(size_t d_model, size_t layers, size_t vocab, size_t d_ff,
                                  const std::string& ssm) {
  return "{\"d_model\": " + std::to_string(d_model) + ", \"n_layer\": " + std::to_string(layers) +
         ", \"vocab_size\": " + std::to_string(vocab) +
         ", \"d_intermediate\": " + std::to_string(d_ff / 2) +
         ", \"tie_embeddings\": false, \"ssm_cfg\": {" + ssm + "}}";
}

inline TinyCheckpoint MakeMamba2(const Mamba2Shape& s) {
  TinyCheckpoint out;
  if (s.original) out.embedding = "backbone.embedding.weight";
  WeightMaker make(&out.weights);
  make.Add(out.embedding, {s.vocab, s.d_model}, 0, 1);
  make.Add("backbone.norm_f.weight", {s.d_model}, 1, 0.5);
  make.Matrix("lm_head.weight", s.vocab, s.d_model);
  const size_t conv_channels = s.d_inner() + s.bc();
  const size_t in_rows = 2 * (s.d_mlp + s.d_inner()) + s.bc() + s.n_heads;
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
    make.Matrix(mixer + "out_proj.weight", s.d_model, s.d_mlp + s.d_inner());
    if (s.conv_bias) make.Add(mixer + "conv1d.bias", {conv_channels}, 0, 0.5);
    if (s.bias) {
      make.Add(mixer + "in_proj.bias", {in_rows}, 0, 0.5);
      make.Add(mixer + "out_proj.bias", {s.d_model}, 0, 0.5);
    }
    make.Mlp(layer, s.d_model, s.d_ff);
  }
  const auto number = [](size_t n) { return std::to_string(n); };
  const auto flag = [](bool b) { return std::string(b ? "true" : "false"); };
  const std::string limit = "[" + Number(s.dt_min) + ", " + Number(s.dt_max) + "]";
  if (s.original) {
    out.config = OriginalConfig(
        s.d_model, s.layers, s.vocab, s.d_ff,
        "\"layer\": \"Mamba2\", \"d_state\": " + number(s.d_state) +
            ", \"headdim\": " + number(s.head_dim) + ", \"ngroups\": " + number(s.n_groups) +
            ", \"rmsnorm\": " + flag(s.norm != NormKind::kNone) +
            ", \"norm_before_gate\": " + flag(s.norm == NormKind::kNormThenGate) +
            ", \"D_has_hdim\": " + flag(s.d_has_hdim) + ", \"dt_limit\": " + limit);
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
  if (s.original) out.embedding = "backbone.embedding.weight";
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
    make.Mlp(layer, s.d_model, s.d_ff);
  }
  if (s.original) {
    out.config = OriginalConfig(s.d_model, s.layers, s.vocab, s.d_ff, "");
    return out;
  }
  out.config = "{\"model_type\": \"mamba\", \"hidden_size\": " + std::to_string(s.d_model) +
               ", \"num_hidden_layers\": " + std::to_string(s.layers) +
               ", \"vocab_size\": " + std::to_string(s.vocab) +
               ", \"use_bias\": " + (s.bias ? "true" : "false") +
               ", \"tie_word_embeddings\": false}";
  return out;
}

inline TinyCheckpoint MakeMamba3(const Mamba3Shape& s) {
  TinyCheckpoint out;
  out.embedding = "backbone.embedding.weight";
  WeightMaker make(&out.weights);
  make.Add(out.embedding, {s.vocab, s.d_model}, 0, 1);
  make.Add("backbone.norm_f.weight", {s.d_model}, 1, 0.5);
  make.Matrix("lm_head.weight", s.vocab, s.d_model);
  for (size_t i = 0; i < s.layers; ++i) {
    const std::string layer = "backbone.layers." + std::to_string(i) + ".";
    const std::string mixer = layer + "mixer.";
    make.Add(layer + "norm.weight", {s.d_model}, 1, 0.5);
    make.Matrix(mixer + "in_proj.weight",
                2 * s.d_inner() + 2 * s.bc() + 3 * s.n_heads + s.n_angles(), s.d_model);
    make.Add(mixer + "dt_bias", {s.n_heads}, -1, 2);
    make.Add(mixer + "D", {s.n_heads}, 0.5, 1);
    for (const char* name : {"B", "C"}) {
      make.Add(mixer + name + "_norm.weight", {s.d_state}, 1, 0.5);
      make.Add(mixer + name + "_bias", {s.n_heads, s.rank, s.d_state}, 1, 0.5);
    }
    if (s.mimo) {
      for (const char* name : {"mimo_x", "mimo_z", "mimo_o"})
        make.Add(mixer + name, {s.n_heads, s.rank, s.head_dim}, 0.5, 1);
    }
    if (s.out_norm) make.Add(mixer + "norm.weight", {s.d_inner()}, 1, 0.5);
    make.Matrix(mixer + "out_proj.weight", s.d_model, s.d_inner());
    make.Mlp(layer, s.d_model, s.d_ff);
  }
  const auto number = [](size_t n) { return std::to_string(n); };
  const auto flag = [](bool b) { return std::string(b ? "true" : "false"); };
  out.config = OriginalConfig(
      s.d_model, s.layers, s.vocab, s.d_ff,
      "\"layer\": \"Mamba3\", \"d_state\": " + number(s.d_state) +
          ", \"headdim\": " + number(s.head_dim) + ", \"ngroups\": " + number(s.n_groups) +
          ", \"is_mimo\": " + flag(s.mimo) + ", \"mimo_rank\": " + number(s.rank) +
          ", \"is_outproj_norm\": " + flag(s.out_norm) + ", \"rope_fraction\": " +
          Number(s.rope_fraction) + ", \"A_floor\": " + Number(s.a_floor));
  return out;
}

}  // namespace adder::test
