// Mamba-1 block (Gu and Dao, arXiv:2312.00752) and its variants: RMS norms on dt, B and C, without
// weights (Falcon-Mamba) or with (Jamba).
#include <memory>

#include "runtime/block.h"
#include "runtime/linear.h"
#include "runtime/tensor_binder.h"

namespace adder {
namespace {

class Mamba1Block final : public Block {
 public:
  Mamba1Block(const Mamba1Config& config, float norm_eps, uint32_t d_model, TensorBinder& bind)
      : c_(config),
        norm_eps_(norm_eps),
        d_model_(d_model),
        channels_(RowBlocks(config.d_inner) * kLanes),
        norm_(bind.Floats("norm", {d_model})),
        in_x_(bind.Matrix("in_x", c_.d_inner, d_model)),
        in_z_(bind.Matrix("in_z", c_.d_inner, d_model)),
        conv_weight_(bind.Floats("conv.weight", {channels_ / kLanes, c_.d_conv, kLanes})),
        conv_bias_(bind.Floats("conv.bias", {channels_})),
        x_dt_(bind.Matrix("x_dt", c_.dt_rank, c_.d_inner)),
        x_b_(bind.Matrix("x_b", c_.d_state, c_.d_inner)),
        x_c_(bind.Matrix("x_c", c_.d_state, c_.d_inner)),
        dt_norm_(config.bcdt_norm_weights ? bind.Floats("dt_norm", {c_.dt_rank}) : nullptr),
        b_norm_(config.bcdt_norm_weights ? bind.Floats("b_norm", {c_.d_state}) : nullptr),
        c_norm_(config.bcdt_norm_weights ? bind.Floats("c_norm", {c_.d_state}) : nullptr),
        dt_proj_(bind.Matrix("dt_proj", c_.d_inner, c_.dt_rank)),
        dt_bias_(bind.Floats("dt_bias", {channels_})),
        a_(bind.Floats("a", {channels_ / kLanes, c_.d_state, kLanes})),
        d_(bind.Floats("d", {channels_})),
        out_proj_(bind.Matrix("out_proj", d_model, c_.d_inner)) {}

  size_t StateFloats(StateType /*type*/) const override {
    return ConvStateFloats() + channels_ * c_.d_state;
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
    float* conv_state = args.state;
    float* ssm_state = args.state + ConvStateFloats();

    s.outer.Set(s.u, args.stride, in_x_.quantized() || in_z_.quantized());
    args.team.Run(RowBytes(tokens, d_model_), [&](const Worker& w) {
      const Range mine = w.Share(tokens);
      w.RmsNorm(mine, args.input, args.stride, norm_, d_model_, static_cast<float>(d_model_),
                norm_eps_, s.u, args.stride);
      w.Quantize(mine, &s.outer);
    });
    args.team.Run(in_x_.bytes() + in_z_.bytes(), [&](const Worker& w) {
      const Range mine = w.Share(channels_ / kLanes);
      w.Linear(in_x_, mine, s.outer, tokens, s.x, channels_);
      w.Linear(in_z_, mine, s.outer, tokens, s.z, channels_);
      w.Conv1dSilu(mine, conv_weight_, conv_bias_, c_.d_conv, tokens, channels_, conv_state, s.x);
    });

    s.inner.Set(s.x, channels_, x_dt_.quantized() || x_b_.quantized() || x_c_.quantized());
    args.team.Run(RowBytes(tokens, channels_),
                  [&](const Worker& w) { w.Quantize(w.Share(tokens), &s.inner); });
    args.team.Run(x_dt_.bytes() + x_b_.bytes() + x_c_.bytes(), [&](const Worker& w) {
      w.Linear(x_dt_, w.Share(x_dt_.row_blocks()), s.inner, tokens, s.dt_low, x_dt_.padded_rows());
      w.Linear(x_b_, w.Share(x_b_.row_blocks()), s.inner, tokens, s.b, x_b_.padded_rows());
      w.Linear(x_c_, w.Share(x_c_.row_blocks()), s.inner, tokens, s.c, x_c_.padded_rows());
    });
    s.rank.Set(s.dt_low, x_dt_.padded_rows(), dt_proj_.quantized());
    args.team.Run(RowBytes(tokens, x_dt_.padded_rows()), [&](const Worker& w) {
      const Range mine = w.Share(tokens);
      if (c_.bcdt_norm_eps > 0) {
        NormRows(w, mine, x_dt_, dt_norm_, s.dt_low);
        NormRows(w, mine, x_b_, b_norm_, s.b);
        NormRows(w, mine, x_c_, c_norm_, s.c);
      }
      w.Quantize(mine, &s.rank);
    });

    const SelectiveScanArgs scan = {.tokens = tokens,
                                    .channel_blocks = channels_ / kLanes,
                                    .d_state = c_.d_state,
                                    .stride = channels_,
                                    .bc_stride = x_b_.padded_rows(),
                                    .x = s.x,
                                    .dt = s.dt,
                                    .z = s.z,
                                    .b = s.b,
                                    .c = s.c,
                                    .a = a_,
                                    .d = d_,
                                    .state = ssm_state};
    args.team.Run(dt_proj_.bytes() + 3 * channels_ * c_.d_state * sizeof(float),
                  [&](const Worker& w) {
                    const Range mine = w.Share(channels_ / kLanes);
                    w.Linear(dt_proj_, mine, s.rank, tokens, s.dt, channels_);
                    w.Softplus(mine, tokens, dt_bias_, 0.0f, std::numeric_limits<float>::infinity(),
                               s.dt, channels_);
                    w.SelectiveScan(mine, scan);
                  });

    s.inner.Set(s.x, channels_, out_proj_.quantized());
    args.team.Run(RowBytes(tokens, channels_),
                  [&](const Worker& w) { w.Quantize(w.Share(tokens), &s.inner); });
    args.team.Run(out_proj_.bytes(), [&](const Worker& w) {
      w.LinearAdd(out_proj_, w.Share(out_proj_.row_blocks()), s.inner, tokens, s.u, args.hidden,
                  args.stride);
    });
  }

 private:
  struct Buffers {
    float* u;           // [tokens][d_model]
    float *x, *z, *dt;  // [tokens][channels]
    float *dt_low, *b, *c;
    Activations outer, inner, rank;  // quantized rows of d_model, d_inner, dt_rank values
  };

  Buffers Carve(Arena* arena, size_t max_tokens) const {
    Buffers s = {};
    s.u = arena->Take<float>(max_tokens * out_proj_.padded_rows());
    s.x = arena->Take<float>(max_tokens * channels_);
    s.z = arena->Take<float>(max_tokens * channels_);
    s.dt = arena->Take<float>(max_tokens * channels_);
    s.dt_low = arena->Take<float>(max_tokens * x_dt_.padded_rows());
    s.b = arena->Take<float>(max_tokens * x_b_.padded_rows());
    s.c = arena->Take<float>(max_tokens * x_c_.padded_rows());
    s.outer = Activations::Carve(arena, max_tokens, d_model_);
    s.inner = Activations::Carve(arena, max_tokens, c_.d_inner);
    s.rank = Activations::Carve(arena, max_tokens, c_.dt_rank);
    return s;
  }

  size_t ConvStateFloats() const { return channels_ * (c_.d_conv - 1); }

  // RMS norm of the outputs of one part of x_proj.
  void NormRows(const Worker& w, Range tokens, const Linear& part, const float* weight,
                float* rows) const {
    w.RmsNorm(tokens, rows, part.padded_rows(), weight, part.rows, static_cast<float>(part.rows),
              c_.bcdt_norm_eps, rows, part.padded_rows());
  }

  Mamba1Config c_;
  float norm_eps_;
  size_t d_model_;
  size_t channels_;                // d_inner padded to kLanes
  const float* norm_;              // [d_model]
  Linear in_x_, in_z_;             // [d_inner, d_model]
  const float* conv_weight_;       // [channels / kLanes][d_conv][kLanes]
  const float* conv_bias_;         // [channels]
  Linear x_dt_;                    // [dt_rank, d_inner]
  Linear x_b_, x_c_;               // [d_state, d_inner]
  const float* dt_norm_;           // [dt_rank] or nullptr
  const float *b_norm_, *c_norm_;  // [d_state] or nullptr
  Linear dt_proj_;                 // [d_inner, dt_rank]
  const float* dt_bias_;           // [channels]
  const float* a_;                 // [channels / kLanes][d_state][kLanes], -exp(A_log) * log2(e)
  const float* d_;                 // [channels]
  Linear out_proj_;                // [d_model, d_inner]
};

}  // namespace

Result<std::unique_ptr<Block>> MakeMamba1Block(const LayerConfig& layer, uint32_t d_model,
                                               TensorBinder binder) {
  auto block = std::make_unique<Mamba1Block>(std::get<Mamba1Config>(layer.mixer), layer.norm_eps,
                                             d_model, binder);
  if (!binder.status().ok()) return binder.status();
  return std::unique_ptr<Block>(std::move(block));
}

}  // namespace adder
