// Mixture of experts (Jamba, Granite, Nemotron-H): for each token x = norm(h),
//
//   h += sum over its top_k experts e of weight_e expert_e(x), e ascending, + shared(x)
//
// where experts are feed-forward layers, and with a latent width h += latent_out(sum of
// expert_e(latent_in x)) + shared(x). A token reads the weights of its own experts only. In a tile
// of tokens each expert runs once, over the rows of all tokens that chose it.
#include <memory>
#include <vector>

#include "runtime/block.h"
#include "runtime/blocks/feed_forward.h"
#include "runtime/routing.h"

namespace adder {
namespace {

class MoeBlock final : public Block {
 public:
  MoeBlock(const MoeConfig& config, float norm_eps, uint32_t d_model, TensorBinder& bind)
      : c_(config),
        norm_eps_(norm_eps),
        d_model_(d_model),
        d_in_(config.d_latent > 0 ? config.d_latent : d_model),
        in_width_(RoundUp(d_in_, kLanes)),
        norm_(bind.Floats("norm", {d_model})),
        router_(bind.Matrix("router", config.n_experts, d_model)) {
    if (c_.routing == Routing::kSigmoid) {
      router_bias_ = bind.Floats("router_bias", {RoundUp(c_.n_experts, kLanes)});
    }
    for (size_t e = 0; e < c_.n_experts && bind.status().ok(); ++e) {
      experts_.emplace_back(c_.expert, d_in_, "experts." + std::to_string(e) + ".", bind);
      quantizes_routed_ |= experts_[e].quantizes_input();
      quantizes_inner_ |= experts_[e].down().quantized();
      experts_bytes_ += experts_[e].file_bytes();
    }
    if (c_.d_shared > 0) {
      MlpConfig shared = c_.expert;
      shared.d_ff = c_.d_shared;
      shared_ = FeedForward(shared, d_model, "shared.", bind);
    }
    if (c_.d_latent > 0) {
      latent_in_ = bind.Matrix("latent_in", c_.d_latent, d_model);
      latent_out_ = bind.Matrix("latent_out", d_model, c_.d_latent);
    }
  }

  size_t StateFloats(StateType) const override { return 0; }

  size_t ScratchBytes(size_t max_tokens) const override {
    Arena measure;
    Carve(&measure, max_tokens);
    return measure.used();
  }

  int64_t ExtraBytes() const override {
    return -static_cast<int64_t>(experts_bytes_ * (c_.n_experts - c_.top_k) / c_.n_experts);
  }

  void Forward(const ForwardArgs& args) const noexcept override {
    const size_t tokens = args.tokens;
    Arena scratch = args.scratch;
    Buffers s = Carve(&scratch, args.max_tokens);

    s.outer.Set(s.u, args.stride,
                router_.quantized() || latent_in_.quantized() || shared_.quantizes_input());
    args.team.Run(RowBytes(tokens, d_model_), [&](const Worker& w) {
      const Range mine = w.Share(tokens);
      w.RmsNorm(mine, args.input, args.stride, norm_, d_model_, static_cast<float>(d_model_),
                norm_eps_, s.u, args.stride);
      w.Quantize(mine, &s.outer);
    });
    s.shared_inner.Set(s.shared, shared_.width(), shared_.down().quantized());
    args.team.Run(router_.bytes() + latent_in_.bytes() + shared_.input_bytes(),
                  [&](const Worker& w) {
                    w.Linear(router_, w.Share(router_.row_blocks()), s.outer, tokens, s.logits,
                             router_.padded_rows());
                    w.Linear(latent_in_, w.Share(latent_in_.row_blocks()), s.outer, tokens,
                             s.latent, in_width_);
                    shared_.Expand(w, s.outer, tokens, s.z, s.shared, &s.shared_inner);
                  });

    for (size_t t = 0; t < tokens; ++t) {
      ChooseExperts(c_, s.logits + t * router_.padded_rows(), router_bias_, s.choice,
                    s.chosen + t * c_.top_k, s.weights + t * c_.top_k);
    }
    s.rows.Sort(s.chosen, s.weights, tokens, c_.top_k, c_.n_experts);
    const size_t active = s.rows.active(c_.n_experts);

    // The rows of each expert side by side.
    const float* source = c_.d_latent > 0 ? s.latent : s.u;
    s.routed.Set(s.x, in_width_, quantizes_routed_);
    args.team.Run(RowBytes(tokens * c_.top_k, d_in_), [&](const Worker& w) {
      const Range mine = w.Share(tokens * c_.top_k);
      for (size_t i = mine.begin; i < mine.end; ++i) {
        std::copy_n(source + s.rows.tokens[i] * in_width_, d_in_, s.x + i * in_width_);
      }
      w.Quantize(mine, &s.routed);
    });
    s.inner.Set(s.y, experts_[0].width(), quantizes_inner_);
    args.team.Run(active * experts_[0].input_bytes(), [&](const Worker& w) {
      for (size_t e = 0; e < c_.n_experts; ++e) {
        const size_t begin = s.rows.begin(e), count = s.rows.count(e);
        if (count == 0) continue;
        Activations inner = s.inner.From(begin);
        experts_[e].Expand(w, s.routed.From(begin), count, s.z, s.y + begin * experts_[e].width(),
                           &inner);
      }
    });

    if (c_.d_latent == 0) {
      args.team.Run(active * experts_[0].down().bytes() + shared_.down().bytes(),
                    [&](const Worker& w) {
                      AddExperts(w, s, args.hidden);
                      AddShared(w, args, s);
                    });
      return;
    }
    args.team.Run(active * experts_[0].down().bytes(), [&](const Worker& w) {
      const Range mine = w.Share(RowBlocks(d_in_));
      for (size_t t = 0; t < tokens; ++t) {
        std::fill_n(s.latent + t * in_width_ + mine.begin * kLanes, mine.size() * kLanes, 0.0f);
      }
      AddExperts(w, s, s.latent);
    });
    s.sum.Set(s.latent, in_width_, latent_out_.quantized());
    args.team.Run(RowBytes(tokens, d_in_),
                  [&](const Worker& w) { w.Quantize(w.Share(tokens), &s.sum); });
    args.team.Run(latent_out_.bytes() + shared_.down().bytes(), [&](const Worker& w) {
      w.LinearAdd(latent_out_, w.Share(latent_out_.row_blocks()), s.sum, tokens, s.u, args.hidden,
                  args.stride);
      AddShared(w, args, s);
    });
  }

 private:
  struct Buffers {
    float* u;           // [tokens][d_model]
    float* logits;      // [tokens][n_experts padded to kLanes]
    float* choice;      // [2 * n_experts]
    uint32_t* chosen;   // [tokens][top_k]
    float* weights;     // [tokens][top_k]
    ExpertRows rows;    // of tokens * top_k
    float* latent;      // [tokens][in_width] what experts read, then the sum of what they give
    float *x, *y;       // [rows][in_width], [rows][width]
    float* z;           // [tokens][width], of an expert or the shared one
    float* shared;      // [tokens][width of the shared expert]
    float* down;        // [tokens][in_width]
    Activations outer;  // quantized rows of d_model
    Activations routed, sum;          // of d_in
    Activations inner, shared_inner;  // of d_ff, of d_shared
  };

  Buffers Carve(Arena* arena, size_t max_tokens) const {
    const size_t max_rows = max_tokens * c_.top_k;
    const size_t width = experts_[0].width();
    Buffers s = {};
    s.u = arena->Take<float>(max_tokens * RoundUp(d_model_, kLanes));
    s.logits = arena->Take<float>(max_tokens * router_.padded_rows());
    s.choice = arena->Take<float>(2 * size_t{c_.n_experts});
    s.chosen = arena->Take<uint32_t>(max_rows);
    s.weights = arena->Take<float>(max_rows);
    s.rows = ExpertRows::Carve(arena, c_.n_experts, max_rows);
    s.latent = arena->Take<float>(c_.d_latent > 0 ? max_tokens * in_width_ : 0);
    s.x = arena->Take<float>(max_rows * in_width_);
    s.y = arena->Take<float>(max_rows * width);
    s.z = arena->Take<float>(max_tokens * std::max(width, shared_.width()));
    s.shared = arena->Take<float>(max_tokens * shared_.width());
    s.down = arena->Take<float>(max_tokens * in_width_);
    s.outer = Activations::Carve(arena, max_tokens, d_model_);
    s.routed = Activations::Carve(arena, max_rows, d_in_);
    s.sum = Activations::Carve(arena, c_.d_latent > 0 ? max_tokens : 0, d_in_);
    s.inner = Activations::Carve(arena, max_rows, c_.expert.d_ff);
    s.shared_inner = Activations::Carve(arena, max_tokens, c_.d_shared);
    return s;
  }

  // out [tokens][in_width] += weight * down(y) for one worker's share of the rows of out, experts
  // ascending: the order of each token's sum does not depend on the others in its tile.
  void AddExperts(const Worker& w, const Buffers& s, float* out) const {
    const Range mine = w.Share(RowBlocks(d_in_));
    for (size_t e = 0; e < c_.n_experts; ++e) {
      const size_t begin = s.rows.begin(e), count = s.rows.count(e);
      if (count == 0) continue;
      w.Linear(experts_[e].down(), mine, s.inner.From(begin), count, s.down, in_width_);
      for (size_t i = 0; i < count; ++i) {
        w.AddScaled(mine, s.down + i * in_width_, s.rows.weights[begin + i],
                    out + s.rows.tokens[begin + i] * in_width_);
      }
    }
  }

  void AddShared(const Worker& w, const ForwardArgs& args, const Buffers& s) const {
    w.LinearAdd(shared_.down(), w.Share(shared_.down().row_blocks()), s.shared_inner, args.tokens,
                s.u, args.hidden, args.stride);
  }

  MoeConfig c_;
  float norm_eps_;
  size_t d_model_;
  size_t d_in_, in_width_;              // what experts read: d_latent or d_model; padded to kLanes
  const float* norm_;                   // [d_model]
  Linear router_;                       // [n_experts, d_model]
  const float* router_bias_ = nullptr;  // [n_experts padded], kSigmoid only
  std::vector<FeedForward> experts_;
  uint64_t experts_bytes_ = 0;     // of all experts together
  bool quantizes_routed_ = false;  // some expert reads quantized rows
  bool quantizes_inner_ = false;   // or its down does
  FeedForward shared_;             // without d_shared: no rows
  Linear latent_in_, latent_out_;  // [d_latent, d_model], [d_model, d_latent]; likewise
};

}  // namespace

Result<std::unique_ptr<Block>> MakeMoeBlock(const LayerConfig& layer, uint32_t d_model,
                                            TensorBinder binder) {
  auto block =
      std::make_unique<MoeBlock>(std::get<MoeConfig>(layer.mixer), layer.norm_eps, d_model, binder);
  if (!binder.status().ok()) return binder.status();
  return std::unique_ptr<Block>(std::move(block));
}

}  // namespace adder
