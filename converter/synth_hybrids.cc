#include "converter/synth_hybrids.h"

#include <cmath>
#include <functional>

namespace adder {
namespace {

// Adds layers with all of their tensors (FORMAT.md).
class HybridPlan {
 public:
  HybridPlan(std::string family, uint32_t d_model, uint32_t vocab, bool tied) {
    ModelConfig& config = plan_.config;
    config.family = std::move(family);
    config.d_model = d_model;
    config.vocab_size = config.vocab_rows = vocab;
    config.tied_head = tied;
    Matrix("embedding", Role::kTable, vocab, d_model);
    if (!tied) Matrix("head", Role::kTable, vocab, d_model);
    Floats("final_norm", {d_model}, 1.0f);
  }

  template <typename Config>
  void Layer(const Config& config) {
    const std::string to = "layers." + std::to_string(plan_.config.layers.size()) + ".";
    Tensors(to, config);
    plan_.config.layers.push_back({1e-5f, config});
  }

  ModelPlan Take() { return std::move(plan_); }

 private:
  static constexpr float kStepBias = -4.6f;  // softplus: steps of 0.01
  static constexpr float kDecay = -5.0f;

  uint64_t d_model() const { return plan_.config.d_model; }
  static uint64_t Padded(uint64_t n) { return RoundUp(n, kLanes); }

  void Matrix(const std::string& name, Role role, uint64_t rows, uint64_t cols) {
    plan_.tensors.push_back({name, role, {rows, cols}, nullptr});
  }
  void Bulk(const std::string& name, uint64_t rows, uint64_t cols) {
    Matrix(name, Role::kBulk, rows, cols);
  }
  void Floats(const std::string& name, std::vector<uint64_t> shape, float value) {
    uint64_t count = 1;
    for (const uint64_t dim : shape) count *= dim;
    Values(name, std::move(shape), std::vector<float>(count, value));
  }
  void Values(const std::string& name, std::vector<uint64_t> shape, std::vector<float> values) {
    const FloatView view = FloatView::Own(std::move(values));
    plan_.tensors.push_back({name, Role::kArray, std::move(shape),
                             [view](TensorLoader&) -> Result<FloatView> { return view; }});
  }
  void Convolution(const std::string& name, uint64_t channels, uint64_t taps) {
    Floats(name + ".weight", {channels / kLanes, taps, kLanes}, 0.25f);
    Floats(name + ".bias", {channels}, 0.0f);
  }

  void Tensors(const std::string& to, const Mamba1Config& c) {
    const uint64_t channels = Padded(c.d_inner);
    Floats(to + "norm", {d_model()}, 1.0f);
    Bulk(to + "in_x", c.d_inner, d_model());
    Bulk(to + "in_z", c.d_inner, d_model());
    Convolution(to + "conv", channels, c.d_conv);
    Matrix(to + "x_dt", Role::kSensitive, c.dt_rank, c.d_inner);
    Matrix(to + "x_b", Role::kSensitive, c.d_state, c.d_inner);
    Matrix(to + "x_c", Role::kSensitive, c.d_state, c.d_inner);
    if (c.bcdt_norm_weights) {
      Floats(to + "dt_norm", {c.dt_rank}, 1.0f);
      Floats(to + "b_norm", {c.d_state}, 1.0f);
      Floats(to + "c_norm", {c.d_state}, 1.0f);
    }
    Matrix(to + "dt_proj", Role::kSensitive, c.d_inner, c.dt_rank);
    Floats(to + "dt_bias", {channels}, kStepBias);
    Floats(to + "a", {channels / kLanes, c.d_state, kLanes}, kDecay);
    Floats(to + "d", {channels}, 1.0f);
    Bulk(to + "out_proj", d_model(), c.d_inner);
  }

  void Tensors(const std::string& to, const Mamba2Config& c) {
    const uint64_t channels = c.n_heads * Padded(c.head_dim);
    const uint64_t bc = uint64_t{2} * c.n_groups * c.d_state;
    Floats(to + "norm", {d_model()}, 1.0f);
    Bulk(to + "in_z", channels, d_model());
    Bulk(to + "in_x", channels, d_model());
    Matrix(to + "in_bc", Role::kSensitive, bc, d_model());
    Matrix(to + "in_dt", Role::kSensitive, c.n_heads, d_model());
    Convolution(to + "conv_x", channels, c.d_conv);
    Convolution(to + "conv_bc", Padded(bc), c.d_conv);
    Floats(to + "dt_bias", {Padded(c.n_heads)}, kStepBias);
    Floats(to + "a", {c.n_heads}, kDecay);
    Floats(to + "d", {channels}, 1.0f);
    if (c.gating != Gating::kGateOnly) Floats(to + "gated_norm", {channels}, 1.0f);
    Bulk(to + "out_proj", d_model(), channels);
  }

  void Tensors(const std::string& to, const AttentionConfig& c) {
    const uint64_t q = c.n_heads * Padded(c.head_dim), kv = c.n_kv_heads * Padded(c.head_dim);
    Floats(to + "norm", {d_model()}, 1.0f);
    Bulk(to + "q", q, d_model());
    Bulk(to + "k", kv, d_model());
    Bulk(to + "v", kv, d_model());
    Bulk(to + "o", d_model(), q);
    if (c.rotary_dim == 0) return;
    std::vector<float> rope(c.rotary_dim / 2);
    for (size_t i = 0; i < rope.size(); ++i) {
      rope[i] = static_cast<float>(
          std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(c.rotary_dim)));
    }
    Values(to + "rope", {rope.size()}, std::move(rope));
  }

  void Experts(const std::string& to, uint64_t width, uint64_t d_ff, bool gated) {
    if (gated) Bulk(to + "gate", d_ff, width);
    Bulk(to + "up", d_ff, width);
    Bulk(to + "down", width, d_ff);
  }

  void Tensors(const std::string& to, const MlpConfig& c) {
    Floats(to + "norm", {d_model()}, 1.0f);
    Experts(to, d_model(), c.d_ff, c.gated);
  }

  void Tensors(const std::string& to, const MoeConfig& c) {
    Floats(to + "norm", {d_model()}, 1.0f);
    Matrix(to + "router", Role::kExact, c.n_experts, d_model());
    for (uint32_t e = 0; e < c.n_experts; ++e) {
      Experts(to + "experts." + std::to_string(e) + ".", d_model(), c.expert.d_ff, c.expert.gated);
    }
    if (c.d_shared > 0) Experts(to + "shared.", d_model(), c.d_shared, c.expert.gated);
  }

  void Tensors(const std::string& to, const ParallelConfig& c) {
    Tensors(to + "ssm.", c.mamba2);
    Tensors(to + "attn.", c.attention);
  }

  ModelPlan plan_;
};

AttentionConfig Attention(uint32_t heads, uint32_t kv_heads, uint32_t head_dim,
                          uint32_t rotary_dim) {
  return {.n_heads = heads,
          .n_kv_heads = kv_heads,
          .head_dim = head_dim,
          .rotary_dim = rotary_dim,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim))};
}

Mamba2Config Mamba2(uint32_t heads, uint32_t head_dim, uint32_t groups, uint32_t d_state) {
  return {.n_heads = heads,
          .head_dim = head_dim,
          .n_groups = groups,
          .d_state = d_state,
          .d_conv = 4,
          .norm_groups = groups};
}

// Granite 4 hybrid: attention at 5, 15, 25, 35 of 40 layers (10, 13, 17, 27 of 32), and after each
// mixer an MLP or a mixture of experts.
ModelPlan Granite(uint32_t d_model, const std::vector<uint32_t>& attention_at, uint32_t layers,
                  uint32_t mamba_head_dim, uint32_t d_ff, const MoeConfig* moe) {
  HybridPlan plan("granitemoehybrid", d_model, 100352, /*tied=*/true);
  for (uint32_t i = 0, next = 0; i < layers; ++i) {
    if (next < attention_at.size() && attention_at[next] == i) {
      plan.Layer(Attention(12, 4, d_model / 12, 0));
      ++next;
    } else {
      plan.Layer(Mamba2(48, mamba_head_dim, 1, 128));
    }
    if (moe != nullptr) {
      plan.Layer(*moe);
    } else {
      plan.Layer(MlpConfig{.d_ff = d_ff});
    }
  }
  return plan.Take();
}

ModelPlan Granite350m() { return Granite(768, {10, 13, 17, 27}, 32, 32, 2048, nullptr); }
ModelPlan Granite1b() { return Granite(1536, {5, 15, 25, 35}, 40, 64, 4096, nullptr); }
ModelPlan GraniteTiny() {
  const MoeConfig moe = {.n_experts = 64,
                         .top_k = 6,
                         .expert = {.d_ff = 512},
                         .d_shared = 1024,
                         .routing = Routing::kSoftmaxTop};
  return Granite(1536, {5, 15, 25, 35}, 40, 64, 0, &moe);
}

ModelPlan FalconH1() {
  HybridPlan plan("falcon_h1", 1024, 32784, /*tied=*/false);
  Mamba2Config mamba2 = Mamba2(24, 64, 1, 128);
  mamba2.gating = Gating::kGateOnly;
  for (uint32_t i = 0; i < 36; ++i) {
    plan.Layer(ParallelConfig{.mamba2 = mamba2, .attention = Attention(8, 2, 64, 64)});
    plan.Layer(MlpConfig{.d_ff = 2048});
  }
  return plan.Take();
}

ModelPlan Jamba3b() {
  HybridPlan plan("jamba", 2560, 65536, /*tied=*/true);
  for (uint32_t i = 0; i < 28; ++i) {
    if (i % 14 == 7) {
      plan.Layer(Attention(20, 1, 128, 0));
    } else {
      plan.Layer(Mamba1Config{.d_inner = 5120,
                              .d_state = 16,
                              .d_conv = 4,
                              .dt_rank = 160,
                              .bcdt_norm_eps = 1e-6f,
                              .bcdt_norm_weights = true});
    }
    plan.Layer(MlpConfig{.d_ff = 8192});
  }
  return plan.Take();
}

ModelPlan NemotronH4b() {
  HybridPlan plan("nemotron_h", 3072, 131072, /*tied=*/false);
  for (const char layer :
       std::string_view("M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-")) {
    if (layer == 'M') {
      plan.Layer(Mamba2(112, 64, 8, 128));
    } else if (layer == '*') {
      plan.Layer(Attention(32, 8, 128, 0));
    } else {
      plan.Layer(MlpConfig{.d_ff = 12288, .activation = Activation::kRelu2, .gated = false});
    }
  }
  return plan.Take();
}

ModelPlan Bamba9b() {
  HybridPlan plan("bamba", 4096, 128256, /*tied=*/false);
  for (uint32_t i = 0; i < 32; ++i) {
    if (i == 9 || i == 18 || i == 27) {
      plan.Layer(Attention(32, 8, 128, 64));
    } else {
      plan.Layer(Mamba2(128, 64, 1, 128));
    }
    plan.Layer(MlpConfig{.d_ff = 14336});
  }
  return plan.Take();
}

// Sizes of the published configurations: ibm-granite/granite-4.0-h-*, tiiuae/Falcon-H1-0.5B,
// ai21labs/AI21-Jamba-Reasoning-3B, nvidia/Nemotron-H-4B, ibm-ai-platform/Bamba-9B.
constexpr std::pair<const char*, ModelPlan (*)()> kHybrids[] = {
    {"granite-4.0-h-350m", Granite350m},
    {"granite-4.0-h-1b", Granite1b},
    {"granite-4.0-h-tiny", GraniteTiny},
    {"falcon-h1-0.5b", FalconH1},
    {"jamba-reasoning-3b", Jamba3b},
    {"nemotron-h-4b", NemotronH4b},
    {"bamba-9b", Bamba9b},
};

}  // namespace

std::vector<std::string> HybridNames() {
  std::vector<std::string> names;
  for (const auto& [name, make] : kHybrids) names.push_back(name);
  return names;
}

std::optional<ModelPlan> PlanHybrid(std::string_view name) {
  for (const auto& [known, make] : kHybrids) {
    if (name == known) return make();
  }
  return std::nullopt;
}

}  // namespace adder
