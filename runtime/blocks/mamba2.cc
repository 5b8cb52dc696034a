// Mamba-2 block (Dao and Gu, arXiv:2405.21060).
//
// In the file every head is head_dim padded to kLanes channels wide, so that no lane block belongs
// to two heads; padding channels have zero weights and stay 0.
//
// With d_mlp the input of the output projection is (y; up * silu(gate)), its matrix stored in two
// parts: h += out_proj y + mlp_down (mlp_up u * silu(mlp_gate u)).
#include <memory>

#include "runtime/block.h"
#include "runtime/blocks/feed_forward.h"
#include "runtime/linear.h"
#include "runtime/tensor_binder.h"

namespace adder {
namespace {

class Mamba2Block final : public Block {
 public:
  Mamba2Block(const Mamba2Config& config, float norm_eps, uint32_t d_model, TensorBinder& bind)
      : c_(config),
        norm_eps_(norm_eps),
        d_model_(d_model),
        head_blocks_(RowBlocks(config.head_dim)),
        channels_(config.n_heads * head_blocks_ * kLanes),
        bc_(size_t{2} * config.n_groups * config.d_state),
        bc_channels_(RoundUp(bc_, kLanes)),
        heads_(RoundUp(config.n_heads, kLanes)),
        norm_(bind.Floats("norm", {d_model})),
        in_z_(bind.Matrix("in_z", channels_, d_model)),
        in_x_(bind.Matrix("in_x", channels_, d_model)),
        in_bc_(bind.Matrix("in_bc", bc_, d_model)),
        in_dt_(bind.Matrix("in_dt", c_.n_heads, d_model)),
        conv_x_weight_(bind.Floats("conv_x.weight", {channels_ / kLanes, c_.d_conv, kLanes})),
        conv_x_bias_(bind.Floats("conv_x.bias", {channels_})),
        conv_bc_weight_(bind.Floats("conv_bc.weight", {bc_channels_ / kLanes, c_.d_conv, kLanes})),
        conv_bc_bias_(bind.Floats("conv_bc.bias", {bc_channels_})),
        dt_bias_(bind.Floats("dt_bias", {heads_})),
        a_(bind.Floats("a", {c_.n_heads})),
        d_(bind.Floats("d", {channels_})),
        gated_norm_(c_.gating == Gating::kGateOnly ? nullptr
                                                   : bind.Floats("gated_norm", {channels_})),
        out_proj_(bind.Matrix("out_proj", d_model, channels_)) {
    if (c_.d_mlp > 0) mlp_ = FeedForward({.d_ff = c_.d_mlp}, d_model, "mlp_", bind);
  }

  size_t StateFloats(StateType type) const override {
    const size_t ssm =
        type == StateType::kF32 ? channels_ * c_.d_state : channels_ * c_.d_state / 2 + channels_;
    return (channels_ + bc_channels_) * (c_.d_conv - 1) + ssm;
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
    float* conv_x_state = args.state;
    float* conv_bc_state = conv_x_state + channels_ * (c_.d_conv - 1);
    float* ssm_state = conv_bc_state + bc_channels_ * (c_.d_conv - 1);

    s.outer.Set(s.u, args.stride,
                in_z_.quantized() || in_x_.quantized() || in_bc_.quantized() || in_dt_.quantized());
    if (c_.d_mlp > 0) s.mlp.Set(s.mlp_y, mlp_.width(), mlp_.down().quantized());
    args.team.Run(RowBytes(tokens, d_model_), [&](const Worker& w) {
      const Range mine = w.Share(tokens);
      w.RmsNorm(mine, args.input, args.stride, norm_, d_model_, static_cast<float>(d_model_),
                norm_eps_, s.u, args.stride);
      w.Quantize(mine, &s.outer);
    });
    const uint64_t in_bytes = in_z_.bytes() + in_x_.bytes() + in_bc_.bytes() + mlp_.input_bytes();
    args.team.Run(in_bytes, [&](const Worker& w) {
      const Range mine = w.Share(channels_ / kLanes);
      w.Linear(in_z_, mine, s.outer, tokens, s.z, channels_);
      w.Linear(in_x_, mine, s.outer, tokens, s.x, channels_);
      w.Conv1dSilu(mine, conv_x_weight_, conv_x_bias_, c_.d_conv, tokens, channels_, conv_x_state,
                   s.x);
      const Range bc = w.Share(bc_channels_ / kLanes);
      w.Linear(in_bc_, bc, s.outer, tokens, s.bc, bc_channels_);
      w.Conv1dSilu(bc, conv_bc_weight_, conv_bc_bias_, c_.d_conv, tokens, bc_channels_,
                   conv_bc_state, s.bc);
      const Range dt = w.Share(heads_ / kLanes);
      w.Linear(in_dt_, dt, s.outer, tokens, s.dt, heads_);
      w.Softplus(dt, tokens, dt_bias_, c_.dt_min, c_.dt_max, s.dt, heads_);
      if (c_.d_mlp > 0) mlp_.Expand(w, s.outer, tokens, s.mlp_z, s.mlp_y, &s.mlp);
    });

    const SsdScanArgs scan = {.tokens = tokens,
                              .head_begin = 0,
                              .head_end = c_.n_heads,
                              .head_blocks = head_blocks_,
                              .d_state = c_.d_state,
                              .heads_per_group = c_.n_heads / c_.n_groups,
                              .stride = channels_,
                              .dt_stride = heads_,
                              .bc_stride = bc_channels_,
                              .x = s.x,
                              .dt = s.dt,
                              .b = s.bc,
                              .c = s.bc + size_t{c_.n_groups} * c_.d_state,
                              .a = a_,
                              .d = d_,
                              .state = ssm_state,
                              // 16-bit states lie behind the limits of their channels.
                              .values = reinterpret_cast<int16_t*>(ssm_state + channels_),
                              .limits = ssm_state};
    args.team.Run(2 * channels_ * c_.d_state * sizeof(float), [&](const Worker& w) {
      w.SsdScan(w.Share(c_.n_heads), scan, args.state_type == StateType::kInt16);
    });

    s.inner.Set(s.x, channels_, out_proj_.quantized());
    args.team.Run(RowBytes(tokens, channels_), [&](const Worker& w) {
      const Range mine = w.Share(tokens);
      if (c_.gating != Gating::kNormThenGate) w.SiluMul(mine, s.z, s.x, channels_);
      if (c_.gating != Gating::kGateOnly) NormGroups(w, mine, s.x);
      if (c_.gating == Gating::kNormThenGate) w.SiluMul(mine, s.z, s.x, channels_);
      w.Quantize(mine, &s.inner);
    });
    args.team.Run(out_proj_.bytes() + mlp_.down().bytes(), [&](const Worker& w) {
      const Range mine = w.Share(out_proj_.row_blocks());
      w.LinearAdd(out_proj_, mine, s.inner, tokens, s.u, args.hidden, args.stride);
      if (c_.d_mlp == 0) return;
      w.LinearAdd(mlp_.down(), mine, s.mlp, tokens, s.u, args.hidden, args.stride);
    });
  }

 private:
  struct Buffers {
    float* u;                  // [tokens][d_model]
    float *x, *z;              // [tokens][channels]
    float* bc;                 // [tokens][bc_channels], B then C, each [n_groups][d_state]
    float* dt;                 // [tokens][heads]
    Activations outer, inner;  // quantized rows of d_model and of all channels
    float *mlp_z, *mlp_y;      // [tokens][d_mlp padded]
    Activations mlp;
  };

  Buffers Carve(Arena* arena, size_t max_tokens) const {
    Buffers s = {};
    s.u = arena->Take<float>(max_tokens * out_proj_.padded_rows());
    s.x = arena->Take<float>(max_tokens * channels_);
    s.z = arena->Take<float>(max_tokens * channels_);
    s.bc = arena->Take<float>(max_tokens * bc_channels_);
    s.dt = arena->Take<float>(max_tokens * heads_);
    s.outer = Activations::Carve(arena, max_tokens, d_model_);
    s.inner = Activations::Carve(arena, max_tokens, channels_);
    if (c_.d_mlp > 0) {
      s.mlp_z = arena->Take<float>(max_tokens * mlp_.width());
      s.mlp_y = arena->Take<float>(max_tokens * mlp_.width());
      s.mlp = Activations::Carve(arena, max_tokens, c_.d_mlp);
    }
    return s;
  }

  // The gated norm: each of norm_groups parts of a row on its own.
  void NormGroups(const Worker& w, Range tokens, float* y) const {
    const size_t width = channels_ / c_.norm_groups;
    const float count = static_cast<float>(c_.n_heads / c_.norm_groups * c_.head_dim);
    for (size_t g = 0; g < c_.norm_groups; ++g) {
      w.RmsNorm(tokens, y + g * width, channels_, gated_norm_ + g * width, width, count,
                c_.gated_norm_eps, y + g * width, channels_);
    }
  }

  Mamba2Config c_;
  float norm_eps_;
  size_t d_model_;
  size_t head_blocks_;           // lane blocks of one head
  size_t channels_;              // n_heads * head_blocks * kLanes
  size_t bc_, bc_channels_;      // 2 * n_groups * d_state, and padded to kLanes
  size_t heads_;                 // n_heads padded to kLanes
  const float* norm_;            // [d_model]
  Linear in_z_, in_x_;           // [channels, d_model]
  Linear in_bc_;                 // [2 * n_groups * d_state, d_model]
  Linear in_dt_;                 // [n_heads, d_model]
  const float* conv_x_weight_;   // [channels / kLanes][d_conv][kLanes]
  const float* conv_x_bias_;     // [channels]
  const float* conv_bc_weight_;  // [bc_channels / kLanes][d_conv][kLanes]
  const float* conv_bc_bias_;    // [bc_channels]
  const float* dt_bias_;         // [heads]
  const float* a_;               // [n_heads], -exp(A_log) * log2(e)
  const float* d_;               // [channels]
  const float* gated_norm_;      // [channels] or nullptr
  Linear out_proj_;              // [d_model, channels]
  FeedForward mlp_;              // of d_mlp
};

}  // namespace

Result<std::unique_ptr<Block>> MakeMamba2Block(const LayerConfig& layer, uint32_t d_model,
                                               TensorBinder binder) {
  auto block = std::make_unique<Mamba2Block>(std::get<Mamba2Config>(layer.mixer), layer.norm_eps,
                                             d_model, binder);
  if (!binder.status().ok()) return binder.status();
  return std::unique_ptr<Block>(std::move(block));
}

}  // namespace adder
