// The parts of a layer that several families share, as they lie in published checkpoints. Each
// Plan function adds the tensors of one part under the prefix `to` and gives its configuration.
// Sizes come from the tensors where they can; multipliers of the families go into the weights.
#pragma once

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "converter/json.h"
#include "converter/plan.h"

namespace adder {

using Keys = std::initializer_list<std::string_view>;

// ---- layer_types.cc

enum class LayerType { kSsm, kAttention, kMlp, kMoe, kHybrid };
// The list under the first of `keys` that is there: names, or a string with a letter per layer.
// Empty without such a key.
Result<std::vector<LayerType>> ReadLayerTypes(const Config& config, Keys keys);
// That list for a checkpoint of `implied.size()` layers, or `implied` without one; an error if both
// are `said` and differ.
Result<std::vector<LayerType>> ResolveLayerTypes(const Config& config, Keys keys,
                                                 const std::vector<LayerType>& implied, bool said);
// A layer of a type that the family does not have.
Status WrongLayerType(const Config& config, const char* family, size_t layer);

// ---- mamba1_plan.cc

// norm_eps > 0: RMS norms on dt, B and C; with weights {dt,b,c}_layernorm if `weighted`.
Result<Mamba1Config> PlanMamba1Mixer(const std::string& to, const std::string& mixer,
                                     size_t d_model, double norm_eps, bool weighted,
                                     PlanBuilder& b);

// ---- mamba2_mixer.cc

// What tensors do not tell about a Mamba-2 mixer.
struct Mamba2Settings {
  size_t d_model = 0;
  int64_t head_dim = 0;  // 0: whatever the tensors leave for a head
  int64_t n_groups = 1, d_state = 128;
  double dt_min = 0.0, dt_max = std::numeric_limits<double>::infinity();
  Gating gating = Gating::kGateThenNorm;
  bool norm_per_group = true;  // else the gated norm takes the whole width
  double gated_norm_eps = 1e-5;
  bool may_have_mlp = false;  // rows of in_proj beyond those of the heads, as with d_ssm
  // Multipliers: of the input, of the rows of in_proj, of the output.
  double in = 1.0, z = 1.0, x = 1.0, b = 1.0, c = 1.0, dt = 1.0, out = 1.0;
  // For messages.
  const char* head_dim_key = "head_dim";
  const char* n_groups_key = "n_groups";
  const char* d_state_key = "state_size";
};
// [lo, hi] under one of `keys`; absent or null: no limit.
Status ReadLimits(const Config& config, Keys keys, Mamba2Settings* settings);
// The keys mamba_d_head, mamba_n_groups, mamba_d_state and time_step_limit.
Status ReadMamba2Keys(const Config& config, Mamba2Settings* settings);
// Positive sizes that later arithmetic cannot overflow.
Status CheckMamba2Sizes(const Config& config, const Mamba2Settings& settings);
Result<Mamba2Config> PlanMamba2Mixer(const std::string& to, const std::string& mixer,
                                     const Mamba2Settings& settings, const Config& config,
                                     PlanBuilder& b);

// ---- attention_plan.cc

struct AttentionSettings {
  size_t d_in = 0, d_out = 0;
  size_t n_heads = 0, head_dim = 0;
  size_t n_kv_heads = 0;                  // 0: whatever k_proj has
  double scale = 0.0;                     // of q k
  std::vector<float> rope;                // frequencies of the rotating pairs
  double in = 1.0, key = 1.0, out = 1.0;  // multipliers
};
// num_attention_heads, num_key_value_heads and head_dim; scale head_dim^-0.5, no rotation.
// Without a key, head_dim is `head_dim`, or d_model / num_attention_heads if that is 0.
Result<AttentionSettings> ReadAttention(const Config& config, size_t d_model, int64_t head_dim = 0);
// {q,k,v,o}_proj under `from`.
Result<AttentionConfig> PlanAttention(const std::string& to, const std::string& from,
                                      const AttentionSettings& settings, PlanBuilder& b);
// theta^(-2 i / rotary_dim), scaled as rope_parameters or rope_scaling say; and the same of a theta
// and an object that may name a scaling.
Result<std::vector<float>> RopeFrequencies(const Config& config, size_t rotary_dim);
Result<std::vector<float>> RotationFrequencies(const Config& scaling, double theta,
                                               size_t rotary_dim);

// ---- feed_forward_plan.cc

// Tensors of an MLP. Without gate, `gate` has no name; `gate` and `up` may be one tensor, whose
// first rows are the gate.
struct MlpTensors {
  Source gate, up, down;
};
// {gate,up,down}_proj.weight under `from`.
MlpTensors ProjTensors(const std::string& from, bool gated);
// Adds gate, up and down; gives d_ff. Multipliers of the rows of gate, and of the output.
size_t PlanMlp(const std::string& to, const MlpTensors& from, size_t width, double gate_scale,
               double down_scale, PlanBuilder& b);
// Expert `index` of `count` under `from`: <from>gate_up_proj or up_proj [count, ...] and down_proj
// if merged, else <from><index>.{gate,up,down}_proj.weight.
MlpTensors ExpertTensors(const std::string& from, bool gated, size_t index, size_t count,
                         const PlanBuilder& b);
struct MoeTensors {
  Source router;  // [n_experts, d_model]
  std::function<MlpTensors(size_t index)> expert;
  MlpTensors shared;  // `down` without a name: none
};
// Fills in the sizes of `moe` (n_experts, d_ff, d_shared); the widths of experts are d_latent or
// d_model.
void PlanMoe(const std::string& to, const MoeTensors& from, size_t d_model, double down_scale,
             MoeConfig* moe, PlanBuilder& b);
// "silu", "relu2" or "gelu" under `key`.
Result<Activation> ReadActivation(const Config& config, const char* key, const char* fallback);

}  // namespace adder
