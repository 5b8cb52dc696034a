// Granite 4 hybrids (granitemoehybrid): Mamba-2 or attention, each followed by an MLP or by experts
// with a shared one; multipliers. ARCHITECTURES.md section 9.
#include "converter/families.h"
#include "converter/layers.h"
#include "converter/text.h"

namespace adder {
namespace {

// Rotation over the whole head, or none at all.
Result<std::vector<float>> ReadRope(const Config& config, size_t head_dim) {
  ADDER_ASSIGN_OR_RETURN(const std::string type,
                         config.String({"position_embedding_type"}, "nope"));
  if (type == "nope") return std::vector<float>();
  if (type == "rope") return RopeFrequencies(config, head_dim);
  return Error(Code::kUnsupported,
               "%s: position_embedding_type is \"%s\"; nope and rope are supported",
               config.name().c_str(), Shown(type).c_str());
}

// Gate and up in one tensor, or in one each.
MlpTensors SharedTensors(const std::string& from, const PlanBuilder& b) {
  if (b.Has(from + "gate_proj.weight")) return ProjTensors(from, true);
  const Source gate_up = from + "input_linear.weight";
  return {gate_up, gate_up, from + "output_linear.weight"};
}

// All experts in one tensor, or in one each.
MlpTensors GraniteExpert(const std::string& from, size_t index, size_t count,
                         const PlanBuilder& b) {
  if (b.Has(from + "experts.0.gate_proj.weight"))
    return ExpertTensors(from + "experts.", true, index, count, b);
  const Source gate_up(from + "input_linear.weight", index, count);
  return {gate_up, gate_up, Source(from + "output_linear.weight", index, count)};
}

}  // namespace

Result<ModelHead> PlanGranite(const Config& config, const CheckpointNames& names, PlanBuilder& b) {
  ADDER_RETURN_IF_ERROR(CheckActivation(config));
  ADDER_ASSIGN_OR_RETURN(const uint32_t d_model, ModelWidth(config, names, b));
  ADDER_ASSIGN_OR_RETURN(const size_t layers, CountLayers(config, names, b));
  ADDER_ASSIGN_OR_RETURN(const double eps, ReadEpsilon(config, "rms_norm_eps", 1e-6));
  ADDER_ASSIGN_OR_RETURN(const double residual, ReadMultiplier(config, "residual_multiplier"));
  ADDER_ASSIGN_OR_RETURN(const int64_t experts, config.Int({"num_local_experts"}, 8));
  ADDER_ASSIGN_OR_RETURN(const int64_t top_k, config.Int({"num_experts_per_tok"}, 2));
  Mamba2Settings mamba2;
  mamba2.d_model = d_model;
  mamba2.norm_per_group = false;
  mamba2.gated_norm_eps = eps;
  mamba2.out = residual;
  ADDER_RETURN_IF_ERROR(ReadMamba2Keys(config, &mamba2));
  ADDER_ASSIGN_OR_RETURN(AttentionSettings attention, ReadAttention(config, d_model));
  ADDER_ASSIGN_OR_RETURN(attention.scale, ReadMultiplier(config, "attention_multiplier"));
  ADDER_ASSIGN_OR_RETURN(attention.rope, ReadRope(config, attention.head_dim));
  attention.out = residual;

  ADDER_ASSIGN_OR_RETURN(
      const std::vector<LayerType> types,
      ResolveLayerTypes(config, {"layer_types", "layers_block_type"},
                        std::vector<LayerType>(layers, LayerType::kSsm), /*said=*/false));
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
      return WrongLayerType(config, "granitemoehybrid", i);
    }

    const std::string ff = b.NextLayer();
    b.Array(ff + "norm", from + "post_attention_layernorm.weight", d_model);
    const MlpTensors shared = SharedTensors(from + "shared_mlp.", b);
    if (experts > 0) {
      MoeConfig moe;
      moe.top_k = static_cast<uint32_t>(top_k);
      moe.routing = Routing::kSoftmaxTop;
      const std::string sparse = from + "block_sparse_moe.";
      const auto expert = [&](size_t e) {
        return GraniteExpert(sparse, e, static_cast<size_t>(experts), b);
      };
      PlanMoe(ff, {.router = sparse + "router.layer.weight", .expert = expert, .shared = shared},
              d_model, residual, &moe, b);
      b.AddLayer(eps, moe);
    } else {
      MlpConfig mlp;
      mlp.d_ff = static_cast<uint32_t>(PlanMlp(ff, shared, d_model, 1.0, residual, b));
      b.AddLayer(eps, mlp);
    }
    ADDER_RETURN_IF_ERROR(b.status());
  }
  ADDER_ASSIGN_OR_RETURN(ModelHead head, ReadHybridHead(config, "granitemoehybrid", eps));
  ADDER_ASSIGN_OR_RETURN(head.embedding_multiplier, ReadMultiplier(config, "embedding_multiplier"));
  ADDER_ASSIGN_OR_RETURN(const double logits_scaling, ReadMultiplier(config, "logits_scaling"));
  if (logits_scaling <= 0) {
    return Error(Code::kCorruptFile, "%s: logits_scaling is %g, expected a positive number",
                 config.name().c_str(), logits_scaling);
  }
  head.logits_multiplier = 1 / logits_scaling;
  return head;
}

}  // namespace adder
