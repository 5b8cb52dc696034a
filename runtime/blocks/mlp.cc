// Feed-forward layer: h += down(act(gate norm(h)) * (up norm(h))), or without gate.
#include <memory>

#include "runtime/block.h"
#include "runtime/blocks/feed_forward.h"

namespace adder {
namespace {

class MlpBlock final : public Block {
 public:
  MlpBlock(const MlpConfig& config, float norm_eps, uint32_t d_model, TensorBinder& bind)
      : norm_eps_(norm_eps),
        d_model_(d_model),
        norm_(bind.Floats("norm", {d_model})),
        mlp_(config, d_model, "", bind) {}

  size_t StateFloats(StateType) const override { return 0; }

  size_t ScratchBytes(size_t max_tokens) const override {
    Arena measure;
    Carve(&measure, max_tokens);
    return measure.used();
  }

  void Forward(const ForwardArgs& args) const noexcept override {
    const size_t tokens = args.tokens;
    Arena scratch = args.scratch;
    Buffers s = Carve(&scratch, args.max_tokens);

    s.outer.Set(s.u, args.stride, mlp_.quantizes_input());
    args.team.Run(RowBytes(tokens, d_model_), [&](const Worker& w) {
      const Range mine = w.Share(tokens);
      w.RmsNorm(mine, args.input, args.stride, norm_, d_model_, static_cast<float>(d_model_),
                norm_eps_, s.u, args.stride);
      w.Quantize(mine, &s.outer);
    });
    s.inner.Set(s.y, mlp_.width(), mlp_.down().quantized());
    args.team.Run(mlp_.input_bytes(),
                  [&](const Worker& w) { mlp_.Expand(w, s.outer, tokens, s.z, s.y, &s.inner); });
    args.team.Run(mlp_.down().bytes(), [&](const Worker& w) {
      w.LinearAdd(mlp_.down(), w.Share(mlp_.down().row_blocks()), s.inner, tokens, s.u, args.hidden,
                  args.stride);
    });
  }

 private:
  struct Buffers {
    float* u;                  // [tokens][d_model]
    float *z, *y;              // [tokens][width]
    Activations outer, inner;  // quantized rows of d_model and of d_ff
  };

  Buffers Carve(Arena* arena, size_t max_tokens) const {
    Buffers s = {};
    s.u = arena->Take<float>(max_tokens * mlp_.down().padded_rows());
    s.z = arena->Take<float>(max_tokens * mlp_.width());
    s.y = arena->Take<float>(max_tokens * mlp_.width());
    s.outer = Activations::Carve(arena, max_tokens, d_model_);
    s.inner = Activations::Carve(arena, max_tokens, mlp_.d_ff());
    return s;
  }

  float norm_eps_;
  size_t d_model_;
  const float* norm_;  // [d_model]
  FeedForward mlp_;
};

}  // namespace

Result<std::unique_ptr<Block>> MakeMlpBlock(const LayerConfig& layer, uint32_t d_model,
                                            TensorBinder binder) {
  auto block =
      std::make_unique<MlpBlock>(std::get<MlpConfig>(layer.mixer), layer.norm_eps, d_model, binder);
  if (!binder.status().ok()) return binder.status();
  return std::unique_ptr<Block>(std::move(block));
}

}  // namespace adder
