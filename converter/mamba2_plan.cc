// Mamba-2 checkpoints: Hugging Face layout, original mamba_ssm layout, Codestral's own folder.
// ARCHITECTURES.md section 5.
#include "converter/families.h"
#include "converter/layers.h"

namespace adder {
namespace {

Status PlanLayers(const Config& config, const CheckpointNames& names, size_t layers,
                  double norm_eps, const Mamba2Settings& settings, const OriginalOptions& options,
                  PlanBuilder& b) {
  for (size_t i = 0; i < layers; ++i) {
    const std::string from = names.root + "layers." + std::to_string(i) + ".";
    const std::string to = b.NextLayer();
    b.Array(to + "norm", from + "norm.weight", settings.d_model);
    if (options.Attends(i)) {
      ADDER_RETURN_IF_ERROR(
          PlanOriginalAttention(from + "mixer.", options, settings.d_model, norm_eps, b));
    } else {
      ADDER_ASSIGN_OR_RETURN(const Mamba2Config mixer,
                             PlanMamba2Mixer(to, from + "mixer.", settings, config, b));
      b.AddLayer(norm_eps, mixer);
    }
    if (options.mlp) PlanOriginalMlp(from, settings.d_model, norm_eps, b);
  }
  return b.status();
}

}  // namespace

Result<ModelHead> PlanHfMamba2(const Config& config, const CheckpointNames& names, PlanBuilder& b) {
  Mamba2Settings s;
  ModelHead head;
  head.family = "mamba2";
  ADDER_RETURN_IF_ERROR(CheckActivation(config));
  ADDER_ASSIGN_OR_RETURN(s.d_model, ModelWidth(config, names, b));
  ADDER_ASSIGN_OR_RETURN(const size_t layers, CountLayers(config, names, b));
  ADDER_ASSIGN_OR_RETURN(s.head_dim, config.IntOrAuto({"head_dim"}, 64));
  ADDER_ASSIGN_OR_RETURN(s.n_groups, config.Int({"n_groups"}, 8));
  ADDER_ASSIGN_OR_RETURN(s.d_state, config.Int({"state_size", "d_state"}, 128));
  ADDER_ASSIGN_OR_RETURN(head.norm_eps, ReadEpsilon(config, "layer_norm_epsilon", 1e-5));
  ADDER_RETURN_IF_ERROR(ReadLimits(config, {"time_step_limit"}, &s));
  ADDER_RETURN_IF_ERROR(CheckMamba2Sizes(config, s));
  s.gated_norm_eps = head.norm_eps;
  ADDER_ASSIGN_OR_RETURN(head.vocab_size, config.Int({"vocab_size"}, 32768));
  ADDER_ASSIGN_OR_RETURN(
      head.tied,
      config.Bool({"tie_word_embeddings", "tie_embedding_weights", "tie_embeddings"}, false));
  const std::string mixer = names.root + "layers.0.mixer.";
  CheckBiasFlag(config, "use_bias", false, b.Has(mixer + "in_proj.bias"), b);
  CheckBiasFlag(config, "use_conv_bias", true, b.Has(mixer + "conv1d.bias"), b);
  ADDER_RETURN_IF_ERROR(PlanLayers(config, names, layers, head.norm_eps, s, {}, b));
  return head;
}

Result<ModelHead> PlanOriginalMamba2(const Config& config, const CheckpointNames& names,
                                     PlanBuilder& b) {
  Mamba2Settings s;
  s.head_dim_key = "ssm_cfg.headdim";
  s.n_groups_key = "ssm_cfg.ngroups";
  s.d_state_key = "ssm_cfg.d_state";
  s.may_have_mlp = true;
  ModelHead head;
  head.family = "mamba2";
  ADDER_ASSIGN_OR_RETURN(const OriginalOptions options, ReadOriginalOptions(config));
  ADDER_ASSIGN_OR_RETURN(s.d_model, ModelWidth(config, names, b));
  ADDER_ASSIGN_OR_RETURN(const size_t layers, CountLayers(config, names, b));
  ADDER_ASSIGN_OR_RETURN(const Config ssm, config.Object("ssm_cfg"));
  ADDER_ASSIGN_OR_RETURN(s.head_dim, ssm.Int({"headdim"}, 64));
  ADDER_ASSIGN_OR_RETURN(s.n_groups, ssm.Int({"ngroups"}, 1));
  ADDER_ASSIGN_OR_RETURN(s.d_state, ssm.Int({"d_state"}, 128));
  ADDER_RETURN_IF_ERROR(ReadLimits(ssm, {"dt_limit"}, &s));
  ADDER_RETURN_IF_ERROR(CheckMamba2Sizes(config, s));
  ADDER_ASSIGN_OR_RETURN(const bool rms_norm, ssm.Bool({"rmsnorm"}, true));
  ADDER_ASSIGN_OR_RETURN(const bool norm_before_gate, ssm.Bool({"norm_before_gate"}, false));
  s.gating = !rms_norm          ? Gating::kGateOnly
             : norm_before_gate ? Gating::kNormThenGate
                                : Gating::kGateThenNorm;
  ADDER_ASSIGN_OR_RETURN(head.vocab_size, config.Int({"vocab_size"}, std::nullopt));
  ADDER_ASSIGN_OR_RETURN(head.tied, config.Bool({"tie_embeddings"}, true));
  ADDER_RETURN_IF_ERROR(PlanLayers(config, names, layers, head.norm_eps, s, options, b));
  return head;
}

Result<ModelHead> PlanCodestral(const Config& params, const CheckpointNames& names,
                                PlanBuilder& b) {
  Mamba2Settings s;
  s.head_dim = 64;
  ModelHead head;
  head.family = "mamba2";
  head.tied = false;
  ADDER_ASSIGN_OR_RETURN(s.d_model, ModelWidth(params, names, b));
  ADDER_ASSIGN_OR_RETURN(const size_t layers, CountLayers(params, names, b));
  ADDER_ASSIGN_OR_RETURN(s.n_groups, params.Int({"n_groups"}, 8));
  ADDER_RETURN_IF_ERROR(CheckMamba2Sizes(params, s));
  ADDER_ASSIGN_OR_RETURN(head.vocab_size, params.Int({"vocab_size"}, 32768));
  ADDER_RETURN_IF_ERROR(PlanLayers(params, names, layers, head.norm_eps, s, {}, b));
  return head;
}

}  // namespace adder
