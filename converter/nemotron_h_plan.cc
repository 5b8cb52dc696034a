// Nemotron-H: every layer is one of Mamba-2, attention, MLP and mixture of experts.
// ARCHITECTURES.md section 10.
#include <cinttypes>

#include "converter/families.h"
#include "converter/layers.h"

namespace adder {
namespace {

const Keys kLists = {"layers_block_type", "layer_types", "hybrid_override_pattern"};

// What tensors do not tell about the experts.
Result<MoeConfig> ReadExperts(const Config& config, const MlpConfig& mlp) {
  MoeConfig moe;
  moe.expert = mlp;
  moe.routing = Routing::kSigmoid;
  const auto read = [&](const char* key, int64_t fallback, uint32_t* out) -> Status {
    ADDER_ASSIGN_OR_RETURN(const int64_t value, config.Int({key}, fallback));
    if (value < 0 || value > (1 << 20)) {
      return Error(Code::kCorruptFile, "%s: %s is %" PRId64 ", expected 0 to 2^20",
                   config.name().c_str(), key, value);
    }
    *out = static_cast<uint32_t>(value);
    return {};
  };
  ADDER_RETURN_IF_ERROR(read("num_experts_per_tok", 2, &moe.top_k));
  ADDER_RETURN_IF_ERROR(read("n_group", 1, &moe.n_groups));
  ADDER_RETURN_IF_ERROR(read("topk_group", 1, &moe.top_groups));
  ADDER_RETURN_IF_ERROR(read("moe_latent_size", 0, &moe.d_latent));
  ADDER_ASSIGN_OR_RETURN(moe.normalize, config.Bool({"norm_topk_prob"}, true));
  ADDER_ASSIGN_OR_RETURN(const double scale, ReadMultiplier(config, "routed_scaling_factor"));
  moe.scale = static_cast<float>(scale);
  return moe;
}

void PlanExperts(const std::string& to, const std::string& mixer, size_t d_model, MoeConfig* moe,
                 PlanBuilder& b) {
  const size_t n_experts = b.Dim(mixer + "gate.weight", 2, 0);
  MoeTensors tensors;
  tensors.router = mixer + "gate.weight";
  tensors.expert = [&](size_t e) {
    return ExpertTensors(mixer + "experts.", moe->expert.gated, e, n_experts, b);
  };
  if (b.Has(mixer + "shared_experts.down_proj.weight"))
    tensors.shared = ProjTensors(mixer + "shared_experts.", moe->expert.gated);
  PlanMoe(to, tensors, d_model, 1.0, moe, b);
  b.ArrayOrZeros(to + "router_bias", mixer + "gate.e_score_correction_bias", n_experts,
                 Channels::Padded(0, n_experts));
  if (moe->d_latent == 0) return;
  b.Matrix(to + "latent_in", Role::kBulk, mixer + "fc1_latent_proj.weight", moe->d_latent, d_model);
  b.Matrix(to + "latent_out", Role::kBulk, mixer + "fc2_latent_proj.weight", d_model,
           moe->d_latent);
}

Result<Mamba2Settings> ReadMamba2(const Config& config, size_t d_model, double eps) {
  Mamba2Settings s;
  s.d_model = d_model;
  s.gated_norm_eps = eps;
  s.head_dim_key = "mamba_head_dim";
  s.d_state_key = "ssm_state_size";
  ADDER_ASSIGN_OR_RETURN(s.head_dim, config.Int({"mamba_head_dim"}, 64));
  ADDER_ASSIGN_OR_RETURN(s.n_groups, config.Int({"n_groups", "mamba_n_groups"}, 8));
  ADDER_ASSIGN_OR_RETURN(s.d_state, config.Int({"ssm_state_size"}, 128));
  // time_step_min only belongs to the initialization: as trained, there is no lower limit.
  ADDER_RETURN_IF_ERROR(ReadLimits(config, {"time_step_limit", "mamba_dt_limit"}, &s));
  ADDER_RETURN_IF_ERROR(CheckMamba2Sizes(config, s));
  ADDER_ASSIGN_OR_RETURN(const Activation act, ReadActivation(config, "mamba_hidden_act", "silu"));
  if (act == Activation::kSilu) return s;
  return Error(Code::kUnsupported, "%s: mamba_hidden_act is not silu", config.name().c_str());
}

Result<double> ReadNormEpsilon(const Config& config) {
  for (const char* key : {"layer_norm_epsilon", "norm_eps"}) {
    if (config.Has({key})) return ReadEpsilon(config, key, 1e-5);
  }
  return ReadEpsilon(config, "rms_norm_eps", 1e-5);
}

}  // namespace

Result<ModelHead> PlanNemotronH(const Config& config, const CheckpointNames& names,
                                PlanBuilder& b) {
  ADDER_ASSIGN_OR_RETURN(const uint32_t d_model, ModelWidth(config, names, b));
  ADDER_ASSIGN_OR_RETURN(const double eps, ReadNormEpsilon(config));
  ADDER_ASSIGN_OR_RETURN(const Mamba2Settings mamba2, ReadMamba2(config, d_model, eps));
  ADDER_ASSIGN_OR_RETURN(AttentionSettings attention, ReadAttention(config, d_model, 128));
  MlpConfig mlp;
  mlp.gated = false;
  ADDER_ASSIGN_OR_RETURN(mlp.activation, ReadActivation(config, "mlp_hidden_act", "relu2"));
  ADDER_ASSIGN_OR_RETURN(const MoeConfig experts, ReadExperts(config, mlp));
  // num_hidden_layers may say anything.
  const size_t layers = LayersPresent(names, b);
  if (!config.Has(kLists)) {
    return Error(Code::kCorruptFile, "%s: layers_block_type or hybrid_override_pattern is missing",
                 config.name().c_str());
  }
  ADDER_ASSIGN_OR_RETURN(
      const std::vector<LayerType> types,
      ResolveLayerTypes(config, kLists, std::vector<LayerType>(layers), /*said=*/false));
  for (size_t i = 0; i < layers; ++i) {
    const std::string from = names.root + "layers." + std::to_string(i) + ".";
    const std::string mixer = from + "mixer.";
    const std::string to = b.NextLayer();
    b.Array(to + "norm", from + "norm.weight", d_model);
    switch (types[i]) {
      case LayerType::kSsm: {
        ADDER_ASSIGN_OR_RETURN(const Mamba2Config c, PlanMamba2Mixer(to, mixer, mamba2, config, b));
        b.AddLayer(eps, c);
        break;
      }
      case LayerType::kAttention: {
        ADDER_ASSIGN_OR_RETURN(const AttentionConfig c, PlanAttention(to, mixer, attention, b));
        b.AddLayer(eps, c);
        break;
      }
      case LayerType::kMlp:
        mlp.d_ff =
            static_cast<uint32_t>(PlanMlp(to, ProjTensors(mixer, mlp.gated), d_model, 1.0, 1.0, b));
        b.AddLayer(eps, mlp);
        break;
      case LayerType::kMoe: {
        MoeConfig moe = experts;
        PlanExperts(to, mixer, d_model, &moe, b);
        b.AddLayer(eps, moe);
        break;
      }
      case LayerType::kHybrid:
        return WrongLayerType(config, "nemotron_h", i);
    }
    ADDER_RETURN_IF_ERROR(b.status());
  }
  return ReadHybridHead(config, "nemotron_h", eps);
}

}  // namespace adder
