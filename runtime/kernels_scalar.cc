// The definition of every slot of Kernels, written to be read. It runs where no table of vectors
// does, and every other table is compared with it bit by bit.
#include <bit>
#include <cmath>

#include "runtime/kernels.h"
#include "runtime/scalar_math.h"

namespace adder {
namespace {

void QuantizeRow(const float* x, size_t n, int8_t* values, float* scales, int32_t* sums) {
  for (size_t g = 0; g < Groups(n); ++g, x += kGroup, values += kGroup) {
    const size_t count = n - g * kGroup < kGroup ? n - g * kGroup : kGroup;
    // The bits of |x| order like integers, with NaN above infinity.
    uint32_t largest = 0;
    for (size_t i = 0; i < count; ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu;
      largest = bits > largest ? bits : largest;
    }
    const float m = std::bit_cast<float>(largest);
    const bool finite = largest < 0x7f800000u;
    sums[g] = 0;
    scales[g] = finite ? 0.0f : std::bit_cast<float>(0x7fc00000u);
    for (size_t i = 0; i < kGroup; ++i) values[i] = 0;
    if (!finite || m < kQuantizeMin) continue;

    const float inverse = 127.0f / m;
    for (size_t i = 0; i < count; ++i) {
      values[i] = static_cast<int8_t>(RoundToEven(x[i] * inverse));
      sums[g] += values[i];
    }
    scales[g] = m * (1.0f / 127.0f);
  }
}

void MatmulQ8(const int8_t* weights, const float* row_scales, size_t row_blocks, size_t groups,
              const QuantizedRows* x, size_t tokens, float* y, size_t y_stride) {
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t b = 0; b < row_blocks; ++b) {
      for (size_t r = 0; r < kLanes; ++r) {
        float acc = 0.0f;
        for (size_t g = 0; g < groups; ++g) {
          const int8_t* w = weights + (b * groups + g) * kGroup * kLanes + r * 4;
          const int8_t* a = x->values + (t * groups + g) * kGroup;
          int32_t dot = 0;
          for (size_t k = 0; k < kGroup; ++k) dot += w[k / 4 * kLanes * 4 + k % 4] * a[k];
          acc = std::fmaf(static_cast<float>(dot), x->scales[t * groups + g], acc);
        }
        y[t * y_stride + b * kLanes + r] = row_scales[b * kLanes + r] * acc;
      }
    }
  }
}

void MatmulQ4(const uint8_t* weights, const uint16_t* scales, size_t row_blocks, size_t groups,
              const QuantizedRows* x, size_t tokens, float* y, size_t y_stride) {
  constexpr size_t kHalf = kGroup / 2;  // columns in the low nibbles, then as many in the high ones
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t b = 0; b < row_blocks; ++b) {
      for (size_t r = 0; r < kLanes; ++r) {
        float acc = 0.0f;
        for (size_t g = 0; g < groups; ++g) {
          const uint8_t* w = weights + (b * groups + g) * kHalf * kLanes + r * 4;
          const int8_t* a = x->values + (t * groups + g) * kGroup;
          int32_t dot = 0;
          for (size_t k = 0; k < kHalf; ++k) {
            const int byte = w[k / 4 * kLanes * 4 + k % 4];
            dot += ((byte & 15) - 8) * a[k] + ((byte >> 4) - 8) * a[kHalf + k];
          }
          const float scale = F16ToF32(scales[(b * groups + g) * kLanes + r]);
          acc = std::fmaf(static_cast<float>(dot), scale * x->scales[t * groups + g], acc);
        }
        y[t * y_stride + b * kLanes + r] = acc;
      }
    }
  }
}

inline float ToF32(float weight) { return weight; }
inline float ToF32(uint16_t weight) { return F16ToF32(weight); }

template <typename Weight>
void MatmulFloat(const Weight* weights, size_t row_blocks, size_t cols, const float* x,
                 size_t x_stride, size_t tokens, float* y, size_t y_stride) {
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t b = 0; b < row_blocks; ++b) {
      for (size_t r = 0; r < kLanes; ++r) {
        float acc = 0.0f;
        for (size_t k = 0; k < cols; ++k) {
          acc = std::fmaf(ToF32(weights[(b * cols + k) * kLanes + r]), x[t * x_stride + k], acc);
        }
        y[t * y_stride + b * kLanes + r] = acc;
      }
    }
  }
}

void RmsNorm(const float* x, const float* weight, size_t n, float count, float eps, float* y) {
  float s[kLanes] = {};
  for (size_t i = 0; i < n; ++i) s[i % kLanes] = std::fmaf(x[i], x[i], s[i % kLanes]);
  for (size_t width = kLanes / 2; width > 0; width /= 2) {
    for (size_t l = 0; l < width; ++l) s[l] += s[l + width];
  }
  const float inverse = 1.0f / std::sqrt(s[0] / count + eps);
  for (size_t i = 0; i < n; ++i) {
    y[i] = weight == nullptr ? x[i] * inverse : (x[i] * inverse) * weight[i];
  }
}

float Softmax(float* x, size_t n, float* largest) {
  float m[kLanes];
  float s[kLanes] = {};
  for (float& lane : m) lane = *largest;
  for (size_t i = 0; i < n; ++i) m[i % kLanes] = x[i] > m[i % kLanes] ? x[i] : m[i % kLanes];
  for (size_t width = kLanes / 2; width > 0; width /= 2) {
    for (size_t l = 0; l < width; ++l) m[l] = m[l + width] > m[l] ? m[l + width] : m[l];
  }
  for (size_t i = 0; i < n; ++i) {
    x[i] = Exp(x[i] - m[0]);
    s[i % kLanes] += x[i];
  }
  for (size_t width = kLanes / 2; width > 0; width /= 2) {
    for (size_t l = 0; l < width; ++l) s[l] += s[l + width];
  }
  *largest = m[0];
  return s[0];
}

template <float (*kActivation)(float)>
void Gate(const float* z, size_t n, float* y) {
  for (size_t i = 0; i < n; ++i) {
    y[i] = z == nullptr ? kActivation(y[i]) : y[i] * kActivation(z[i]);
  }
}

void Add(const float* x, size_t n, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] += x[i];
}

void AddScaled(const float* x, float scale, size_t n, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] = std::fmaf(scale, x[i], y[i]);
}

void SoftplusClamped(const float* bias, size_t n, float lo, float hi, float* x) {
  for (size_t i = 0; i < n; ++i) {
    const float value = Softplus(x[i] + bias[i]);
    const float raised = value < lo ? lo : value;  // NaN stays
    x[i] = raised > hi ? hi : raised;
  }
}

void Conv1dSilu(const float* weights, const float* bias, size_t channel_blocks, size_t d_conv,
                size_t tokens, size_t stride, float* state, float* x) {
  const size_t history = d_conv - 1;
  for (size_t channel = 0; channel < channel_blocks * kLanes; ++channel) {
    const size_t b = channel / kLanes;
    const size_t l = channel % kLanes;
    const float* w = weights + b * d_conv * kLanes + l;
    float* s = state + b * history * kLanes + l;
    for (size_t t = 0; t < tokens; ++t) {
      float* value = x + t * stride + channel;
      const float newest = *value;
      float acc = bias[channel];
      for (size_t j = 0; j < history; ++j) acc = std::fmaf(w[j * kLanes], s[j * kLanes], acc);
      acc = std::fmaf(w[history * kLanes], newest, acc);
      *value = Silu(acc);
      for (size_t j = 1; j < history; ++j) s[(j - 1) * kLanes] = s[j * kLanes];
      if (history > 0) s[(history - 1) * kLanes] = newest;
    }
  }
}

void SelectiveScan(const SelectiveScanArgs* args) {
  for (size_t channel = 0; channel < args->channel_blocks * kLanes; ++channel) {
    const size_t first = channel / kLanes * args->d_state * kLanes + channel % kLanes;
    const float* a = args->a + first;
    float* state = args->state + first;
    for (size_t t = 0; t < args->tokens; ++t) {
      float* x = args->x + t * args->stride + channel;
      const float* b = args->b + t * args->bc_stride;
      const float* c = args->c + t * args->bc_stride;
      const float dt = args->dt[t * args->stride + channel];
      const float u = dt * *x;
      float y = 0.0f;
      for (size_t n = 0; n < args->d_state; ++n) {
        float& s = state[n * kLanes];
        s = std::fmaf(Exp2(dt * a[n * kLanes]), s, u * b[n]);
        y = std::fmaf(s, c[n], y);
      }
      y = std::fmaf(args->d[channel], *x, y);
      *x = y * Silu(args->z[t * args->stride + channel]);
    }
  }
}

void SsdScan(const SsdScanArgs* args) {
  const size_t head_dim = args->head_blocks * kLanes;
  for (size_t channel = args->head_begin * head_dim; channel < args->head_end * head_dim;
       ++channel) {
    const size_t head = channel / head_dim;
    const size_t group = head / args->heads_per_group;
    float* state = args->state + channel / kLanes * args->d_state * kLanes + channel % kLanes;
    for (size_t t = 0; t < args->tokens; ++t) {
      float* x = args->x + t * args->stride + channel;
      const float* b = args->b + t * args->bc_stride + group * args->d_state;
      const float* c = args->c + t * args->bc_stride + group * args->d_state;
      const float dt = args->dt[t * args->dt_stride + head];
      const float decay = Exp2(dt * args->a[head]);
      const float u = dt * *x;
      float y = 0.0f;
      for (size_t n = 0; n < args->d_state; ++n) {
        float& s = state[n * kLanes];
        s = std::fmaf(decay, s, u * b[n]);
        y = std::fmaf(s, c[n], y);
      }
      *x = std::fmaf(args->d[channel], *x, y);
    }
  }
}

// NaN if there is one.
float LargestMagnitude(const float* x, size_t n) {
  float largest = 0.0f;
  for (size_t i = 0; i < n; ++i) {
    const float magnitude = std::fabs(x[i]);
    if (!(magnitude <= largest)) largest = magnitude;
    if (magnitude != magnitude) return magnitude;
  }
  return largest;
}

void SsdScan16(const SsdScanArgs* args) {
  const size_t head_dim = args->head_blocks * kLanes;
  for (size_t channel = args->head_begin * head_dim; channel < args->head_end * head_dim;
       ++channel) {
    const size_t head = channel / head_dim;
    const size_t group = head / args->heads_per_group;
    int16_t* values = args->values + channel / kLanes * args->d_state * kLanes + channel % kLanes;
    float& limit = args->limits[channel];
    for (size_t t = 0; t < args->tokens; ++t) {
      float* x = args->x + t * args->stride + channel;
      const float* b = args->b + t * args->bc_stride + group * args->d_state;
      const float* c = args->c + t * args->bc_stride + group * args->d_state;
      const float dt = args->dt[t * args->dt_stride + head];
      const float decay = Exp2(dt * args->a[head]);
      const float u = dt * *x;
      const float scale = limit * (1.0f / kStateSteps);
      limit = std::fmaf(decay, limit, std::fabs(u) * LargestMagnitude(b, args->d_state));
      const bool kept = limit >= kStateLimitMin && limit < INFINITY;
      const float inverse = kept ? kStateSteps / limit : 0.0f;
      float y = 0.0f;
      for (size_t n = 0; n < args->d_state; ++n) {
        int16_t& value = values[n * kLanes];
        const float s = std::fmaf(decay, static_cast<float>(value) * scale, u * b[n]);
        y = std::fmaf(s, c[n], y);
        value = kept ? static_cast<int16_t>(std::nearbyintf(s * inverse)) : int16_t{0};
      }
      *x = std::fmaf(args->d[channel], *x, y);
    }
  }
}

// The key or query of one head and rank: row [d_state] plus bias, the first n_angles pairs rotated.
void Rotate(const float* row, const float* bias, const float* turns, size_t d_state,
            size_t n_angles, float* out) {
  for (size_t n = 0; n < d_state; ++n) out[n] = row[n] + bias[n];
  float* other = out + d_state / 2;
  for (size_t s = 0; s < n_angles; ++s) {
    const float sin = SinTurns(turns[s]), cos = CosTurns(turns[s]);
    const float t0 = out[s], t1 = other[s];
    out[s] = std::fmaf(t0, cos, -(t1 * sin));
    other[s] = std::fmaf(t0, sin, t1 * cos);
  }
}

void Mamba3Rotate(const Mamba3RotateArgs* args) {
  for (size_t t = 0; t < args->tokens; ++t) {
    const float* angle = args->angle + t * args->angle_stride;
    for (size_t h = args->head_begin; h < args->head_end; ++h) {
      const float dt = args->dt[t * args->dt_stride + h];
      float* turns = args->turns + h * RoundUp(args->n_angles, kLanes);
      for (size_t s = 0; s < args->n_angles; ++s) {
        const float turned = std::fmaf(Tanh(angle[s]) * 0.5f, dt, turns[s]);
        turns[s] = turned - RoundToEven(turned);
      }
      for (size_t r = 0; r < args->rank; ++r) {
        const size_t from =
            t * args->bc_stride + (r * args->groups + h / args->heads_per_group) * args->d_state;
        const size_t bias = (h * args->rank + r) * args->d_state;
        const size_t to = t * args->kq_stride + bias;
        Rotate(args->b + from, args->b_bias + bias, turns, args->d_state, args->n_angles,
               args->k + to);
        Rotate(args->c + from, args->c_bias + bias, turns, args->d_state, args->n_angles,
               args->q + to);
      }
    }
  }
}

void Mamba3Scan(const Mamba3ScanArgs* args) {
  const size_t rank = args->rank, d_state = args->d_state;
  const size_t head_dim = args->head_blocks * kLanes;
  for (size_t head = args->head_begin; head < args->head_end; ++head) {
    float* k_last = args->k_last + head * rank * d_state;
    for (size_t t = 0; t < args->tokens; ++t) {
      const float dt = args->dt[t * args->heads_stride + head];
      const float a = args->a[t * args->heads_stride + head];
      const float f = a >= 0.0f ? 1.0f + std::fabs(a) : 1.0f / (1.0f + std::fabs(a));
      const float rate = f < args->a_floor ? args->a_floor : f;  // NaN stays
      const float w = Sigmoid(args->trap[t * args->heads_stride + head]);
      const float decay = Exp(-(rate * dt));
      const float now = w * dt;
      const float before = ((1.0f - w) * dt) * decay;
      const float* k = args->k + t * args->kq_stride + head * rank * d_state;
      const float* q = args->q + t * args->kq_stride + head * rank * d_state;
      for (size_t channel = head * head_dim; channel < (head + 1) * head_dim; ++channel) {
        const float x = args->x[t * args->stride + channel];
        float* y = args->y + t * rank * args->stride + channel;
        float v[kMaxMimoRank], u[kMaxMimoRank], p[kMaxMimoRank];
        for (size_t r = 0; r < rank; ++r) {
          const bool mimo = args->mimo_x != nullptr;
          const float weight = mimo ? args->mimo_x[r * args->stride + channel] : 1.0f;
          v[r] = x * weight;
          u[r] = now * v[r];
          p[r] = before * (args->x_last[channel] * weight);
          y[r * args->stride] = 0.0f;
        }
        float* state = args->state + channel / kLanes * d_state * kLanes + channel % kLanes;
        for (size_t n = 0; n < d_state; ++n) {
          float s = decay * state[n * kLanes];
          for (size_t r = 0; r < rank; ++r) s = std::fmaf(p[r], k_last[r * d_state + n], s);
          for (size_t r = 0; r < rank; ++r) s = std::fmaf(u[r], k[r * d_state + n], s);
          state[n * kLanes] = s;
          for (size_t r = 0; r < rank; ++r) {
            y[r * args->stride] = std::fmaf(s, q[r * d_state + n], y[r * args->stride]);
          }
        }
        for (size_t r = 0; r < rank; ++r) {
          y[r * args->stride] = std::fmaf(args->d[channel], v[r], y[r * args->stride]);
        }
        args->x_last[channel] = x;
      }
      for (size_t i = 0; i < rank * d_state; ++i) k_last[i] = k[i];
    }
  }
}

void MimoGate(const float* y, const float* z, const float* mimo_z, const float* mimo_o, size_t rank,
              size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) {
    float acc = 0.0f;
    for (size_t r = 0; r < rank; ++r) {
      acc = std::fmaf(y[r * n + i] * Silu(z[i] * mimo_z[r * n + i]), mimo_o[r * n + i], acc);
    }
    out[i] = acc;
  }
}

}  // namespace

constinit const Kernels kScalarKernels = {
    .name = "scalar",
    .required = 0,
    .quantize_row = QuantizeRow,
    .matmul_q8 = MatmulQ8,
    .matmul_q4 = MatmulQ4,
    .matmul_f16 = MatmulFloat<uint16_t>,
    .matmul_f32 = MatmulFloat<float>,
    .rms_norm = RmsNorm,
    .softmax = Softmax,
    .silu_mul = Gate<Silu>,
    .relu2_mul = Gate<Relu2>,
    .gelu_mul = Gate<Gelu>,
    .add = Add,
    .add_scaled = AddScaled,
    .softplus = SoftplusClamped,
    .conv1d_silu = Conv1dSilu,
    .selective_scan = SelectiveScan,
    .ssd_scan = SsdScan,
    .ssd_scan_16 = SsdScan16,
    .mamba3_rotate = Mamba3Rotate,
    .mamba3_scan = Mamba3Scan,
    .mimo_gate = MimoGate,
};

}  // namespace adder
