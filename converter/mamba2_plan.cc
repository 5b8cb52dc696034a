// Mamba-2 checkpoints: Hugging Face layout, original mamba_ssm layout, Codestral's own folder.
// ARCHITECTURES.md section 5.
#include <cmath>
#include <limits>

#include "converter/families.h"

namespace adder {
namespace {

struct Settings {
  uint32_t d_model = 0;
  size_t layers = 0;
  int64_t head_dim = 0, n_groups = 0, d_state = 0;  // what the configuration says
  double norm_eps = 1e-5, gated_norm_eps = 1e-5;
  double dt_min = 0.0, dt_max = std::numeric_limits<double>::infinity();
  Gating gating = Gating::kGateThenNorm;
  const char* head_dim_key = "head_dim";
  const char* n_groups_key = "n_groups";
  const char* d_state_key = "state_size";
  OriginalOptions options;
};

// [lo, hi] under one of `keys`; absent or null: no limit. 1e30 and more stand for infinity, however
// it was spelled.
Status ReadLimits(const Config& config, std::initializer_list<std::string_view> keys,
                  Settings* settings) {
  const Json* value = config.Find(keys);
  if (value == nullptr) return {};
  const std::string key(*keys.begin());
  if (!value->is_array() || value->items().size() != 2) {
    return Error(Code::kCorruptFile, "%s: %s is not a pair of numbers", config.name().c_str(),
                 key.c_str());
  }
  double limits[2] = {0.0, std::numeric_limits<double>::infinity()};
  for (size_t i = 0; i < 2; ++i) {
    const Json& limit = value->items()[i];
    if (limit.is_null()) continue;
    if (!limit.is_number() || std::isnan(limit.AsDouble())) {
      return Error(Code::kCorruptFile, "%s: %s[%zu] is not a number", config.name().c_str(),
                   key.c_str(), i);
    }
    limits[i] = limit.AsDouble();
  }
  if (limits[1] >= 1e30) limits[1] = std::numeric_limits<double>::infinity();
  if (limits[0] < 0) limits[0] = 0;  // softplus is never negative
  if (limits[0] > limits[1] || limits[0] >= 1e30) {
    return Error(Code::kCorruptFile,
                 "%s: %s is [%g, %g], the lower limit must not exceed the upper",
                 config.name().c_str(), key.c_str(), limits[0], limits[1]);
  }
  settings->dt_min = limits[0];
  settings->dt_max = limits[1];
  return {};
}

// The sizes of a layer's mixer, from its tensors, checked against the configuration where shapes
// cannot decide (how d_inner splits into heads, and n_groups * d_state into its factors).
Result<Mamba2Config> MixerConfig(const std::string& mixer, const Settings& s, const Config& config,
                                 PlanBuilder& b) {
  const size_t d_inner = b.Dim(mixer + "out_proj.weight", 2, 1);
  const size_t n_heads = b.Dim(mixer + "A_log", 1, 0);
  const size_t conv_channels = b.Dim(mixer + "conv1d.weight", 3, 0);
  const size_t d_conv = b.Dim(mixer + "conv1d.weight", 3, 2);
  const size_t in_rows = b.Dim(mixer + "in_proj.weight", 2, 0);
  ADDER_RETURN_IF_ERROR(b.status());
  const auto bc = static_cast<size_t>(2 * s.n_groups * s.d_state);
  const auto fail = [&](const std::string& what) {
    return Error(Code::kCorruptFile, "%s: %s", mixer.c_str(), what.c_str());
  };
  if (n_heads * static_cast<size_t>(s.head_dim) != d_inner) {
    return fail(std::to_string(n_heads) + " heads (A_log) of " + s.head_dim_key + " " +
                std::to_string(s.head_dim) + " (" + config.name() + ") do not make the " +
                std::to_string(d_inner) + " inputs of out_proj");
  }
  if (conv_channels != d_inner + bc) {
    return fail("conv1d has " + std::to_string(conv_channels) + " channels, expected " +
                std::to_string(d_inner + bc) + " from " + s.n_groups_key + " " +
                std::to_string(s.n_groups) + " and " + s.d_state_key + " " +
                std::to_string(s.d_state) + " of " + config.name());
  }
  if (in_rows != 2 * d_inner + bc + n_heads) {
    return fail("in_proj has " + std::to_string(in_rows) + " rows, expected " +
                std::to_string(2 * d_inner + bc + n_heads) +
                " (a d_ssm smaller than the inner width is not supported)");
  }
  return Mamba2Config{
      .n_heads = static_cast<uint32_t>(n_heads),
      .head_dim = static_cast<uint32_t>(s.head_dim),
      .n_groups = static_cast<uint32_t>(s.n_groups),
      .d_state = static_cast<uint32_t>(s.d_state),
      .d_conv = static_cast<uint32_t>(d_conv),
      .dt_min = static_cast<float>(s.dt_min),
      .dt_max = static_cast<float>(s.dt_max),
      .gating = s.gating,
      // As trained: the norm is per group (transformers' Mamba2 differs for n_groups > 1).
      .norm_groups = static_cast<uint32_t>(s.n_groups),
      .gated_norm_eps = static_cast<float>(s.gated_norm_eps)};
}

void PlanMixer(const std::string& to, const std::string& mixer, const Mamba2Config& c,
               size_t d_model, PlanBuilder& b) {
  const size_t d_inner = size_t{c.n_heads} * c.head_dim;
  const size_t bc = size_t{2} * c.n_groups * c.d_state;
  const size_t in_rows = 2 * d_inner + bc + c.n_heads;
  const Channels all_of_model = Channels::Range(0, d_model);
  const Channels heads = Channels::Heads(0, c.n_heads, c.head_dim);
  const auto in_proj = [&](const char* name, Role role, Channels rows) {
    b.Matrix(to + name, role, mixer + "in_proj.weight", in_rows, d_model, rows, all_of_model);
  };
  in_proj("in_z", Role::kBulk, heads);
  in_proj("in_x", Role::kBulk, Channels::Heads(d_inner, c.n_heads, c.head_dim));
  in_proj("in_bc", Role::kSensitive, Channels::Range(2 * d_inner, bc));
  in_proj("in_dt", Role::kSensitive, Channels::Range(2 * d_inner + bc, c.n_heads));
  const auto convolution = [&](const std::string& name, Channels channels) {
    b.Convolution(to + name + ".weight", mixer + "conv1d.weight", d_inner + bc, c.d_conv, channels);
    b.ArrayOrZeros(to + name + ".bias", mixer + "conv1d.bias", d_inner + bc, channels);
  };
  convolution("conv_x", heads);
  convolution("conv_bc", Channels::Padded(d_inner, bc));
  b.Array(to + "dt_bias", mixer + "dt_bias", c.n_heads, Channels::Padded(0, c.n_heads));
  b.Array(to + "a", mixer + "A_log", c.n_heads, Channels::Range(0, c.n_heads),
          NegativeExpTimesLog2E);
  b.PerHead(to + "d", mixer + "D", heads);
  if (c.gating != Gating::kGateOnly)
    b.Array(to + "gated_norm", mixer + "norm.weight", d_inner, heads);
  b.Matrix(to + "out_proj", Role::kBulk, mixer + "out_proj.weight", d_model, d_inner, all_of_model,
           heads);
}

Status PlanLayers(const Config& config, const CheckpointNames& names, const Settings& settings,
                  PlanBuilder& b) {
  for (size_t i = 0; i < settings.layers; ++i) {
    const std::string from = names.root + "layers." + std::to_string(i) + ".";
    const std::string to = NextLayer(b);
    ADDER_ASSIGN_OR_RETURN(const Mamba2Config mixer,
                           MixerConfig(from + "mixer.", settings, config, b));
    b.Array(to + "norm", from + "norm.weight", settings.d_model,
            Channels::Range(0, settings.d_model));
    PlanMixer(to, from + "mixer.", mixer, settings.d_model, b);
    ADDER_RETURN_IF_ERROR(b.status());
    b.plan().config.layers.push_back({static_cast<float>(settings.norm_eps), mixer});
    if (settings.options.mlp) PlanOriginalMlp(from, settings.d_model, settings.norm_eps, b);
  }
  return b.status();
}

// Positive sizes that later arithmetic cannot overflow.
Status CheckSizes(const Config& config, const Settings& s) {
  for (const auto& [key, value] :
       {std::pair(s.head_dim_key, s.head_dim), std::pair(s.n_groups_key, s.n_groups),
        std::pair(s.d_state_key, s.d_state)}) {
    if (value < 1 || value > (1 << 16)) {
      return Error(Code::kCorruptFile, "%s: %s is %lld, expected 1 to 65536", config.name().c_str(),
                   key, static_cast<long long>(value));
    }
  }
  return {};
}

}  // namespace

Result<ModelHead> PlanHfMamba2(const Config& config, const CheckpointNames& names, PlanBuilder& b) {
  Settings s;
  ModelHead head;
  head.family = "mamba2";
  ADDER_RETURN_IF_ERROR(CheckActivation(config));
  ADDER_ASSIGN_OR_RETURN(s.d_model, ModelWidth(config, names, b));
  ADDER_ASSIGN_OR_RETURN(s.layers, CountLayers(config, names, b));
  ADDER_ASSIGN_OR_RETURN(s.head_dim, config.IntOrAuto({"head_dim"}, 64));
  ADDER_ASSIGN_OR_RETURN(s.n_groups, config.Int({"n_groups"}, 8));
  ADDER_ASSIGN_OR_RETURN(s.d_state, config.Int({"state_size", "d_state"}, 128));
  ADDER_ASSIGN_OR_RETURN(head.norm_eps, ReadEpsilon(config, "layer_norm_epsilon", 1e-5));
  ADDER_RETURN_IF_ERROR(ReadLimits(config, {"time_step_limit"}, &s));
  ADDER_RETURN_IF_ERROR(CheckSizes(config, s));
  s.norm_eps = s.gated_norm_eps = head.norm_eps;
  ADDER_ASSIGN_OR_RETURN(head.vocab_size, config.Int({"vocab_size"}, 32768));
  ADDER_ASSIGN_OR_RETURN(
      head.tied,
      config.Bool({"tie_word_embeddings", "tie_embedding_weights", "tie_embeddings"}, false));
  const std::string mixer = names.root + "layers.0.mixer.";
  CheckBiasFlag(config, "use_bias", false, b.Has(mixer + "in_proj.bias"), b);
  CheckBiasFlag(config, "use_conv_bias", true, b.Has(mixer + "conv1d.bias"), b);
  ADDER_RETURN_IF_ERROR(PlanLayers(config, names, s, b));
  return head;
}

Result<ModelHead> PlanOriginalMamba2(const Config& config, const CheckpointNames& names,
                                     PlanBuilder& b) {
  Settings s;
  s.head_dim_key = "ssm_cfg.headdim";
  s.n_groups_key = "ssm_cfg.ngroups";
  s.d_state_key = "ssm_cfg.d_state";
  ModelHead head;
  head.family = "mamba2";
  ADDER_ASSIGN_OR_RETURN(s.options, ReadOriginalOptions(config));
  ADDER_ASSIGN_OR_RETURN(s.d_model, ModelWidth(config, names, b));
  ADDER_ASSIGN_OR_RETURN(s.layers, CountLayers(config, names, b));
  ADDER_ASSIGN_OR_RETURN(const Config ssm, config.Object("ssm_cfg"));
  ADDER_ASSIGN_OR_RETURN(s.head_dim, ssm.Int({"headdim"}, 64));
  ADDER_ASSIGN_OR_RETURN(s.n_groups, ssm.Int({"ngroups"}, 1));
  ADDER_ASSIGN_OR_RETURN(s.d_state, ssm.Int({"d_state"}, 128));
  ADDER_RETURN_IF_ERROR(ReadLimits(ssm, {"dt_limit"}, &s));
  ADDER_RETURN_IF_ERROR(CheckSizes(config, s));
  ADDER_ASSIGN_OR_RETURN(const bool rms_norm, ssm.Bool({"rmsnorm"}, true));
  ADDER_ASSIGN_OR_RETURN(const bool norm_before_gate, ssm.Bool({"norm_before_gate"}, false));
  s.gating = !rms_norm          ? Gating::kGateOnly
             : norm_before_gate ? Gating::kNormThenGate
                                : Gating::kGateThenNorm;
  ADDER_ASSIGN_OR_RETURN(head.vocab_size, config.Int({"vocab_size"}, std::nullopt));
  ADDER_ASSIGN_OR_RETURN(head.tied, config.Bool({"tie_embeddings"}, true));
  ADDER_RETURN_IF_ERROR(PlanLayers(config, names, s, b));
  return head;
}

Result<ModelHead> PlanCodestral(const Config& params, const CheckpointNames& names,
                                PlanBuilder& b) {
  Settings s;
  s.head_dim = 64;
  s.d_state = 128;
  ModelHead head;
  head.family = "mamba2";
  head.tied = false;
  ADDER_ASSIGN_OR_RETURN(s.d_model, ModelWidth(params, names, b));
  ADDER_ASSIGN_OR_RETURN(s.layers, CountLayers(params, names, b));
  ADDER_ASSIGN_OR_RETURN(s.n_groups, params.Int({"n_groups"}, 8));
  ADDER_RETURN_IF_ERROR(CheckSizes(params, s));
  ADDER_ASSIGN_OR_RETURN(head.vocab_size, params.Int({"vocab_size"}, 32768));
  ADDER_RETURN_IF_ERROR(PlanLayers(params, names, s, b));
  return head;
}

}  // namespace adder
