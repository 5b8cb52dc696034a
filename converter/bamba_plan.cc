// Bamba: Mamba-2 or attention, each followed by an MLP. ARCHITECTURES.md section 8.
#include <algorithm>

#include "converter/families.h"
#include "converter/layers.h"

namespace adder {

Result<ModelHead> PlanBamba(const Config& config, const CheckpointNames& names, PlanBuilder& b) {
  ADDER_RETURN_IF_ERROR(CheckActivation(config));
  ADDER_ASSIGN_OR_RETURN(const uint32_t d_model, ModelWidth(config, names, b));
  ADDER_ASSIGN_OR_RETURN(const size_t layers, CountLayers(config, names, b));
  ADDER_ASSIGN_OR_RETURN(const double eps, ReadEpsilon(config, "rms_norm_eps", 1e-5));
  ADDER_ASSIGN_OR_RETURN(const std::vector<int64_t> indices,
                         config.IntList({"attn_layer_indices"}));
  Mamba2Settings mamba2;
  mamba2.d_model = d_model;
  mamba2.norm_per_group = false;
  mamba2.gated_norm_eps = eps;
  ADDER_RETURN_IF_ERROR(ReadMamba2Keys(config, &mamba2));
  ADDER_ASSIGN_OR_RETURN(AttentionSettings attention, ReadAttention(config, d_model));
  // Half of a head rotates, whatever partial_rotary_factor says.
  ADDER_ASSIGN_OR_RETURN(attention.rope, RopeFrequencies(config, attention.head_dim / 2));

  std::vector<LayerType> types(layers, LayerType::kSsm);
  for (size_t i = 0; i < layers; ++i) {
    if (std::count(indices.begin(), indices.end(), static_cast<int64_t>(i)) > 0)
      types[i] = LayerType::kAttention;
  }
  ADDER_ASSIGN_OR_RETURN(types, ResolveLayerTypes(config, {"layers_block_type", "layer_types"},
                                                  types, config.Has({"attn_layer_indices"})));
  for (size_t i = 0; i < layers; ++i) {
    const std::string from = names.root + "layers." + std::to_string(i) + ".";
    const std::string to = b.NextLayer();
    b.Array(to + "norm", from + "input_layernorm.weight", d_model);
    if (types[i] == LayerType::kAttention) {
      ADDER_ASSIGN_OR_RETURN(const AttentionConfig mixer,
                             PlanAttention(to, from + "self_attn.", attention, b));
      b.AddLayer(eps, mixer);
    } else if (types[i] == LayerType::kSsm) {
      ADDER_ASSIGN_OR_RETURN(const Mamba2Config mixer,
                             PlanMamba2Mixer(to, from + "mamba.", mamba2, config, b));
      b.AddLayer(eps, mixer);
    } else {
      return WrongLayerType(config, "bamba", i);
    }
    const std::string ff = b.NextLayer();
    b.Array(ff + "norm", from + "pre_ff_layernorm.weight", d_model);
    MlpConfig mlp;
    mlp.d_ff = static_cast<uint32_t>(
        PlanMlp(ff, ProjTensors(from + "feed_forward.", true), d_model, 1.0, 1.0, b));
    b.AddLayer(eps, mlp);
    ADDER_RETURN_IF_ERROR(b.status());
  }
  return ReadHybridHead(config, "bamba", eps);
}

}  // namespace adder
