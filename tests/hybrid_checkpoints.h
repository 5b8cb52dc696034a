// Tiny checkpoints of the hybrid families: the tensors that several of them share, under the names
// of ARCHITECTURES.md.
#pragma once

#include <string>

#include "tests/reference_hybrid.h"

namespace adder::test {

constexpr size_t kWidth = 20, kTinyVocab = 40, kTinyFf = 26;

class HybridMaker {
 public:
  HybridMaker(const std::string& embedding, const std::string& final_norm) : make_(&out.weights) {
    out.embedding = embedding;
    make_.Add(embedding, {kTinyVocab, kWidth}, 0, 1);
    Norm(final_norm);
    Matrix("lm_head.weight", kTinyVocab, kWidth);
  }

  void Norm(const std::string& name, size_t width = kWidth) { make_.Add(name, {width}, 1, 0.5); }
  void Vector(const std::string& name, size_t width) { make_.Add(name, {width}, 0, 0.5); }
  void Matrix(const std::string& name, size_t rows, size_t cols) { make_.Matrix(name, rows, cols); }
  void Stack(const std::string& name, size_t count, size_t rows, size_t cols) {
    make_.Add(name, {count, rows, cols}, 0, 1.7 / std::sqrt(static_cast<double>(cols)));
  }
  void Linear(const std::string& name, size_t rows, size_t cols, bool bias) {
    Matrix(name + ".weight", rows, cols);
    if (bias) Vector(name + ".bias", rows);
  }
  void Attention(const std::string& prefix, const AttentionShape& a, size_t width = kWidth,
                 bool bias = false) {
    Linear(prefix + "q_proj", a.n_heads * a.head_dim, width, bias);
    Linear(prefix + "k_proj", a.n_kv_heads * a.head_dim, width, bias);
    Linear(prefix + "v_proj", a.n_kv_heads * a.head_dim, width, bias);
    Linear(prefix + "o_proj", kWidth, a.n_heads * a.head_dim, bias);
  }
  void Mamba2(const std::string& mixer, const SsmShape& s, bool bias = false) {
    const size_t channels = s.d_inner() + 2 * s.bc();
    Linear(mixer + "in_proj", s.in_rows(), kWidth, bias);
    Linear(mixer + "out_proj", kWidth, s.d_inner(), bias);
    Recurrence(mixer, s, channels);
  }
  void Recurrence(const std::string& mixer, const SsmShape& s, size_t conv_channels) {
    make_.Add(mixer + "conv1d.weight", {conv_channels, 1, s.d_conv}, 0, 1);
    Vector(mixer + "conv1d.bias", conv_channels);
    make_.Add(mixer + "dt_bias", {s.n_heads}, -1, 2);
    make_.Add(mixer + "A_log", {s.n_heads}, 0.5, 1);
    make_.Add(mixer + "D", {s.n_heads}, 0.5, 1);
    if (s.norm_groups > 0) Norm(mixer + "norm.weight", s.d_inner());
  }
  void NormedMamba1(const std::string& mixer, size_t di, size_t N, size_t R, size_t K) {
    Matrix(mixer + "in_proj.weight", 2 * di, kWidth);
    make_.Add(mixer + "conv1d.weight", {di, 1, K}, 0, 1);
    Vector(mixer + "conv1d.bias", di);
    Matrix(mixer + "x_proj.weight", R + 2 * N, di);
    Matrix(mixer + "dt_proj.weight", di, R);
    make_.Add(mixer + "dt_proj.bias", {di}, -1, 2);
    make_.Add(mixer + "A_log", {di, N}, 0.5, 1);
    make_.Add(mixer + "D", {di}, 0.5, 1);
    Matrix(mixer + "out_proj.weight", kWidth, di);
    Norm(mixer + "dt_layernorm.weight", R);
    Norm(mixer + "b_layernorm.weight", N);
    Norm(mixer + "c_layernorm.weight", N);
  }
  void Mlp(const std::string& prefix, bool bias = false) {
    Linear(prefix + "gate_proj", kTinyFf, kWidth, bias);
    Linear(prefix + "up_proj", kTinyFf, kWidth, bias);
    Linear(prefix + "down_proj", kWidth, kTinyFf, bias);
  }

  TinyCheckpoint out;

 private:
  WeightMaker make_;
};

// theta^(-2 i / (2 pairs))
inline Vec PlainRope(size_t pairs, double theta) {
  Vec f;
  for (size_t i = 0; i < pairs; ++i) {
    f.push_back(std::pow(theta, -static_cast<double>(i) / static_cast<double>(pairs)));
  }
  return f;
}

// What all of them say.
inline std::string TinyConfig(const std::string& family, size_t layers, const std::string& keys) {
  return "{\"model_type\": \"" + family + "\", \"hidden_size\": " + std::to_string(kWidth) +
         ", \"num_hidden_layers\": " + std::to_string(layers) +
         ", \"vocab_size\": " + std::to_string(kTinyVocab) + ", \"tie_word_embeddings\": false, " +
         keys + "}";
}

}  // namespace adder::test
