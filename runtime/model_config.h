// What the metadata section says about a model: dimensions, layer plan, special tokens, provenance.
// The one place that knows the keys of that JSON, for reading and writing.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/status.h"

namespace adder {

// Mamba-1 mixer (Gu and Dao, arXiv:2312.00752). Falcon-Mamba adds weightless RMS norms on dt, B, C,
// Jamba adds ones with weights.
struct Mamba1Config {
  uint32_t d_inner = 0, d_state = 0, d_conv = 0, dt_rank = 0;
  float bcdt_norm_eps = 0.0f;  // 0: no norms on dt, B and C
  bool bcdt_norm_weights = false;
};

// How a Mamba-2 mixer combines y, the gate z and its norm.
enum class Gating { kGateThenNorm, kNormThenGate, kGateOnly };

// Mamba-2 mixer (Dao and Gu, arXiv:2405.21060).
struct Mamba2Config {
  uint32_t n_heads = 0, head_dim = 0, n_groups = 0, d_state = 0, d_conv = 0;
  float dt_min = 0.0f, dt_max = std::numeric_limits<float>::infinity();  // clamp after softplus
  Gating gating = Gating::kGateThenNorm;
  uint32_t norm_groups = 1;  // blocks that the gated norm normalizes on their own
  float gated_norm_eps = 1e-5f;
  uint32_t d_mlp = 0;  // up and gate rows beside the mixer's, whose product joins y; 0: none
};

// Mamba-3 mixer: no convolution, a two-tap input, rotated B and C. MIMO: x, z and the output have
// `rank` versions, made and joined by the weights mimo_x, mimo_z and mimo_o.
struct Mamba3Config {
  uint32_t n_heads = 0, head_dim = 0, n_groups = 0, d_state = 0;
  uint32_t rank = 1;
  bool mimo = false;
  uint32_t n_angles = 0;  // pairs (s, s + d_state / 2) that rotate, s = 0 .. n_angles - 1
  float a_floor = 1e-4f;  // A <= -a_floor
  bool out_norm = false;  // RMS norm of y per head and rank before the gate
};

// Causal attention with grouped queries: query head h reads key/value head h / (n_heads /
// n_kv_heads).
struct AttentionConfig {
  uint32_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
  uint32_t rotary_dim = 0;  // leading dimensions of a head that rotate, in pairs (i, i + dim / 2)
  float scale = 0.0f;       // of q k
  uint32_t d_conv = 0;      // taps of a convolution over q, k and v without activation; 0: none
  uint32_t d_mlp = 0;  // up and gate rows beside q, k, v whose product joins the context; 0: none
};

enum class Activation { kSilu, kRelu2, kGelu };  // kGelu is the erf form

// down(act(gate x) * (up x)), or down(act(up x)) without gate.
struct MlpConfig {
  uint32_t d_ff = 0;
  Activation activation = Activation::kSilu;
  bool gated = true;
};

// How a mixture of experts weighs the top_k it chooses.
enum class Routing {
  kSoftmaxAll,  // softmax over all experts, the largest kept as they are (Jamba)
  kSoftmaxTop,  // softmax over the chosen logits (Granite)
  kSigmoid,     // sigmoid; a bias takes part in the choice only (Nemotron-H)
};

struct MoeConfig {
  uint32_t n_experts = 0, top_k = 0;
  MlpConfig expert = {};
  uint32_t d_shared = 0;  // width of an expert that every token takes; 0: none
  uint32_t d_latent = 0;  // width that routed experts work at; 0: d_model
  Routing routing = Routing::kSoftmaxAll;
  // kSigmoid only: the experts lie in n_groups, of which the best top_groups take part.
  uint32_t n_groups = 1, top_groups = 1;
  bool normalize = true;  // kSigmoid only: weights are divided by their sum
  float scale = 1.0f;     // of the weights
};

// h += mamba2(norm(h)) + attention(norm(h)) (Falcon-H1).
struct ParallelConfig {
  Mamba2Config mamba2;
  AttentionConfig attention;
};

// Zamba2: a transformer block shared by several layers reads (h; embedding) and adds its output to
// the input of this layer's Mamba-2 mixer. attention.scale etc. as above; its input is 2 d_model.
struct Zamba2Config {
  Mamba2Config mamba2;
  AttentionConfig attention;
  uint32_t shared = 0;  // which shared block
  uint32_t d_ff = 0;
  uint32_t adapter_rank = 0;            // of this layer's adapter of gate and up
  uint32_t attention_adapter_rank = 0;  // of q, k and v; 0: none
};

using Mixer = std::variant<Mamba1Config, Mamba2Config, Mamba3Config, AttentionConfig, MlpConfig,
                           MoeConfig, ParallelConfig, Zamba2Config>;

// One step of the residual stream: h += mixer(rms_norm(h, norm_eps)).
struct LayerConfig {
  float norm_eps = 1e-5f;
  Mixer mixer;
};
const char* BlockKindName(const LayerConfig& layer);  // "mamba1", "attention", ...

struct ModelConfig {
  std::string family;  // "mamba", "falcon_mamba", "mamba2"
  std::string type;    // what convert was asked for: "f32", "f16", "q8", "q4"
  uint32_t d_model = 0;
  uint32_t vocab_size = 0;  // ids that may be sampled
  uint32_t vocab_rows = 0;  // rows of the embedding and width of the logits, >= vocab_size
  bool tied_head = false;   // the head is the embedding
  float final_norm_eps = 1e-5f;
  float embedding_multiplier = 1.0f;  // of the embedding's rows, as input only
  float logits_multiplier = 1.0f;
  std::vector<LayerConfig> layers;

  int32_t bos = -1;           // -1: none
  std::vector<int32_t> eos;   // any of them ends a text; sorted
  std::string chat_template;  // Jinja, as published; empty: none
  // Free-form facts for people, shown by inspect: converter version, hash of the source weights,
  // ...
  std::vector<std::pair<std::string, std::string>> provenance;

  // Unknown block kinds are kUnsupported; anything missing or out of bounds is kCorruptFile.
  static Result<ModelConfig> FromJson(std::string_view json);
  std::string ToJson() const;  // deterministic
};

}  // namespace adder
