// Falcon-H1: Mamba-2 and attention side by side, then an MLP; multipliers everywhere.
// ARCHITECTURES.md section 12.
#include <cmath>

#include "converter/families.h"
#include "converter/layers.h"

namespace adder {
namespace {

// `count` multipliers under `key`; all 1 if absent.
Result<std::vector<double>> ReadMultipliers(const Config& config, const char* key, size_t count) {
  const Json* list = config.Find({key});
  std::vector<double> values(count, 1.0);
  if (list == nullptr) return values;
  bool valid = list->is_array() && list->items().size() == count;
  for (size_t i = 0; valid && i < count; ++i) {
    values[i] = list->items()[i].AsDouble();
    valid = list->items()[i].is_number() && std::isfinite(values[i]);
  }
  if (valid) return values;
  return Error(Code::kCorruptFile, "%s: %s is not a list of %zu finite numbers",
               config.name().c_str(), key, count);
}

Result<Mamba2Settings> ReadMamba2(const Config& config, size_t d_model, double eps) {
  Mamba2Settings s;
  s.d_model = d_model;
  s.gated_norm_eps = eps;
  ADDER_RETURN_IF_ERROR(ReadMamba2Keys(config, &s));
  ADDER_ASSIGN_OR_RETURN(const bool norm, config.Bool({"mamba_rms_norm"}, false));
  ADDER_ASSIGN_OR_RETURN(const bool norm_first, config.Bool({"mamba_norm_before_gate"}, true));
  s.gating = !norm ? Gating::kGateOnly : norm_first ? Gating::kNormThenGate : Gating::kGateThenNorm;
  ADDER_ASSIGN_OR_RETURN(s.in, ReadMultiplier(config, "ssm_in_multiplier"));
  ADDER_ASSIGN_OR_RETURN(s.out, ReadMultiplier(config, "ssm_out_multiplier"));
  ADDER_ASSIGN_OR_RETURN(const std::vector<double> rows,
                         ReadMultipliers(config, "ssm_multipliers", 5));
  s.z = rows[0], s.x = rows[1], s.b = rows[2], s.c = rows[3], s.dt = rows[4];
  return s;
}

Result<AttentionSettings> ReadFullAttention(const Config& config, size_t d_model) {
  ADDER_ASSIGN_OR_RETURN(AttentionSettings s, ReadAttention(config, d_model));
  ADDER_ASSIGN_OR_RETURN(s.rope, RopeFrequencies(config, s.head_dim));
  ADDER_ASSIGN_OR_RETURN(s.in, ReadMultiplier(config, "attention_in_multiplier"));
  ADDER_ASSIGN_OR_RETURN(s.key, ReadMultiplier(config, "key_multiplier"));
  ADDER_ASSIGN_OR_RETURN(s.out, ReadMultiplier(config, "attention_out_multiplier"));
  return s;
}

}  // namespace

Result<ModelHead> PlanFalconH1(const Config& config, const CheckpointNames& names, PlanBuilder& b) {
  ADDER_RETURN_IF_ERROR(CheckActivation(config));
  ADDER_ASSIGN_OR_RETURN(const uint32_t d_model, ModelWidth(config, names, b));
  ADDER_ASSIGN_OR_RETURN(const size_t layers, CountLayers(config, names, b));
  ADDER_ASSIGN_OR_RETURN(const double eps, ReadEpsilon(config, "rms_norm_eps", 1e-5));
  ADDER_ASSIGN_OR_RETURN(const Mamba2Settings mamba2, ReadMamba2(config, d_model, eps));
  ADDER_ASSIGN_OR_RETURN(const AttentionSettings attention, ReadFullAttention(config, d_model));
  ADDER_ASSIGN_OR_RETURN(const std::vector<double> mlp_multipliers,
                         ReadMultipliers(config, "mlp_multipliers", 2));
  ADDER_ASSIGN_OR_RETURN(const bool has_mlp, config.Bool({"mamba_use_mlp"}, true));
  if (!has_mlp) {
    return Error(Code::kUnsupported, "%s: mamba_use_mlp is false; such models are not supported",
                 config.name().c_str());
  }
  for (size_t i = 0; i < layers; ++i) {
    const std::string from = names.root + "layers." + std::to_string(i) + ".";
    const std::string to = b.NextLayer();
    ParallelConfig mixers;
    for (const char* part : {"ssm.norm", "attn.norm"}) {
      b.Array(to + part, from + "input_layernorm.weight", d_model);
    }
    ADDER_ASSIGN_OR_RETURN(mixers.mamba2,
                           PlanMamba2Mixer(to + "ssm.", from + "mamba.", mamba2, config, b));
    ADDER_ASSIGN_OR_RETURN(mixers.attention,
                           PlanAttention(to + "attn.", from + "self_attn.", attention, b));
    b.AddLayer(eps, mixers);

    const std::string ff = b.NextLayer();
    b.Array(ff + "norm", from + "pre_ff_layernorm.weight", d_model);
    MlpConfig mlp;
    mlp.d_ff = static_cast<uint32_t>(PlanMlp(ff, ProjTensors(from + "feed_forward.", true), d_model,
                                             mlp_multipliers[0], mlp_multipliers[1], b));
    b.AddLayer(eps, mlp);
    ADDER_RETURN_IF_ERROR(b.status());
  }
  ADDER_ASSIGN_OR_RETURN(ModelHead head, ReadHybridHead(config, "falcon_h1", eps));
  ADDER_ASSIGN_OR_RETURN(head.embedding_multiplier, ReadMultiplier(config, "embedding_multiplier"));
  ADDER_ASSIGN_OR_RETURN(head.logits_multiplier, ReadMultiplier(config, "lm_head_multiplier"));
  return head;
}

}  // namespace adder
