// Attention block: causal, query heads in groups that share a key/value head.
//
//   u = rms_norm(h)
//   q = W_q u, k = W_k u, v = W_v u           [with d_conv: each convolved, without activation]
//   q, k rotated by the token's position
//   c[head] = sum over tokens i of softmax_i(scale q[head] . k[head / group][i]) v[head / group][i]
//   h += W_o c                                [with d_mlp: + W_down (W_up u * silu(W_gate u))]
//
// The state holds the convolution's last inputs, the ring of runtime/kv_ring.h keys and values.
#include <algorithm>
#include <memory>
#include <string>

#include "runtime/block.h"
#include "runtime/blocks/attention_heads.h"
#include "runtime/linear.h"
#include "runtime/tensor_binder.h"

namespace adder {
namespace {

// A causal depthwise convolution over the rows of a projection; no taps, no convolution.
struct Convolution {
  size_t taps = 0;
  const float* weight = nullptr;  // [channels / kLanes][taps][kLanes]
  const float* bias = nullptr;    // [channels]

  static Convolution Bind(const AttentionConfig& c, const char* name, size_t channels,
                          TensorBinder& bind) {
    if (c.d_conv == 0) return {};
    return {c.d_conv,
            bind.Floats(std::string(name) + ".weight", {channels / kLanes, c.d_conv, kLanes}),
            bind.Floats(std::string(name) + ".bias", {channels})};
  }

  // Per channel block: x = bias + sum of weight[j] times the input j tokens after the oldest, in
  // order, products and sums rounded one by one. state [channels / kLanes][taps - 1][kLanes].
  void Apply(Range blocks, size_t tokens, size_t stride, float* state, float* x) const {
    if (taps == 0) return;
    for (size_t b = blocks.begin; b < blocks.end; ++b) {
      const float* w = weight + b * taps * kLanes;
      float* history = state + b * (taps - 1) * kLanes;
      for (size_t t = 0; t < tokens; ++t) {
        float* newest = x + t * stride + b * kLanes;
        float y[kLanes];
        std::copy_n(bias + b * kLanes, kLanes, y);
        for (size_t j = 0; j < taps; ++j) {
          const float* input = j + 1 < taps ? history + j * kLanes : newest;
          for (size_t l = 0; l < kLanes; ++l) y[l] += w[j * kLanes + l] * input[l];
        }
        if (taps > 1) {
          std::copy(history + kLanes, history + (taps - 1) * kLanes, history);
          std::copy_n(newest, kLanes, history + (taps - 2) * kLanes);
        }
        std::copy_n(y, kLanes, newest);
      }
    }
  }
};

class AttentionBlock final : public Block {
 public:
  AttentionBlock(const AttentionConfig& config, float norm_eps, uint32_t d_model,
                 TensorBinder& bind)
      : c_(config),
        norm_eps_(norm_eps),
        d_model_(d_model),
        heads_(config, bind),
        q_channels_(heads_.q_channels()),
        kv_channels_(heads_.kv_channels()),
        norm_(bind.Floats("norm", {d_model})),
        q_(bind.Matrix("q", q_channels_, d_model)),
        k_(bind.Matrix("k", kv_channels_, d_model)),
        v_(bind.Matrix("v", kv_channels_, d_model)),
        o_(bind.Matrix("o", d_model, q_channels_)),
        conv_q_(Convolution::Bind(c_, "conv_q", q_channels_, bind)),
        conv_k_(Convolution::Bind(c_, "conv_k", kv_channels_, bind)),
        conv_v_(Convolution::Bind(c_, "conv_v", kv_channels_, bind)) {
    heads_.SetF32(k_.dtype == DType::kMatF32);
    if (c_.d_mlp == 0) return;
    mlp_up_ = bind.Matrix("mlp_up", c_.d_mlp, d_model);
    mlp_gate_ = bind.Matrix("mlp_gate", c_.d_mlp, d_model);
    mlp_down_ = bind.Matrix("mlp_down", d_model, c_.d_mlp);
  }

  size_t StateFloats(StateType /*type*/) const override {
    return c_.d_conv == 0 ? 0 : (q_channels_ + 2 * kv_channels_) * (c_.d_conv - 1);
  }
  KvShape Kv(KvChoice choice) const override { return heads_.Kv(choice); }

  size_t ScratchBytes(size_t max_tokens) const override {
    Arena measure;
    Carve(&measure, max_tokens);
    return measure.used();
  }

  void Forward(const ForwardArgs& args) const noexcept override {
    const size_t tokens = args.tokens;
    Arena scratch = args.scratch;
    Buffers s = Carve(&scratch, args.max_tokens);
    float* conv_q_state = args.state;
    float* conv_k_state = conv_q_state + q_channels_ * History();
    float* conv_v_state = conv_k_state + kv_channels_ * History();

    s.outer.Set(s.u, args.stride,
                q_.quantized() || k_.quantized() || v_.quantized() || mlp_up_.quantized() ||
                    mlp_gate_.quantized());
    args.team.Run(RowBytes(tokens, d_model_), [&](const Worker& w) {
      const Range mine = w.Share(tokens);
      w.RmsNorm(mine, args.input, args.stride, norm_, d_model_, static_cast<float>(d_model_),
                norm_eps_, s.u, args.stride);
      w.Quantize(mine, &s.outer);
    });
    args.team.Run(q_.bytes() + k_.bytes() + v_.bytes(), [&](const Worker& w) {
      const Range q = w.Share(q_.row_blocks());
      w.Linear(q_, q, s.outer, tokens, s.q, q_channels_);
      conv_q_.Apply(q, tokens, q_channels_, conv_q_state, s.q);
      const Range kv = w.Share(k_.row_blocks());
      w.Linear(k_, kv, s.outer, tokens, s.k, kv_channels_);
      conv_k_.Apply(kv, tokens, kv_channels_, conv_k_state, s.k);
      w.Linear(v_, kv, s.outer, tokens, s.v, kv_channels_);
      conv_v_.Apply(kv, tokens, kv_channels_, conv_v_state, s.v);
    });

    heads_.Forward(args, s.heads, s.q, s.k, s.v);

    s.context.Set(s.q, q_channels_, o_.quantized());
    args.team.Run(RowBytes(tokens, q_channels_),
                  [&](const Worker& w) { w.Quantize(w.Share(tokens), &s.context); });
    if (c_.d_mlp > 0) Mlp(args, &s);  // reads u, which the output projection overwrites
    args.team.Run(o_.bytes(), [&](const Worker& w) {
      w.LinearAdd(o_, w.Share(o_.row_blocks()), s.context, tokens, s.u, args.hidden, args.stride);
    });
  }

 private:
  struct Buffers {
    float* u;                    // [tokens][d_model]
    float *q, *k, *v;            // [tokens][q_channels or kv_channels]
    float *mlp_up, *mlp_gate;    // [tokens][d_mlp padded]
    Activations outer, context;  // quantized rows of u and of q
    Activations mlp;
    AttentionHeads::Buffers heads;
  };

  size_t History() const { return c_.d_conv == 0 ? 0 : c_.d_conv - 1; }

  Buffers Carve(Arena* arena, size_t max_tokens) const {
    Buffers s = {};
    s.u = arena->Take<float>(max_tokens * o_.padded_rows());
    s.q = arena->Take<float>(max_tokens * q_channels_);
    s.k = arena->Take<float>(max_tokens * kv_channels_);
    s.v = arena->Take<float>(max_tokens * kv_channels_);
    s.outer = Activations::Carve(arena, max_tokens, d_model_);
    s.context = Activations::Carve(arena, max_tokens, q_channels_);
    s.heads = heads_.Carve(arena, max_tokens);
    if (c_.d_mlp > 0) {
      s.mlp_up = arena->Take<float>(max_tokens * mlp_up_.padded_rows());
      s.mlp_gate = arena->Take<float>(max_tokens * mlp_up_.padded_rows());
      s.mlp = Activations::Carve(arena, max_tokens, c_.d_mlp);
    }
    return s;
  }

  // h += W_down (W_up u * silu(W_gate u))
  void Mlp(const ForwardArgs& args, Buffers* s) const {
    const size_t tokens = args.tokens;
    const size_t width = mlp_up_.padded_rows();
    args.team.Run(mlp_up_.bytes() + mlp_gate_.bytes(), [&](const Worker& w) {
      const Range mine = w.Share(mlp_up_.row_blocks());
      w.Linear(mlp_up_, mine, s->outer, tokens, s->mlp_up, width);
      w.Linear(mlp_gate_, mine, s->outer, tokens, s->mlp_gate, width);
    });
    s->mlp.Set(s->mlp_up, width, mlp_down_.quantized());
    args.team.Run(RowBytes(tokens, width), [&](const Worker& w) {
      const Range mine = w.Share(tokens);
      w.SiluMul(mine, s->mlp_gate, s->mlp_up, width);
      w.Quantize(mine, &s->mlp);
    });
    args.team.Run(mlp_down_.bytes(), [&](const Worker& w) {
      w.LinearAdd(mlp_down_, w.Share(mlp_down_.row_blocks()), s->mlp, tokens, s->u, args.hidden,
                  args.stride);
    });
  }

  AttentionConfig c_;
  float norm_eps_;
  size_t d_model_;
  AttentionHeads heads_;
  size_t q_channels_, kv_channels_;       // heads * head_dim padded to kLanes
  const float* norm_;                     // [d_model]
  Linear q_, k_, v_;                      // [q_channels or kv_channels, d_model]
  Linear o_;                              // [d_model, q_channels]
  Convolution conv_q_, conv_k_, conv_v_;  // over the rows of q, k, v
  Linear mlp_up_, mlp_gate_, mlp_down_;   // [d_mlp, d_model], the last [d_model, d_mlp]
};

}  // namespace

Result<std::unique_ptr<Block>> MakeAttentionBlock(const LayerConfig& layer, uint32_t d_model,
                                                  TensorBinder binder) {
  auto block = std::make_unique<AttentionBlock>(std::get<AttentionConfig>(layer.mixer),
                                                layer.norm_eps, d_model, binder);
  if (!binder.status().ok()) return binder.status();
  return std::unique_ptr<Block>(std::move(block));
}

}  // namespace adder
