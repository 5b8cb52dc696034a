// Mamba-2 and Mamba-1 language models in double precision, straight from ARCHITECTURES.md sections
// 5.1 and 3.1: loops over checkpoint tensors, nothing shared with the runtime.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/tiny_checkpoint.h"

namespace adder::test {

using Vec = std::vector<double>;

class Reference {
 public:
  explicit Reference(const TinyCheckpoint& checkpoint) : checkpoint_(checkpoint) {}
  virtual ~Reference() = default;

  // Logits after each of `ids`.
  virtual std::vector<Vec> Run(const std::vector<int32_t>& ids, size_t layers) {
    std::vector<Vec> logits;
    for (const int32_t id : ids) {
      const Vec embedding = Get(checkpoint_.embedding);
      const size_t d_model = Get("backbone.norm_f.weight").size();
      const auto row = embedding.begin() + static_cast<std::ptrdiff_t>(d_model) * id;
      Vec h(row, row + static_cast<std::ptrdiff_t>(d_model));
      for (size_t i = 0; i < layers; ++i) {
        const std::string layer = "backbone.layers." + std::to_string(i) + ".";
        const Vec y = Mixer(i, layer + "mixer.", Rms(h, Get(layer + "norm.weight"), 1));
        for (size_t k = 0; k < d_model; ++k) h[k] += y[k];
        if (Has(layer + "mlp.fc1.weight")) Mlp(layer, &h);
      }
      logits.push_back(MatVec("lm_head.weight", Rms(h, Get("backbone.norm_f.weight"), 1)));
    }
    return logits;
  }

 protected:
  virtual Vec Mixer(size_t layer, const std::string& mixer, const Vec& u) = 0;

  bool Has(const std::string& name) const { return checkpoint_.weights.contains(name); }
  Vec Get(const std::string& name) const {
    const std::vector<float>& values = checkpoint_.weights.at(name).values;
    return Vec(values.begin(), values.end());
  }
  // W x, and "+ bias" when there is one.
  Vec MatVec(const std::string& name, const Vec& x) const {
    const Vec w = Get(name);
    const std::string bias = name.substr(0, name.size() - 6) + "bias";
    Vec y = Has(bias) ? Get(bias) : Vec(w.size() / x.size(), 0.0);
    for (size_t r = 0; r < y.size(); ++r) {
      for (size_t c = 0; c < x.size(); ++c) y[r] += w[r * x.size() + c] * x[c];
    }
    return y;
  }
  static Vec Rms(const Vec& x, const Vec& w, size_t blocks) {
    Vec y(x.size());
    const size_t width = x.size() / blocks;
    for (size_t b = 0; b < blocks; ++b) {
      double squares = 0;
      for (size_t i = b * width; i < (b + 1) * width; ++i) squares += x[i] * x[i];
      const double root = std::sqrt(squares / static_cast<double>(width) + 1e-5);
      for (size_t i = b * width; i < (b + 1) * width; ++i) y[i] = w[i] * x[i] / root;
    }
    return y;
  }
  static double Silu(double x) { return x / (1 + std::exp(-x)); }
  static double Softplus(double x) {
    return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)));
  }
  // The convolution reads the whole history of its inputs: no state to get wrong.
  Vec Conv(const std::string& mixer, std::vector<Vec>& history, const Vec& x) const {
    const FloatArray& w = checkpoint_.weights.at(mixer + "conv1d.weight");
    const size_t taps = w.shape[2];
    history.push_back(x);
    Vec y = Has(mixer + "conv1d.bias") ? Get(mixer + "conv1d.bias") : Vec(x.size(), 0.0);
    for (size_t j = 0; j < taps; ++j) {
      if (history.size() + j < taps) continue;  // before the text
      const Vec& input = history[history.size() + j - taps];
      for (size_t c = 0; c < x.size(); ++c) {
        y[c] += static_cast<double>(w.values[c * taps + j]) * input[c];
      }
    }
    return y;
  }
  Vec ConvSilu(const std::string& mixer, std::vector<Vec>& history, const Vec& x) const {
    Vec y = Conv(mixer, history, x);
    for (double& value : y) value = Silu(value);
    return y;
  }

  struct State {
    std::vector<Vec> conv;
    Vec ssm;
  };
  State& StateOf(size_t layer) {
    if (states_.size() <= layer) states_.resize(layer + 1);
    return states_[layer];
  }

 private:
  // Section 6.3: the second half of fc1 is the gate.
  void Mlp(const std::string& layer, Vec* h) const {
    const Vec both = MatVec(layer + "mlp.fc1.weight", Rms(*h, Get(layer + "norm2.weight"), 1));
    Vec up(both.size() / 2);
    for (size_t i = 0; i < up.size(); ++i) up[i] = both[i] * Silu(both[up.size() + i]);
    const Vec y = MatVec(layer + "mlp.fc2.weight", up);
    for (size_t k = 0; k < y.size(); ++k) (*h)[k] += y[k];
  }

  const TinyCheckpoint& checkpoint_;
  std::vector<State> states_;
};

class ReferenceMamba2 final : public Reference {
 public:
  ReferenceMamba2(const TinyCheckpoint& checkpoint, const Mamba2Shape& shape)
      : Reference(checkpoint), s_(shape) {}

 protected:
  Vec Mixer(size_t layer, const std::string& mixer, const Vec& u) override {
    const size_t H = s_.n_heads, p = s_.head_dim, G = s_.n_groups, N = s_.d_state, di = H * p;
    State& state = StateOf(layer);
    state.ssm.resize(di * N);
    const Vec in = MatVec(mixer + "in_proj.weight", u);  // z, xBC, dt
    const auto part = [&](size_t begin, size_t count) {
      const auto at = in.begin() + static_cast<std::ptrdiff_t>(begin);
      return Vec(at, at + static_cast<std::ptrdiff_t>(count));
    };
    const size_t m = s_.d_mlp;  // z0 and x0 first
    const Vec z = part(2 * m, di);
    const Vec xbc = ConvSilu(mixer, state.conv, part(2 * m + di, di + 2 * G * N));
    const Vec dt_raw = part(2 * m + 2 * di + 2 * G * N, H);
    const Vec dt_bias = Get(mixer + "dt_bias"), a_log = Get(mixer + "A_log"), d = Get(mixer + "D");
    Vec y(di);
    for (size_t h = 0; h < H; ++h) {
      const double dt = std::clamp(Softplus(dt_raw[h] + dt_bias[h]), s_.dt_min, s_.dt_max);
      const double decay = std::exp(-dt * std::exp(a_log[h]));
      const size_t g = h / (H / G);
      for (size_t i = 0; i < p; ++i) {
        const double x = xbc[h * p + i];
        double sum = 0;
        for (size_t n = 0; n < N; ++n) {
          double& s = state.ssm[(h * p + i) * N + n];
          s = decay * s + dt * x * xbc[di + g * N + n];
          sum += s * xbc[di + G * N + g * N + n];
        }
        y[h * p + i] = sum + d[s_.d_has_hdim ? h * p + i : h] * x;
      }
    }
    const auto gate = [&] {
      for (size_t i = 0; i < di; ++i) y[i] *= Silu(z[i]);
    };
    if (s_.norm != NormKind::kNormThenGate) gate();
    if (s_.norm != NormKind::kNone) y = Rms(y, Get(mixer + "norm.weight"), G);
    if (s_.norm == NormKind::kNormThenGate) gate();
    Vec both(m);
    for (size_t i = 0; i < m; ++i) both[i] = Silu(in[i]) * in[m + i];
    both.insert(both.end(), y.begin(), y.end());
    return MatVec(mixer + "out_proj.weight", both);
  }

 private:
  Mamba2Shape s_;
};

class ReferenceMamba1 final : public Reference {
 public:
  ReferenceMamba1(const TinyCheckpoint& checkpoint, const Mamba1Shape& shape)
      : Reference(checkpoint), s_(shape) {}

 protected:
  Vec Mixer(size_t layer, const std::string& mixer, const Vec& u) override {
    const size_t di = s_.d_inner, N = s_.d_state, R = s_.dt_rank;
    State& state = StateOf(layer);
    state.ssm.resize(di * N);
    const Vec in = MatVec(mixer + "in_proj.weight", u);  // x, z
    const auto middle = in.begin() + static_cast<std::ptrdiff_t>(di);
    const Vec x = ConvSilu(mixer, state.conv, Vec(in.begin(), middle));
    const Vec z(middle, in.end());
    const Vec dbc = MatVec(mixer + "x_proj.weight", x);  // dt, B, C
    const Vec dt = MatVec(mixer + "dt_proj.weight",
                          Vec(dbc.begin(), dbc.begin() + static_cast<std::ptrdiff_t>(R)));
    const Vec a_log = Get(mixer + "A_log"), d = Get(mixer + "D");
    Vec y(di);
    for (size_t c = 0; c < di; ++c) {
      const double step = Softplus(dt[c]);
      double sum = 0;
      for (size_t n = 0; n < N; ++n) {
        double& s = state.ssm[c * N + n];
        s = std::exp(-step * std::exp(a_log[c * N + n])) * s + step * x[c] * dbc[R + n];
        sum += s * dbc[R + N + n];
      }
      y[c] = (sum + d[c] * x[c]) * Silu(z[c]);
    }
    return MatVec(mixer + "out_proj.weight", y);
  }

 private:
  Mamba1Shape s_;
};

}  // namespace adder::test
