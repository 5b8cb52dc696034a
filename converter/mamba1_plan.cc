// Mamba-1 checkpoints: Hugging Face layout, original mamba_ssm layout, Falcon-Mamba.
// ARCHITECTURES.md sections 3 and 4.
#include "converter/families.h"
#include "converter/layers.h"

namespace adder {

Result<Mamba1Config> PlanMamba1Mixer(const std::string& to, const std::string& mixer,
                                     size_t d_model, double norm_eps, bool weighted,
                                     PlanBuilder& b) {
  const size_t d_inner = b.Dim(mixer + "A_log", 2, 0);
  const size_t d_state = b.Dim(mixer + "A_log", 2, 1);
  const size_t dt_rank = b.Dim(mixer + "dt_proj.weight", 2, 1);
  const size_t d_conv = b.Dim(mixer + "conv1d.weight", 3, 2);
  ADDER_RETURN_IF_ERROR(b.status());

  const size_t x_rows = dt_rank + 2 * d_state;
  const Channels all_of_model = Channels::Range(0, d_model);
  const Channels all_of_inner = Channels::Range(0, d_inner);
  const Channels inner = Channels::Padded(0, d_inner);
  const auto in_proj = [&](const char* name, Channels rows) {
    b.Matrix(to + name, Role::kBulk, mixer + "in_proj.weight", 2 * d_inner, d_model, rows,
             all_of_model);
  };
  in_proj("in_x", Channels::Range(0, d_inner));
  in_proj("in_z", Channels::Range(d_inner, d_inner));
  b.Convolution(to + "conv.weight", mixer + "conv1d.weight", d_inner, d_conv, inner);
  b.ArrayOrZeros(to + "conv.bias", mixer + "conv1d.bias", d_inner, inner);
  const auto x_proj = [&](const char* name, Channels rows) {
    b.Matrix(to + name, Role::kSensitive, mixer + "x_proj.weight", x_rows, d_inner, rows,
             all_of_inner);
  };
  x_proj("x_dt", Channels::Range(0, dt_rank));
  x_proj("x_b", Channels::Range(dt_rank, d_state));
  x_proj("x_c", Channels::Range(dt_rank + d_state, d_state));
  if (weighted) {
    b.Array(to + "dt_norm", mixer + "dt_layernorm.weight", dt_rank);
    b.Array(to + "b_norm", mixer + "b_layernorm.weight", d_state);
    b.Array(to + "c_norm", mixer + "c_layernorm.weight", d_state);
  }
  // The bias of dt_proj is added once, together with softplus.
  b.MatrixWithoutBias(to + "dt_proj", Role::kSensitive, mixer + "dt_proj.weight", d_inner, dt_rank,
                      all_of_inner, Channels::Range(0, dt_rank));
  b.Array(to + "dt_bias", mixer + "dt_proj.bias", d_inner, inner);
  b.StateMatrix(to + "a", mixer + "A_log", d_inner, d_state, inner);
  b.Array(to + "d", mixer + "D", d_inner, inner);
  b.Matrix(to + "out_proj", Role::kBulk, mixer + "out_proj.weight", d_model, d_inner, all_of_model,
           all_of_inner);
  ADDER_RETURN_IF_ERROR(b.status());
  return Mamba1Config{.d_inner = static_cast<uint32_t>(d_inner),
                      .d_state = static_cast<uint32_t>(d_state),
                      .d_conv = static_cast<uint32_t>(d_conv),
                      .dt_rank = static_cast<uint32_t>(dt_rank),
                      .bcdt_norm_eps = static_cast<float>(norm_eps),
                      .bcdt_norm_weights = weighted};
}

namespace {

Status PlanLayers(const CheckpointNames& names, uint32_t d_model, size_t layers, double norm_eps,
                  double bcdt_norm_eps, const OriginalOptions& options, PlanBuilder& b) {
  for (size_t i = 0; i < layers; ++i) {
    const std::string from = names.root + "layers." + std::to_string(i) + ".";
    const std::string to = b.NextLayer();
    b.Array(to + "norm", from + "norm.weight", d_model);
    if (options.Attends(i)) {
      ADDER_RETURN_IF_ERROR(PlanOriginalAttention(from + "mixer.", options, d_model, norm_eps, b));
    } else {
      ADDER_ASSIGN_OR_RETURN(
          const Mamba1Config mixer,
          PlanMamba1Mixer(to, from + "mixer.", d_model, bcdt_norm_eps, /*weighted=*/false, b));
      b.AddLayer(norm_eps, mixer);
    }
    if (options.mlp) PlanOriginalMlp(from, d_model, norm_eps, b);
  }
  return b.status();
}

// Falcon-Mamba is the same checkpoint layout with three weightless norms that no tensor reveals.
Result<ModelHead> PlanHf(const Config& config, const CheckpointNames& names, const char* family,
                         double bcdt_norm_eps, PlanBuilder& b) {
  ModelHead head;
  head.family = family;
  ADDER_RETURN_IF_ERROR(CheckActivation(config));
  ADDER_ASSIGN_OR_RETURN(const uint32_t d_model, ModelWidth(config, names, b));
  ADDER_ASSIGN_OR_RETURN(const size_t layers, CountLayers(config, names, b));
  ADDER_ASSIGN_OR_RETURN(head.norm_eps, ReadEpsilon(config, "layer_norm_epsilon", 1e-5));
  ADDER_ASSIGN_OR_RETURN(head.vocab_size, config.Int({"vocab_size"}, 50280));
  ADDER_ASSIGN_OR_RETURN(head.tied, config.Bool({"tie_word_embeddings", "tie_embeddings"}, true));
  const std::string mixer = names.root + "layers.0.mixer.";
  CheckBiasFlag(config, "use_bias", false, b.Has(mixer + "in_proj.bias"), b);
  CheckBiasFlag(config, "use_conv_bias", true, b.Has(mixer + "conv1d.bias"), b);
  ADDER_RETURN_IF_ERROR(PlanLayers(names, d_model, layers, head.norm_eps, bcdt_norm_eps, {}, b));
  return head;
}

}  // namespace

Result<ModelHead> PlanHfMamba1(const Config& config, const CheckpointNames& names,
                               PlanBuilder& builder) {
  return PlanHf(config, names, "mamba", 0.0, builder);
}

Result<ModelHead> PlanFalconMamba(const Config& config, const CheckpointNames& names,
                                  PlanBuilder& builder) {
  ADDER_ASSIGN_OR_RETURN(const double eps, ReadEpsilon(config, "mixer_rms_eps", 1e-6));
  return PlanHf(config, names, "falcon_mamba", eps, builder);
}

Result<ModelHead> PlanOriginalMamba1(const Config& config, const CheckpointNames& names,
                                     PlanBuilder& b) {
  ModelHead head;
  head.family = "mamba";
  ADDER_ASSIGN_OR_RETURN(const OriginalOptions options, ReadOriginalOptions(config));
  ADDER_ASSIGN_OR_RETURN(const uint32_t d_model, ModelWidth(config, names, b));
  ADDER_ASSIGN_OR_RETURN(const size_t layers, CountLayers(config, names, b));
  ADDER_ASSIGN_OR_RETURN(head.vocab_size, config.Int({"vocab_size"}, std::nullopt));
  ADDER_ASSIGN_OR_RETURN(head.tied, config.Bool({"tie_embeddings"}, true));
  ADDER_RETURN_IF_ERROR(PlanLayers(names, d_model, layers, head.norm_eps, 0.0, options, b));
  return head;
}

}  // namespace adder
