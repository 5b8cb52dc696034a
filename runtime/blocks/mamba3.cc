// Mamba-3 block, SISO and MIMO: no convolution but an input that looks one token back, a decay that
// depends on the data, B and C rotated by angles that accumulate. Per head h and rank r
//
//   A = -max(f(a), floor), f(a) = a >= 0 ? 1 + a : 1 / (1 - a);  w = sigmoid(trap)
//   angle[s] += pi tanh(angle_in[s]) dt
//   k[r] = rotate(norm(B[r, group]) + b_bias[r]),  q[r] = rotate(norm(C[r, group]) + c_bias[r])
//   v[r] = x mimo_x[r]
//   S = exp(A dt) S + (1 - w) dt exp(A dt) sum_r v_last[r] k_last[r] + w dt sum_r v[r] k[r]
//   y[r] = S q[r] + D v[r];  y[r] = norm(y[r]) if there is an out_norm
//   out = out_proj(sum_r mimo_o[r] y[r] silu(z mimo_z[r]))
//
// where SISO has one rank and no mimo weights. Heads are padded to kLanes channels, as in Mamba-2.
#include <algorithm>
#include <cmath>
#include <memory>

#include "runtime/block.h"
#include "runtime/linear.h"
#include "runtime/tensor_binder.h"

namespace adder {
namespace {

constexpr float kBcNormEps = 1e-5f, kOutNormEps = 1e-5f;  // fixed in the published models

// k and q are as large as the heads times the ranks, far more than B and C, so they exist for this
// many tokens at a time.
constexpr size_t kRotated = 16;

class Mamba3Block final : public Block {
 public:
  Mamba3Block(const Mamba3Config& config, float norm_eps, uint32_t d_model, TensorBinder& bind)
      : c_(config),
        norm_eps_(norm_eps),
        d_model_(d_model),
        head_blocks_(RowBlocks(config.head_dim)),
        channels_(config.n_heads * head_blocks_ * kLanes),
        bc_(size_t{config.rank} * config.n_groups * config.d_state),
        bc_stride_(RoundUp(bc_, kLanes)),
        heads_(RoundUp(config.n_heads, kLanes)),
        angles_(RoundUp(config.n_angles, kLanes)),
        kq_(size_t{config.n_heads} * config.rank * config.d_state),
        norm_(bind.Floats("norm", {d_model})),
        in_z_(bind.Matrix("in_z", channels_, d_model)),
        in_x_(bind.Matrix("in_x", channels_, d_model)),
        in_b_(bind.Matrix("in_b", bc_, d_model)),
        in_c_(bind.Matrix("in_c", bc_, d_model)),
        in_dt_(bind.Matrix("in_dt", c_.n_heads, d_model)),
        in_a_(bind.Matrix("in_a", c_.n_heads, d_model)),
        in_trap_(bind.Matrix("in_trap", c_.n_heads, d_model)),
        in_angle_(c_.n_angles > 0 ? bind.Matrix("in_angle", c_.n_angles, d_model) : Linear()),
        dt_bias_(bind.Floats("dt_bias", {heads_})),
        d_(bind.Floats("d", {channels_})),
        b_norm_(bind.Floats("b_norm", {c_.d_state})),
        c_norm_(bind.Floats("c_norm", {c_.d_state})),
        b_bias_(bind.Floats("b_bias", {c_.n_heads, c_.rank, c_.d_state})),
        c_bias_(bind.Floats("c_bias", {c_.n_heads, c_.rank, c_.d_state})),
        mimo_x_(c_.mimo ? bind.Floats("mimo_x", {c_.rank, channels_}) : nullptr),
        mimo_z_(c_.mimo ? bind.Floats("mimo_z", {c_.rank, channels_}) : nullptr),
        mimo_o_(c_.mimo ? bind.Floats("mimo_o", {c_.rank, channels_}) : nullptr),
        out_norm_(c_.out_norm ? bind.Floats("out_norm", {channels_}) : nullptr),
        out_proj_(bind.Matrix("out_proj", d_model, channels_)) {}

  size_t StateFloats(StateType /*type*/) const override {
    Arena measure;
    CarveState(&measure);
    return measure.used() / sizeof(float);
  }

  size_t ScratchBytes(size_t max_tokens) const override {
    Arena measure;
    Carve(&measure, max_tokens);
    return measure.used();
  }

  void Forward(const ForwardArgs& args) const noexcept override {
    const size_t tokens = args.tokens;
    Arena scratch = args.scratch;
    Buffers s = Carve(&scratch, args.max_tokens);
    Arena state_arena(args.state, StateFloats(args.state_type) * sizeof(float));
    const State state = CarveState(&state_arena);

    s.outer.Set(s.u, args.stride, ProjectionsQuantized());
    args.team.Run(RowBytes(tokens, d_model_), [&](const Worker& w) {
      const Range mine = w.Share(tokens);
      w.RmsNorm(mine, args.input, args.stride, norm_, d_model_, static_cast<float>(d_model_),
                norm_eps_, s.u, args.stride);
      w.Quantize(mine, &s.outer);
    });
    args.team.Run(
        in_z_.bytes() + in_x_.bytes() + in_b_.bytes() + in_c_.bytes(), [&](const Worker& w) {
          const auto project = [&](const Linear& in, float* y, size_t stride) {
            w.Linear(in, w.Share(in.row_blocks()), s.outer, tokens, y, stride);
          };
          project(in_z_, s.z, channels_);
          project(in_x_, s.x, channels_);
          project(in_b_, s.b, bc_stride_);
          project(in_c_, s.c, bc_stride_);
          project(in_dt_, s.dt, heads_);
          project(in_a_, s.a, heads_);
          project(in_trap_, s.trap, heads_);
          project(in_angle_, s.angle, angles_);
          w.Softplus(w.Share(in_dt_.row_blocks()), tokens, dt_bias_, 0.0f, INFINITY, s.dt, heads_);
        });
    args.team.Run(RowBytes(tokens, 2 * bc_), [&](const Worker& w) {
      const Range mine = w.Share(tokens);
      NormStates(w, mine, b_norm_, s.b);
      NormStates(w, mine, c_norm_, s.c);
    });
    args.team.Run(2 * channels_ * c_.d_state * sizeof(float), [&](const Worker& w) {
      const Range mine = w.Share(c_.n_heads);
      for (size_t first = 0; first < tokens; first += kRotated) {
        const size_t count = std::min(kRotated, tokens - first);
        w.Mamba3Rotate(mine, RotateArgs(s, state, first, count));
        w.Mamba3Scan(mine, ScanArgs(s, state, first, count));
      }
    });

    // The gated output takes the place of x (MIMO) or y.
    float* gated = c_.mimo ? s.x : s.y;
    s.inner.Set(gated, channels_, out_proj_.quantized());
    args.team.Run(RowBytes(tokens, channels_ * c_.rank), [&](const Worker& w) {
      const Range mine = w.Share(tokens);
      if (c_.out_norm) NormHeads(w, mine, s.y);
      if (c_.mimo) {
        w.MimoGate(mine, s.y, s.z, mimo_z_, mimo_o_, c_.rank, channels_, gated);
      } else {
        w.SiluMul(mine, s.z, gated, channels_);
      }
      w.Quantize(mine, &s.inner);
    });
    args.team.Run(out_proj_.bytes(), [&](const Worker& w) {
      w.LinearAdd(out_proj_, w.Share(out_proj_.row_blocks()), s.inner, tokens, s.u, args.hidden,
                  args.stride);
    });
  }

 private:
  struct Buffers {
    float* u;                  // [tokens][d_model]
    float *z, *x;              // [tokens][channels]
    float *b, *c;              // [tokens][rank][n_groups][d_state], rows padded to bc_stride
    float *dt, *a, *trap;      // [tokens][heads]
    float* angle;              // [tokens][angles]
    float *k, *q;              // [kRotated tokens][n_heads][rank][d_state]
    float* y;                  // [tokens][rank][channels]
    Activations outer, inner;  // quantized rows of d_model and of all channels
  };

  struct State {
    float* turns;   // [n_heads][angles]
    float* s;       // [channels / kLanes][d_state][kLanes]
    float* x_last;  // [channels]
    float* k_last;  // [n_heads][rank][d_state]
  };

  Buffers Carve(Arena* arena, size_t max_tokens) const {
    Buffers s = {};
    s.u = arena->Take<float>(max_tokens * out_proj_.padded_rows());
    s.z = arena->Take<float>(max_tokens * channels_);
    s.x = arena->Take<float>(max_tokens * channels_);
    s.b = arena->Take<float>(max_tokens * bc_stride_);
    s.c = arena->Take<float>(max_tokens * bc_stride_);
    s.dt = arena->Take<float>(max_tokens * heads_);
    s.a = arena->Take<float>(max_tokens * heads_);
    s.trap = arena->Take<float>(max_tokens * heads_);
    s.angle = arena->Take<float>(max_tokens * angles_);
    s.k = arena->Take<float>(std::min(max_tokens, kRotated) * kq_);
    s.q = arena->Take<float>(std::min(max_tokens, kRotated) * kq_);
    s.y = arena->Take<float>(max_tokens * c_.rank * channels_);
    s.outer = Activations::Carve(arena, max_tokens, d_model_);
    s.inner = Activations::Carve(arena, max_tokens, channels_);
    return s;
  }

  State CarveState(Arena* arena) const {
    State s = {};
    s.turns = arena->Take<float>(c_.n_heads * angles_);
    s.s = arena->Take<float>(channels_ * c_.d_state);
    s.x_last = arena->Take<float>(channels_);
    s.k_last = arena->Take<float>(kq_);
    return s;
  }

  bool ProjectionsQuantized() const {
    return in_z_.quantized() || in_x_.quantized() || in_b_.quantized() || in_c_.quantized() ||
           in_dt_.quantized() || in_a_.quantized() || in_trap_.quantized() || in_angle_.quantized();
  }

  // B or C: every rank and group on its own.
  void NormStates(const Worker& w, Range tokens, const float* weight, float* rows) const {
    for (size_t i = 0; i < size_t{c_.rank} * c_.n_groups; ++i) {
      float* part = rows + i * c_.d_state;
      w.RmsNorm(tokens, part, bc_stride_, weight, c_.d_state, static_cast<float>(c_.d_state),
                kBcNormEps, part, bc_stride_);
    }
  }

  // y: every rank and head on its own.
  void NormHeads(const Worker& w, Range tokens, float* y) const {
    const size_t width = head_blocks_ * kLanes, stride = c_.rank * channels_;
    for (size_t i = 0; i < size_t{c_.rank} * c_.n_heads; ++i) {
      w.RmsNorm(tokens, y + i * width, stride, out_norm_ + i % c_.n_heads * width, width,
                static_cast<float>(c_.head_dim), kOutNormEps, y + i * width, stride);
    }
  }

  // `count` tokens from `first` on.
  Mamba3RotateArgs RotateArgs(const Buffers& s, const State& state, size_t first,
                              size_t count) const {
    return {.tokens = count,
            .head_begin = 0,
            .head_end = c_.n_heads,
            .d_state = c_.d_state,
            .rank = c_.rank,
            .groups = c_.n_groups,
            .n_angles = c_.n_angles,
            .heads_per_group = c_.n_heads / c_.n_groups,
            .bc_stride = bc_stride_,
            .dt_stride = heads_,
            .angle_stride = angles_,
            .kq_stride = kq_,
            .b = s.b + first * bc_stride_,
            .c = s.c + first * bc_stride_,
            .b_bias = b_bias_,
            .c_bias = c_bias_,
            .dt = s.dt + first * heads_,
            .angle = s.angle + first * angles_,
            .turns = state.turns,
            .k = s.k,
            .q = s.q};
  }

  Mamba3ScanArgs ScanArgs(const Buffers& s, const State& state, size_t first, size_t count) const {
    return {.tokens = count,
            .head_begin = 0,
            .head_end = c_.n_heads,
            .head_blocks = head_blocks_,
            .d_state = c_.d_state,
            .rank = c_.rank,
            .stride = channels_,
            .heads_stride = heads_,
            .kq_stride = kq_,
            .a_floor = c_.a_floor,
            .x = s.x + first * channels_,
            .dt = s.dt + first * heads_,
            .a = s.a + first * heads_,
            .trap = s.trap + first * heads_,
            .k = s.k,
            .q = s.q,
            .mimo_x = mimo_x_,
            .d = d_,
            .state = state.s,
            .k_last = state.k_last,
            .x_last = state.x_last,
            .y = s.y + first * c_.rank * channels_};
  }

  Mamba3Config c_;
  float norm_eps_;
  size_t d_model_;
  size_t head_blocks_;                       // lane blocks of one head
  size_t channels_;                          // n_heads * head_blocks * kLanes
  size_t bc_, bc_stride_;                    // rank * n_groups * d_state, and padded to kLanes
  size_t heads_, angles_;                    // n_heads and n_angles padded to kLanes
  size_t kq_;                                // n_heads * rank * d_state
  const float* norm_;                        // [d_model]
  Linear in_z_, in_x_;                       // [channels, d_model]
  Linear in_b_, in_c_;                       // [rank * n_groups * d_state, d_model]
  Linear in_dt_, in_a_, in_trap_;            // [n_heads, d_model]
  Linear in_angle_;                          // [n_angles, d_model]; nothing without angles
  const float* dt_bias_;                     // [heads]
  const float* d_;                           // [channels]
  const float *b_norm_, *c_norm_;            // [d_state]
  const float *b_bias_, *c_bias_;            // [n_heads][rank][d_state]
  const float *mimo_x_, *mimo_z_, *mimo_o_;  // [rank][channels]; nullptr: SISO
  const float* out_norm_;                    // [channels] or nullptr
  Linear out_proj_;                          // [d_model, channels]
};

}  // namespace

Result<std::unique_ptr<Block>> MakeMamba3Block(const LayerConfig& layer, uint32_t d_model,
                                               TensorBinder binder) {
  auto block = std::make_unique<Mamba3Block>(std::get<Mamba3Config>(layer.mixer), layer.norm_eps,
                                             d_model, binder);
  if (!binder.status().ok()) return binder.status();
  return std::unique_ptr<Block>(std::move(block));
}

}  // namespace adder
