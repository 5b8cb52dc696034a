// Zamba2's hybrid layer: a transformer block whose weights several layers share reads the residual
// stream beside the token's embedding, and its output joins the input of this layer's Mamba-2
// mixer.
//
//   y = rms_norm((h; embedding))
//   q, k, v = W y + adapter_out adapter_in y                       each with this layer's adapter
//   y = rms_norm(W_o attention(q, k, v))
//   a = adapter_in y
//   x = linear(W_down(gelu(W_gate y + adapter_gate a) * (W_up y + adapter_up a)))
//   h += mamba2(rms_norm(h + x))
//
// Shared are norm, q, k, v, o, mlp_norm, gate, up and down; adapters, linear and the mixer are the
// layer's own, and so are keys and values.
#include <algorithm>
#include <memory>

#include "runtime/block.h"
#include "runtime/blocks/attention_heads.h"
#include "runtime/linear.h"
#include "runtime/tensor_binder.h"

namespace adder {
namespace {

uint64_t BytesOf(const Linear& linear) {
  return linear.bytes() + (linear.bias != nullptr ? linear.padded_rows() * sizeof(float) : 0);
}

class Zamba2Block final : public Block {
 public:
  Zamba2Block(const Zamba2Config& config, float norm_eps, uint32_t d_model, TensorBinder& own,
              TensorBinder& shared, std::unique_ptr<Block> ssm)
      : norm_eps_(norm_eps),
        d_model_(d_model),
        heads_(config.attention, own),
        norm_(shared.Floats("norm", {2 * d_model_})),
        mlp_norm_(shared.Floats("mlp_norm", {d_model_})),
        q_(Adapted(config, "q", heads_.q_channels(), own, shared)),
        k_(Adapted(config, "k", heads_.kv_channels(), own, shared)),
        v_(Adapted(config, "v", heads_.kv_channels(), own, shared)),
        o_(shared.Matrix("o", d_model_, heads_.q_channels())),
        gate_{shared.Matrix("gate", config.d_ff, d_model_), {}, {}},
        up_{shared.Matrix("up", config.d_ff, d_model_), {}, {}},
        down_(shared.Matrix("down", d_model_, config.d_ff)),
        linear_(own.Matrix("linear", d_model_, d_model_)),
        ssm_(std::move(ssm)) {
    heads_.SetF32(k_.base.dtype == DType::kMatF32);
    if (config.adapter_rank == 0) return;
    gate_.in = own.Matrix("adapter_in", config.adapter_rank, d_model_);
    gate_.out = own.Matrix("adapter_gate", config.d_ff, config.adapter_rank);
    up_.out = own.Matrix("adapter_up", config.d_ff, config.adapter_rank);
  }

  size_t StateFloats(StateType type) const override { return ssm_->StateFloats(type); }
  KvShape Kv(KvChoice choice) const override { return heads_.Kv(choice); }
  bool ReadsEmbedding() const override { return true; }
  int64_t ExtraBytes() const override {
    uint64_t bytes = 3 * d_model_ * sizeof(float);  // both norms
    for (const Linear* m : {&q_.base, &k_.base, &v_.base, &o_, &gate_.base, &up_.base, &down_}) {
      bytes += BytesOf(*m);
    }
    return static_cast<int64_t>(bytes) + ssm_->ExtraBytes();
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
    const size_t wide = WideStride();
    const size_t stride = args.stride;

    s.wide.Set(s.y, wide, q_.quantized() || k_.quantized() || v_.quantized());
    args.team.Run(RowBytes(tokens, wide), [&](const Worker& w) {
      const Range mine = w.Share(tokens);
      for (size_t t = mine.begin; t < mine.end; ++t) {
        std::copy_n(args.input + t * stride, d_model_, s.y + t * wide);
        std::copy_n(args.embedding + t * stride, d_model_, s.y + t * wide + d_model_);
      }
      w.RmsNorm(mine, s.y, wide, norm_, 2 * d_model_, static_cast<float>(2 * d_model_), norm_eps_,
                s.y, wide);
      w.Quantize(mine, &s.wide);
    });
    const auto project = [&](const Projection& projection, float* out) {
      projection.Reduce(args, s.wide, &s.qkv_low, s.low);
      projection.Apply(args, s.wide, s.qkv_low, s.added, out);
    };
    project(q_, s.q);
    project(k_, s.k);
    project(v_, s.v);
    heads_.Forward(args, s.heads, s.q, s.k, s.v);
    s.context.Set(s.q, heads_.q_channels(), o_.quantized());
    Apply(args, o_, &s.context, s.x);

    s.narrow.Set(s.x, stride, gate_.quantized() || up_.quantized());
    args.team.Run(RowBytes(tokens, d_model_), [&](const Worker& w) {
      const Range mine = w.Share(tokens);
      w.RmsNorm(mine, s.x, stride, mlp_norm_, d_model_, static_cast<float>(d_model_), norm_eps_,
                s.x, stride);
      w.Quantize(mine, &s.narrow);
    });
    gate_.Reduce(args, s.narrow, &s.mlp_low, s.low);
    gate_.Apply(args, s.narrow, s.mlp_low, s.added, s.gate);
    up_.Apply(args, s.narrow, s.mlp_low, s.added, s.up);
    const size_t width = up_.base.padded_rows();
    args.team.Run(RowBytes(tokens, width), [&](const Worker& w) {
      w.Gate(Activation::kGelu, w.Share(width / kLanes), tokens, s.gate, s.up, width);
    });
    s.inner.Set(s.up, width, down_.quantized());
    Apply(args, down_, &s.inner, s.x);
    s.narrow.Set(s.x, stride, linear_.quantized());
    Apply(args, linear_, &s.narrow, s.y);  // rows of `stride` now

    args.team.Run(RowBytes(tokens, stride), [&](const Worker& w) {
      const Range mine = w.Share(tokens);
      w.Add(mine, args.input, s.y, stride);
    });
    ForwardArgs ssm = args;
    ssm.input = s.y;
    ssm.scratch = s.ssm;
    ssm_->Forward(ssm);
  }

 private:
  // A matrix with an adapter of low rank: base x + out (in x). No rows, no adapter.
  struct Projection {
    Linear base, in, out;

    bool quantized() const { return base.quantized() || in.quantized(); }

    // low = in x, on its way to `out`.
    void Reduce(const ForwardArgs& args, const Activations& x, Activations* activations,
                float* low) const {
      if (in.rows == 0) return;
      activations->Set(low, in.padded_rows(), out.quantized());
      args.team.Run(in.bytes(), [&](const Worker& w) {
        w.Linear(in, w.Share(in.row_blocks()), x, args.tokens, low, in.padded_rows());
      });
      args.team.Run(RowBytes(args.tokens, in.rows),
                    [&](const Worker& w) { w.Quantize(w.Share(args.tokens), activations); });
    }

    // y [tokens][rows of base]; `added` is another.
    void Apply(const ForwardArgs& args, const Activations& x, const Activations& low, float* added,
               float* y) const {
      args.team.Run(base.bytes(), [&](const Worker& w) {
        const Range mine = w.Share(base.row_blocks());
        w.Linear(base, mine, x, args.tokens, y, base.padded_rows());
        if (out.rows > 0) {
          w.LinearAdd(out, mine, low, args.tokens, added, y, base.padded_rows());
        }
      });
    }
  };

  Projection Adapted(const Zamba2Config& c, const std::string& name, size_t rows, TensorBinder& own,
                     TensorBinder& shared) const {
    Projection projection;
    projection.base = shared.Matrix(name, rows, 2 * d_model_);
    if (c.attention_adapter_rank > 0) {
      projection.in = own.Matrix(name + "_adapter_in", c.attention_adapter_rank, 2 * d_model_);
      projection.out = own.Matrix(name + "_adapter_out", rows, c.attention_adapter_rank);
    }
    return projection;
  }

  // y [tokens][stride] = linear x, quantizing x first where that is wanted.
  void Apply(const ForwardArgs& args, const Linear& linear, Activations* x, float* y) const {
    args.team.Run(RowBytes(args.tokens, linear.cols),
                  [&](const Worker& w) { w.Quantize(w.Share(args.tokens), x); });
    args.team.Run(linear.bytes(), [&](const Worker& w) {
      w.Linear(linear, w.Share(linear.row_blocks()), *x, args.tokens, y, args.stride);
    });
  }

  struct Buffers {
    float* y;                      // [tokens][2 d_model]
    float* x;                      // [tokens][d_model]
    float *q, *k, *v;              // [tokens][heads]
    float *gate, *up;              // [tokens][d_ff]
    float* low;                    // [tokens][rank of an adapter]
    float* added;                  // [tokens][rows of an adapter]
    Activations wide, narrow;      // of rows of 2 d_model and of d_model
    Activations context, inner;    // of q and of up
    Activations qkv_low, mlp_low;  // of low
    AttentionHeads::Buffers heads;
    Arena ssm;
  };

  size_t WideStride() const { return RoundUp(2 * d_model_, kLanes); }

  Buffers Carve(Arena* arena, size_t max_tokens) const {
    const size_t q_channels = heads_.q_channels(), kv_channels = heads_.kv_channels();
    const size_t d_ff = up_.base.padded_rows();
    Buffers s = {};
    s.y = arena->Take<float>(max_tokens * WideStride());
    s.x = arena->Take<float>(max_tokens * o_.padded_rows());
    s.q = arena->Take<float>(max_tokens * q_channels);
    s.k = arena->Take<float>(max_tokens * kv_channels);
    s.v = arena->Take<float>(max_tokens * kv_channels);
    s.gate = arena->Take<float>(max_tokens * d_ff);
    s.up = arena->Take<float>(max_tokens * d_ff);
    s.low = arena->Take<float>(max_tokens * std::max(q_.in.padded_rows(), gate_.in.padded_rows()));
    s.added = arena->Take<float>(max_tokens * std::max(q_channels, d_ff));
    s.wide = Activations::Carve(arena, max_tokens, 2 * d_model_);
    s.narrow = Activations::Carve(arena, max_tokens, d_model_);
    s.context = Activations::Carve(arena, max_tokens, q_channels);
    s.inner = Activations::Carve(arena, max_tokens, up_.base.rows);
    s.qkv_low = Activations::Carve(arena, max_tokens, q_.in.rows);
    s.mlp_low = Activations::Carve(arena, max_tokens, gate_.in.rows);
    s.heads = heads_.Carve(arena, max_tokens);
    const size_t ssm_bytes = ssm_->ScratchBytes(max_tokens);
    s.ssm = Arena(arena->Take<uint8_t>(ssm_bytes), ssm_bytes);
    return s;
  }

  float norm_eps_;
  size_t d_model_;
  AttentionHeads heads_;
  const float* norm_;      // [2 d_model]
  const float* mlp_norm_;  // [d_model]
  Projection q_, k_, v_;   // [heads, 2 d_model]
  Linear o_;               // [d_model, heads]
  Projection gate_, up_;   // [d_ff, d_model]; both adapters read gate's `in`
  Linear down_;            // [d_model, d_ff]
  Linear linear_;          // [d_model, d_model]
  std::unique_ptr<Block> ssm_;
};

}  // namespace

Result<std::unique_ptr<Block>> MakeZamba2Block(const LayerConfig& layer, uint32_t d_model,
                                               TensorBinder binder) {
  const auto& config = std::get<Zamba2Config>(layer.mixer);
  ADDER_ASSIGN_OR_RETURN(
      auto ssm, MakeMamba2Block({layer.norm_eps, config.mamba2}, d_model, binder.Nested("ssm.")));
  TensorBinder shared = binder.OfFile("shared." + std::to_string(config.shared) + ".");
  auto block = std::make_unique<Zamba2Block>(config, layer.norm_eps, d_model, binder, shared,
                                             std::move(ssm));
  if (!binder.status().ok()) return binder.status();
  if (!shared.status().ok()) return shared.status();
  return std::unique_ptr<Block>(std::move(block));
}

}  // namespace adder
