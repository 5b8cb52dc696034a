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

// Mamba-1 mixer (Gu and Dao, arXiv:2312.00752). Falcon-Mamba adds weightless RMS norms on dt, B, C.
struct Mamba1Config {
  uint32_t d_inner = 0, d_state = 0, d_conv = 0, dt_rank = 0;
  float bcdt_norm_eps = 0.0f;  // 0: no norms on dt, B and C
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
};

// One step of the residual stream: h += mixer(rms_norm(h, norm_eps)).
struct LayerConfig {
  float norm_eps = 1e-5f;
  std::variant<Mamba1Config, Mamba2Config> mixer;
};
const char* BlockKindName(const LayerConfig& layer);  // "mamba1", "mamba2"

struct ModelConfig {
  std::string family;  // "mamba", "falcon_mamba", "mamba2"
  std::string type;    // what convert was asked for: "f32", "f16", "q8", "q4"
  uint32_t d_model = 0;
  uint32_t vocab_size = 0;  // ids that may be sampled
  uint32_t vocab_rows = 0;  // rows of the embedding and width of the logits, >= vocab_size
  bool tied_head = false;   // the head is the embedding
  float final_norm_eps = 1e-5f;
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
