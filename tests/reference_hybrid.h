// Hybrid language models in double precision, straight from ARCHITECTURES.md sections 1 and 5 to
// 13: loops over checkpoint tensors, nothing shared with the converter or the runtime.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "tests/reference_mamba.h"

namespace adder::test {

struct AttentionShape {
  size_t n_heads = 4, n_kv_heads = 2, head_dim = 6;
  double scale = 0.4, key = 1;
  Vec rope;  // frequencies of the pairs that rotate
};

struct SsmShape {
  size_t n_heads = 4, head_dim = 10, n_groups = 2, d_state = 6, d_conv = 3;
  size_t norm_groups = 1;  // 0: no norm
  bool norm_first = false;
  double dt_min = 0, dt_max = INFINITY;
  double z = 1, x = 1, b = 1, c = 1, dt = 1;  // multipliers

  size_t d_inner() const { return n_heads * head_dim; }
  size_t bc() const { return n_groups * d_state; }
  size_t in_rows() const { return 2 * d_inner() + 2 * bc() + n_heads; }
};

inline Vec operator+(Vec a, const Vec& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}
inline Vec operator*(double scale, Vec a) {
  for (double& value : a) value *= scale;
  return a;
}
inline Vec Slice(const Vec& x, size_t begin, size_t count) {
  const auto at = x.begin() + static_cast<std::ptrdiff_t>(begin);
  return Vec(at, at + static_cast<std::ptrdiff_t>(count));
}

class HybridReference : public Reference {
 public:
  // h of one token through all layers, given its embedding.
  using Layers = std::function<Vec(HybridReference&, Vec embedding)>;

  HybridReference(const TinyCheckpoint& checkpoint, std::string final_norm, Layers layers)
      : Reference(checkpoint),
        checkpoint_(checkpoint),
        final_norm_(std::move(final_norm)),
        layers_(std::move(layers)) {}
  double embedding_multiplier = 1, logits_multiplier = 1;

  std::vector<Vec> Run(const std::vector<int32_t>& ids, size_t) override {
    std::vector<Vec> logits;
    const std::string head = Has("lm_head.weight") ? "lm_head.weight" : checkpoint_.embedding;
    const size_t d_model = Get(final_norm_).size();
    for (const int32_t id : ids) {
      const Vec e = Slice(Get(checkpoint_.embedding), d_model * static_cast<size_t>(id), d_model);
      const Vec h = layers_(*this, embedding_multiplier * e);
      logits.push_back(logits_multiplier * MatVec(head, Norm(final_norm_, h)));
    }
    return logits;
  }

  // Run has layers of its own.
  Vec Mixer(size_t, const std::string&, const Vec&) override { return {}; }

  using Reference::Has;
  using Reference::MatVec;
  Vec Norm(const std::string& name, const Vec& x) const { return Rms(x, Get(name), 1); }

  // q, k and v as projected; the result before o_proj.
  Vec Attend(const std::string& memory, const AttentionShape& a, Vec q, Vec k, const Vec& v) {
    std::vector<std::pair<Vec, Vec>>& past = past_[memory];
    k = a.key * k;
    Rotate(a, static_cast<double>(past.size()), &q);
    Rotate(a, static_cast<double>(past.size()), &k);
    past.emplace_back(k, v);
    Vec out(q.size(), 0.0);
    for (size_t h = 0; h < a.n_heads; ++h) {
      const size_t kv = h / (a.n_heads / a.n_kv_heads);
      Vec weights;
      for (const auto& [key, value] : past) {
        double dot = 0;
        for (size_t i = 0; i < a.head_dim; ++i) {
          dot += q[h * a.head_dim + i] * key[kv * a.head_dim + i];
        }
        weights.push_back(std::exp(a.scale * dot));
      }
      const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
      for (size_t t = 0; t < past.size(); ++t) {
        for (size_t i = 0; i < a.head_dim; ++i) {
          out[h * a.head_dim + i] += weights[t] / sum * past[t].second[kv * a.head_dim + i];
        }
      }
    }
    return out;
  }
  Vec Attention(const std::string& prefix, const AttentionShape& a, const Vec& x) {
    return MatVec(prefix + "o_proj.weight",
                  Attend(prefix, a, MatVec(prefix + "q_proj.weight", x),
                         MatVec(prefix + "k_proj.weight", x), MatVec(prefix + "v_proj.weight", x)));
  }

  // The convolution, the recurrence, gate and norm of section 5.1, given the rows of in_proj.
  Vec Ssm(const std::string& mixer, const SsmShape& s, const Vec& z, const Vec& xbc_raw,
          const Vec& dt_raw, const std::function<Vec(Vec)>& after_conv = nullptr) {
    const size_t di = s.d_inner(), N = s.d_state;
    State& state = states_[mixer];
    state.ssm.resize(di * N);
    Vec xbc = ConvSilu(mixer, state.conv, xbc_raw);
    if (after_conv) xbc = after_conv(xbc);
    const Vec dt_bias = Get(mixer + "dt_bias"), a_log = Get(mixer + "A_log"), d = Get(mixer + "D");
    Vec y(di);
    for (size_t h = 0; h < s.n_heads; ++h) {
      const double dt = std::clamp(Softplus(dt_raw[h] + dt_bias[h]), s.dt_min, s.dt_max);
      const double decay = std::exp(-dt * std::exp(a_log[h]));
      const size_t g = h / (s.n_heads / s.n_groups);
      for (size_t i = h * s.head_dim; i < (h + 1) * s.head_dim; ++i) {
        double sum = 0;
        for (size_t n = 0; n < N; ++n) {
          double& value = state.ssm[i * N + n];
          value = decay * value + dt * xbc[i] * xbc[di + g * N + n];
          sum += value * xbc[di + s.bc() + g * N + n];
        }
        y[i] = sum + d[h] * xbc[i];
      }
    }
    const auto gate = [&] {
      for (size_t i = 0; i < di; ++i) y[i] *= Silu(z[i]);
    };
    if (!s.norm_first) gate();
    if (s.norm_groups > 0) y = Rms(y, Get(mixer + "norm.weight"), s.norm_groups);
    if (s.norm_first) gate();
    return MatVec(mixer + "out_proj.weight", y);
  }
  Vec Mamba2(const std::string& mixer, const SsmShape& s, const Vec& in) {
    const size_t di = s.d_inner(), bc = s.bc();
    Vec xbc = s.x * Slice(in, di, di);
    for (const auto& [scale, begin] : {std::pair(s.b, 2 * di), {s.c, 2 * di + bc}}) {
      const Vec part = scale * Slice(in, begin, bc);
      xbc.insert(xbc.end(), part.begin(), part.end());
    }
    return Ssm(mixer, s, s.z * Slice(in, 0, di), xbc, s.dt * Slice(in, 2 * di + 2 * bc, s.n_heads));
  }

  // Section 4 with the weights of section 7.
  Vec NormedMamba1(const std::string& mixer, const Vec& u) {
    const FloatArray& a_log = checkpoint_.weights.at(mixer + "A_log");
    const size_t di = a_log.shape[0], N = a_log.shape[1];
    State& state = states_[mixer];
    state.ssm.resize(di * N);
    const Vec in = MatVec(mixer + "in_proj.weight", u);
    const Vec x = ConvSilu(mixer, state.conv, Slice(in, 0, di));
    const Vec low = MatVec(mixer + "x_proj.weight", x);
    const size_t R = low.size() - 2 * N;
    const Vec dt =
        MatVec(mixer + "dt_proj.weight", Norm(mixer + "dt_layernorm.weight", Slice(low, 0, R)));
    const Vec b = Norm(mixer + "b_layernorm.weight", Slice(low, R, N));
    const Vec c = Norm(mixer + "c_layernorm.weight", Slice(low, R + N, N));
    const Vec d = Get(mixer + "D");
    Vec y(di);
    for (size_t i = 0; i < di; ++i) {
      const double step = Softplus(dt[i]);
      for (size_t n = 0; n < N; ++n) {
        double& value = state.ssm[i * N + n];
        const double a = -std::exp(static_cast<double>(a_log.values[i * N + n]));
        value = std::exp(step * a) * value + step * x[i] * b[n];
        y[i] += value * c[n];
      }
      y[i] = (y[i] + d[i] * x[i]) * Silu(in[di + i]);
    }
    return MatVec(mixer + "out_proj.weight", y);
  }

  static Vec SiluTimes(Vec gate, const Vec& up) {
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = Silu(gate[i]) * up[i];
    return gate;
  }
  // down(silu(gate_scale * gate x) * up x) of {gate,up,down}_proj.
  Vec Mlp(const std::string& prefix, const Vec& x, double gate_scale = 1) const {
    return MatVec(prefix + "down_proj.weight",
                  SiluTimes(gate_scale * MatVec(prefix + "gate_proj.weight", x),
                            MatVec(prefix + "up_proj.weight", x)));
  }
  // The same with the rows of gate and up in one tensor.
  Vec MergedMlp(const std::string& gate_up, const std::string& down, const Vec& x) const {
    const Vec both = MatVec(gate_up, x);
    const size_t half = both.size() / 2;
    return MatVec(down, SiluTimes(Slice(both, 0, half), Slice(both, half, half)));
  }
  // Matrix `index` of a tensor of three dimensions, times x.
  Vec SliceVec(const std::string& name, size_t index, const Vec& x) const {
    const FloatArray& w = checkpoint_.weights.at(name);
    Vec y(w.shape[1], 0.0);
    for (size_t r = 0; r < y.size(); ++r) {
      for (size_t c = 0; c < x.size(); ++c) {
        y[r] += static_cast<double>(w.values[(index * y.size() + r) * x.size() + c]) * x[c];
      }
    }
    return y;
  }

  // Where the k largest of `values` are.
  static std::vector<size_t> Largest(const Vec& values, size_t k) {
    std::vector<size_t> order(values.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return values[a] > values[b]; });
    order.resize(k);
    return order;
  }
  Vec Values(const std::string& name) const { return Get(name); }

  // The convolution of a mixer without activation.
  Vec Convolve(const std::string& mixer, const Vec& x) {
    return Conv(mixer, states_[mixer].conv, x);
  }

 private:
  void Rotate(const AttentionShape& a, double position, Vec* x) const {
    const size_t half = a.rope.size();
    for (size_t head = 0; head < x->size(); head += a.head_dim) {
      for (size_t i = 0; i < half; ++i) {
        const double cos = std::cos(position * a.rope[i]), sin = std::sin(position * a.rope[i]);
        const double u = (*x)[head + i], v = (*x)[head + half + i];
        (*x)[head + i] = u * cos - v * sin;
        (*x)[head + half + i] = v * cos + u * sin;
      }
    }
  }

  const TinyCheckpoint& checkpoint_;
  std::string final_norm_;
  Layers layers_;
  std::map<std::string, State> states_;
  std::map<std::string, std::vector<std::pair<Vec, Vec>>> past_;
};

}  // namespace adder::test
