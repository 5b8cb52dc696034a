// Pieces of models in double precision over the tensors of a MadeModel: nothing shared with the
// runtime.
#pragma once

#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "tests/made_model.h"

namespace adder::test {

using Vec = std::vector<double>;

inline double Silu64(double x) { return x / (1 + std::exp(-x)); }

class MadeReference {
 public:
  explicit MadeReference(const MadeModel& made) : made_(made) {}

 protected:
  Vec Get(const std::string& name) const {
    const std::vector<float>& values = made_.Get(name);
    return Vec(values.begin(), values.end());
  }
  Vec Embedding(int32_t id) const {
    const Vec all = Get("embedding");
    const auto width = static_cast<std::ptrdiff_t>(made_.config.d_model);
    return Vec(all.begin() + id * width, all.begin() + (id + 1) * width);
  }

  // W x, and "+ bias" when there is one.
  Vec Product(const std::string& name, const Vec& x) const {
    const std::vector<float>& w = made_.Get(name);
    Vec y(w.size() / x.size());
    for (size_t r = 0; r < y.size(); ++r) {
      if (made_.Has(name + ".bias")) y[r] = double{made_.Get(name + ".bias")[r]};
      for (size_t c = 0; c < x.size(); ++c) y[r] += double{w[r * x.size() + c]} * x[c];
    }
    return y;
  }

  // Epsilon 1e-5, as in all of these models.
  Vec Rms(const Vec& x, const std::string& name) const {
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double root = std::sqrt(squares / static_cast<double>(x.size()) + 1e-5);
    Vec y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] / root * double{made_.Get(name)[i]};
    return y;
  }

  // The convolution reads the whole history of its inputs: no state to get wrong.
  Vec Convolve(const std::string& name, size_t taps, std::vector<Vec>* inputs, const Vec& x) const {
    inputs->push_back(x);
    const Vec weight = Get(name + ".weight");
    Vec y = Get(name + ".bias");
    for (size_t j = 0; j < taps; ++j) {
      if (inputs->size() + j < taps) continue;  // before the text
      const Vec& input = (*inputs)[inputs->size() + j - taps];
      for (size_t c = 0; c < x.size(); ++c) {
        y[c] += weight[(c / kLanes * taps + j) * kLanes + c % kLanes] * input[c];
      }
    }
    y.resize(x.size());
    return y;
  }

  struct Past {
    std::vector<Vec> keys, values;
  };

  // q becomes the weighted sums of the values of the latest `context` tokens.
  void Attend(const AttentionConfig& c, const std::string& rope, size_t context, Past* past, Vec q,
              Vec k, Vec v, Vec* out) const {
    const auto position = static_cast<double>(past->keys.size());
    Rotate(c, rope, position, &q);
    Rotate(c, rope, position, &k);
    past->keys.push_back(k);
    past->values.push_back(v);
    const size_t width = RoundUp(c.head_dim, kLanes);
    const size_t latest = past->keys.size();
    const size_t first = latest > context ? latest - context : 0;
    out->assign(q.size(), 0.0);
    for (size_t head = 0; head < c.n_heads; ++head) {
      const size_t kv = head / (c.n_heads / c.n_kv_heads);
      Vec weights;
      double sum = 0;
      for (size_t t = first; t < latest; ++t) {
        double score = 0;
        for (size_t d = 0; d < width; ++d) {
          score += q[head * width + d] * past->keys[t][kv * width + d];
        }
        weights.push_back(std::exp(score * double{c.scale}));
        sum += weights.back();
      }
      for (size_t t = first; t < latest; ++t) {
        for (size_t d = 0; d < width; ++d) {
          (*out)[head * width + d] += weights[t - first] / sum * past->values[t][kv * width + d];
        }
      }
    }
  }

  const MadeModel& made_;

 private:
  void Rotate(const AttentionConfig& c, const std::string& rope, double position, Vec* x) const {
    if (c.rotary_dim == 0) return;
    const Vec f = Get(rope);
    const size_t half = c.rotary_dim / 2, width = RoundUp(c.head_dim, kLanes);
    for (size_t head = 0; head < x->size(); head += width) {
      for (size_t i = 0; i < half; ++i) {
        const double cos = std::cos(position * f[i]), sin = std::sin(position * f[i]);
        const double a = (*x)[head + i], b = (*x)[head + half + i];
        (*x)[head + i] = a * cos - b * sin;
        (*x)[head + half + i] = b * cos + a * sin;
      }
    }
  }
};

// Largest difference of logits, in standard deviations of the reference.
inline double LargestError(const std::vector<std::vector<float>>& rows,
                           const std::vector<Vec>& expected) {
  EXPECT_EQ(rows.size(), expected.size());
  double squares = 0, largest = 0, count = 0;
  for (size_t t = 0; t < rows.size(); ++t) {
    for (size_t i = 0; i < rows[t].size(); ++i) {
      squares += expected[t][i] * expected[t][i];
      const double error = std::fabs(double{rows[t][i]} - expected[t][i]);
      if (!(error <= largest)) largest = error;
      ++count;
    }
  }
  const double error = largest / std::sqrt(squares / count);
  printf("largest error %.2g of the standard deviation\n", error);
  return error;
}

}  // namespace adder::test
