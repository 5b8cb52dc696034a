// mamba3_rotate, mamba3_scan and mimo_gate for any width of vectors: the operations of
// runtime/kernels_scalar.cc on V::kWidth channels or angles at a time. Every table instantiates
// them with the vectors of its own folder. Everything here is local to the file that includes it.
#pragma once

#include "runtime/kernels.h"

namespace adder {
namespace {

// V has
//   Vector, Mask, kWidth;
//   Load, Store; LoadFirst, StoreFirst: of the first `count` lanes, the others 0 or left alone, all
//     of them if count >= kWidth;
//   Set, Add, Sub, Mul, Div, Fma(a, b, c) = a * b + c, Negate, Absolute, CopySign(magnitude, sign);
//   Less, LessEqual (false with NaN), Select(mask, yes, no); Exp, Silu;
//   kSisoVectors: how many vectors the scan of a prompt takes at once with one rank, a divisor or
//     multiple of a lane block; kMimoVectors: the same with four ranks.
template <class V>
struct Mamba3 {
  using Vector = typename V::Vector;
  static constexpr size_t kWidth = V::kWidth;

  // ---- The functions of runtime/scalar_math.h

  static Vector Sigmoid(Vector x) {
    return V::Div(V::Set(1.0f), V::Add(V::Set(1.0f), V::Exp(V::Negate(x))));
  }

  static Vector Tanh(Vector x) {
    const Vector one = V::Set(1.0f);
    const Vector magnitude = V::Absolute(x);
    const Vector z = V::Mul(x, x);
    Vector p = V::Fma(V::Set(kTanhC5), z, V::Set(kTanhC4));
    p = V::Fma(p, z, V::Set(kTanhC3));
    p = V::Fma(p, z, V::Set(kTanhC2));
    p = V::Fma(p, z, V::Set(kTanhC1));
    const Vector small = V::Fma(V::Mul(x, z), p, x);
    const Vector e = V::Exp(V::Add(magnitude, magnitude));
    const Vector large = V::Sub(one, V::Div(V::Set(2.0f), V::Add(one, e)));
    return V::Select(V::LessEqual(magnitude, V::Set(kTanhMax)), small, V::CopySign(large, x));
  }

  static Vector QuarterSine(Vector t) {
    const Vector x = V::Mul(V::Set(kTwoPi), t);
    const Vector z = V::Mul(x, x);
    Vector p = V::Fma(V::Set(kSinC4), z, V::Set(kSinC3));
    p = V::Fma(p, z, V::Set(kSinC2));
    p = V::Fma(p, z, V::Set(kSinC1));
    return V::Fma(V::Mul(x, z), p, x);
  }

  static Vector SinTurns(Vector t) {
    const Vector magnitude = V::Absolute(t);
    const Vector folded =
        V::Select(V::Less(V::Set(0.25f), magnitude), V::Sub(V::Set(0.5f), magnitude), magnitude);
    return QuarterSine(V::CopySign(folded, t));
  }

  static Vector CosTurns(Vector t) { return QuarterSine(V::Sub(V::Set(0.25f), V::Absolute(t))); }

  static Vector RoundToEven(Vector x) {
    return V::Sub(V::Add(x, V::Set(kRoundingShift)), V::Set(kRoundingShift));
  }

  // ---- mamba3_rotate: per token, biases for all heads, then a vector of angles for all heads, as
  // these share its tanh.

  static void AddBias(const float* row, const float* bias, size_t n, float* out) {
    for (size_t i = 0; i < n; i += kWidth) {
      const Vector sum = V::Add(V::LoadFirst(row + i, n - i), V::LoadFirst(bias + i, n - i));
      V::StoreFirst(out + i, sum, n - i);
    }
  }

  static void RotatePairs(Vector sin, Vector cos, size_t count, float* first, float* second) {
    const Vector t0 = V::LoadFirst(first, count);
    const Vector t1 = V::LoadFirst(second, count);
    V::StoreFirst(first, V::Fma(t0, cos, V::Negate(V::Mul(t1, sin))), count);
    V::StoreFirst(second, V::Fma(t0, sin, V::Mul(t1, cos)), count);
  }

  static void Rotate(const Mamba3RotateArgs* args) {
    const size_t d_state = args->d_state, n_angles = args->n_angles;
    const size_t per_head = args->rank * d_state;
    for (size_t t = 0; t < args->tokens; ++t) {
      float* k = args->k + t * args->kq_stride;
      float* q = args->q + t * args->kq_stride;
      for (size_t h = args->head_begin; h < args->head_end; ++h) {
        for (size_t r = 0; r < args->rank; ++r) {
          const size_t group = r * args->groups + h / args->heads_per_group;
          const size_t from = t * args->bc_stride + group * d_state;
          const size_t to = h * per_head + r * d_state;
          AddBias(args->b + from, args->b_bias + to, d_state, k + to);
          AddBias(args->c + from, args->c_bias + to, d_state, q + to);
        }
      }
      for (size_t s = 0; s < n_angles; s += kWidth) {
        const Vector angle = V::Load(args->angle + t * args->angle_stride + s);
        const Vector step = V::Mul(Tanh(angle), V::Set(0.5f));
        for (size_t h = args->head_begin; h < args->head_end; ++h) {
          float* turns = args->turns + h * RoundUp(n_angles, kLanes) + s;
          const Vector dt = V::Set(args->dt[t * args->dt_stride + h]);
          const Vector sum = V::Fma(step, dt, V::Load(turns));
          const Vector turned = V::Sub(sum, RoundToEven(sum));
          V::Store(turns, turned);
          const Vector sin = SinTurns(turned), cos = CosTurns(turned);
          for (size_t r = 0; r < args->rank; ++r) {
            const size_t to = h * per_head + r * d_state + s;
            RotatePairs(sin, cos, n_angles - s, k + to, k + to + d_state / 2);
            RotatePairs(sin, cos, n_angles - s, q + to, q + to + d_state / 2);
          }
        }
      }
    }
  }

  // ---- mamba3_scan: a head takes up to kTokens tokens at a time, and for all of them a few
  // vectors of channels, whose state then stays in the first cache.

  static constexpr size_t kTokens = 32;
  static constexpr size_t kBlock = kLanes / kWidth;  // vectors of a lane block

  struct Chunk {
    size_t tokens;
    const float* x;  // of the head, row 0 of the chunk
    const float* k;
    const float* q;
    const float* k_last;
    float* y;
    alignas(64) float decay[kTokens], now[kTokens], before[kTokens];
  };

  // dt, a, trap: of the head, row 0 of the chunk.
  static void Gates(const float* dt, const float* a, const float* trap, size_t stride,
                    float a_floor, Chunk* chunk) {
    alignas(64) float in[3][kTokens] = {};
    for (size_t t = 0; t < chunk->tokens; ++t) {
      in[0][t] = dt[t * stride];
      in[1][t] = a[t * stride];
      in[2][t] = trap[t * stride];
    }
    const Vector one = V::Set(1.0f), floor = V::Set(a_floor);
    for (size_t t = 0; t < chunk->tokens; t += kWidth) {
      const Vector step = V::Load(in[0] + t), raw = V::Load(in[1] + t);
      const Vector sum = V::Add(one, V::Absolute(raw));
      const Vector f = V::Select(V::LessEqual(V::Set(0.0f), raw), sum, V::Div(one, sum));
      const Vector rate = V::Select(V::Less(f, floor), floor, f);
      const Vector w = Sigmoid(V::Load(in[2] + t));
      const Vector decay = V::Exp(V::Negate(V::Mul(rate, step)));
      V::Store(chunk->decay + t, decay);
      V::Store(chunk->now + t, V::Mul(w, step));
      V::Store(chunk->before + t, V::Mul(V::Mul(V::Sub(one, w), step), decay));
    }
  }

  // kVectors vectors of channels from `channel` on, of a head that starts at `head_channel`.
  // kRank 0: any rank.
  template <size_t kRank, size_t kVectors>
  static void Channels(const Mamba3ScanArgs* args, const Chunk& chunk, size_t head_channel,
                       size_t channel) {
    const size_t rank = kRank != 0 ? kRank : args->rank;
    const size_t d_state = args->d_state;
    const float* mimo_x = args->mimo_x;
    float* base = args->state + channel / kLanes * d_state * kLanes + channel % kLanes;
    constexpr size_t kMax = kRank != 0 ? kRank : kMaxMimoRank;
    Vector p[kMax][kVectors], u[kMax][kVectors], y[kMax][kVectors], x_last[kVectors];
    for (size_t i = 0; i < kVectors; ++i) x_last[i] = V::Load(args->x_last + channel + i * kWidth);
    for (size_t t = 0; t < chunk.tokens; ++t) {
      const float* x = chunk.x + t * args->stride + channel - head_channel;
      const float* k = chunk.k + t * args->kq_stride;
      const float* q = chunk.q + t * args->kq_stride;
      const float* k_last = t == 0 ? chunk.k_last : k - args->kq_stride;
      float* out = chunk.y + t * args->rank * args->stride + channel - head_channel;
      const Vector decay = V::Set(chunk.decay[t]);
      const Vector now = V::Set(chunk.now[t]), before = V::Set(chunk.before[t]);
      for (size_t r = 0; r < rank; ++r) {
        for (size_t i = 0; i < kVectors; ++i) {
          Vector v = V::Load(x + i * kWidth), v_last = x_last[i];
          if (mimo_x != nullptr) {
            const Vector weight = V::Load(mimo_x + r * args->stride + channel + i * kWidth);
            v = V::Mul(v, weight);
            v_last = V::Mul(v_last, weight);
          }
          u[r][i] = V::Mul(now, v);
          p[r][i] = V::Mul(before, v_last);
          y[r][i] = V::Set(0.0f);
        }
      }
      for (size_t n = 0; n < d_state; ++n) {
        Vector s[kVectors];
        for (size_t i = 0; i < kVectors; ++i) {
          s[i] = V::Mul(decay, V::Load(StateOf(base, d_state, n, i)));
        }
        for (size_t r = 0; r < rank; ++r) {
          const Vector kn = V::Set(k_last[r * d_state + n]);
          for (size_t i = 0; i < kVectors; ++i) s[i] = V::Fma(p[r][i], kn, s[i]);
        }
        for (size_t r = 0; r < rank; ++r) {
          const Vector kn = V::Set(k[r * d_state + n]);
          for (size_t i = 0; i < kVectors; ++i) s[i] = V::Fma(u[r][i], kn, s[i]);
        }
        for (size_t i = 0; i < kVectors; ++i) V::Store(StateOf(base, d_state, n, i), s[i]);
        for (size_t r = 0; r < rank; ++r) {
          const Vector qn = V::Set(q[r * d_state + n]);
          for (size_t i = 0; i < kVectors; ++i) y[r][i] = V::Fma(s[i], qn, y[r][i]);
        }
      }
      for (size_t i = 0; i < kVectors; ++i) {
        const Vector d = V::Load(args->d + channel + i * kWidth);
        x_last[i] = V::Load(x + i * kWidth);
        for (size_t r = 0; r < rank; ++r) {
          Vector v = x_last[i];
          if (mimo_x != nullptr) {
            v = V::Mul(v, V::Load(mimo_x + r * args->stride + channel + i * kWidth));
          }
          V::Store(out + r * args->stride + i * kWidth, V::Fma(d, v, y[r][i]));
        }
      }
    }
    for (size_t i = 0; i < kVectors; ++i) V::Store(args->x_last + channel + i * kWidth, x_last[i]);
  }

  // State n of vector i.
  static float* StateOf(float* base, size_t d_state, size_t n, size_t i) {
    return base + (i / kBlock * d_state + n) * kLanes + i % kBlock * kWidth;
  }

  // All channels of a head, kVectors at a time; the rest in lane blocks.
  template <size_t kRank, size_t kVectors>
  static void Head(const Mamba3ScanArgs* args, const Chunk& chunk, size_t head_channel) {
    const size_t end = head_channel + args->head_blocks * kLanes;
    size_t channel = head_channel;
    for (; end - channel >= kVectors * kWidth; channel += kVectors * kWidth) {
      Channels<kRank, kVectors>(args, chunk, head_channel, channel);
    }
    for (; channel < end; channel += kLanes) {
      Channels<kRank, kBlock>(args, chunk, head_channel, channel);
    }
  }

  static void Scan(const Mamba3ScanArgs* args) {
    const size_t per_head = args->rank * args->d_state;
    Chunk chunk;
    for (size_t head = args->head_begin; head < args->head_end; ++head) {
      float* k_last = args->k_last + head * per_head;
      const size_t channel = head * args->head_blocks * kLanes;
      for (size_t first = 0; first < args->tokens; first += chunk.tokens) {
        const size_t left = args->tokens - first;
        chunk.tokens = left < kTokens ? left : kTokens;
        chunk.x = args->x + first * args->stride + channel;
        chunk.k = args->k + first * args->kq_stride + head * per_head;
        chunk.q = args->q + first * args->kq_stride + head * per_head;
        chunk.k_last = k_last;
        chunk.y = args->y + first * args->rank * args->stride + channel;
        const size_t scalars = first * args->heads_stride + head;
        Gates(args->dt + scalars, args->a + scalars, args->trap + scalars, args->heads_stride,
              args->a_floor, &chunk);
        if (args->rank == 1 && chunk.tokens == 1) {
          // One lane block at a time: memory serves one stream of reads and writes best.
          Head<1, kBlock>(args, chunk, channel);
        } else if (args->rank == 1) {
          Head<1, V::kSisoVectors>(args, chunk, channel);
        } else if (args->rank == 4) {
          Head<4, V::kMimoVectors>(args, chunk, channel);
        } else {
          Head<0, 1>(args, chunk, channel);
        }
        const float* newest = chunk.k + (chunk.tokens - 1) * args->kq_stride;
        __builtin_memcpy(k_last, newest, per_head * sizeof(float));
      }
    }
  }

  // ---- mimo_gate

  static void Gate(const float* y, const float* z, const float* mimo_z, const float* mimo_o,
                   size_t rank, size_t n, float* out) {
    for (size_t i = 0; i < n; i += kWidth) {
      const Vector gate = V::Load(z + i);
      Vector acc = V::Set(0.0f);
      for (size_t r = 0; r < rank; ++r) {
        const size_t at = r * n + i;
        const Vector gated = V::Mul(V::Load(y + at), V::Silu(V::Mul(gate, V::Load(mimo_z + at))));
        acc = V::Fma(gated, V::Load(mimo_o + at), acc);
      }
      V::Store(out + i, acc);
    }
  }
};

}  // namespace
}  // namespace adder
