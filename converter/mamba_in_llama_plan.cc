// MambaInLlama: a Llama in whose place of attention most layers have Mamba-2 with as many groups as
// heads. x and B are computed for fewer heads and repeated, which here is done to the weights.
// ARCHITECTURES.md section 13.
#include <algorithm>
#include <cinttypes>

#include "converter/families.h"
#include "converter/layers.h"

namespace adder {
namespace {

struct Settings {
  size_t d_model = 0, d_inner = 0, d_xb = 0, d_state = 0;
  bool repeat_before_conv = false;
  double dt_min = 0.0, dt_max = 0.0;
};

Result<Settings> ReadSettings(const Config& config, size_t d_model) {
  ADDER_ASSIGN_OR_RETURN(const Config ssm, config.Object("ssm_cfg"));
  ADDER_ASSIGN_OR_RETURN(const double expand, ssm.Double({"expand"}, 1.0));
  ADDER_ASSIGN_OR_RETURN(
      const int64_t d_inner,
      config.Int({"d_inner"}, static_cast<int64_t>(expand * static_cast<double>(d_model))));
  ADDER_ASSIGN_OR_RETURN(const int64_t d_xb, config.Int({"d_xb"}, std::nullopt));
  ADDER_ASSIGN_OR_RETURN(const int64_t d_state, ssm.Int({"d_state"}, 128));
  if (d_inner < 1 || d_xb < 1 || d_state < 1 || d_inner > (1 << 24) || d_inner % d_xb != 0 ||
      d_xb % d_state != 0) {
    return Error(Code::kCorruptFile,
                 "%s: d_inner %" PRId64 ", d_xb %" PRId64 " and d_state %" PRId64
                 " must each be a multiple of the next",
                 config.name().c_str(), d_inner, d_xb, d_state);
  }
  Settings s;
  s.d_model = d_model;
  s.d_inner = static_cast<size_t>(d_inner);
  s.d_xb = static_cast<size_t>(d_xb);
  s.d_state = static_cast<size_t>(d_state);
  ADDER_ASSIGN_OR_RETURN(s.repeat_before_conv, ssm.Bool({"repeat_kv_before_conv"}, false));
  Mamba2Settings limits;
  ADDER_RETURN_IF_ERROR(ReadLimits(ssm, {"dt_limit"}, &limits));
  s.dt_min = limits.dt_min;
  s.dt_max = limits.dt_max;
  return s;
}

// Rows of in_proj: z, x, B, C, dt, of which x and B have d_xb rows to repeat.
Result<Mamba2Config> PlanMixer(const std::string& to, const std::string& mixer, const Settings& s,
                               PlanBuilder& b) {
  if (b.Has(mixer + "in_proj_x.weight")) {
    return Error(Code::kUnsupported,
                 "%s: the first generation of MambaInLlama (in_proj_x) is not supported",
                 mixer.c_str());
  }
  const size_t n = s.d_state, n_heads = s.d_inner / n,
               d_conv = b.Dim(mixer + "conv1d.weight", 3, 2);
  const size_t few = s.d_xb / n, repeat = n_heads / few;
  const auto repeated = [&](size_t begin, size_t padded_width) {
    return Channels::Repeated(begin, few, n, padded_width, repeat);
  };
  const size_t padded = RoundUp(n, kLanes);
  const Channels all_of_model = Channels::Range(0, s.d_model);
  const Channels heads = Channels::Heads(0, n_heads, n);
  const size_t in_rows = 2 * s.d_inner + 2 * s.d_xb + n_heads;
  const auto in_proj = [&](const char* name, Role role, const Selection& rows) {
    b.Matrix(to + name, role, mixer + "in_proj.weight", in_rows, s.d_model, rows, all_of_model);
  };
  const size_t x = s.d_inner, in_b = x + s.d_xb, c = in_b + s.d_xb;
  in_proj("in_z", Role::kBulk, heads);
  in_proj("in_x", Role::kBulk, repeated(x, padded));
  in_proj("in_bc", Role::kSensitive,
          std::vector<Part>{{repeated(in_b, n)}, {Channels::Range(c, s.d_inner)}});
  in_proj("in_dt", Role::kSensitive, Channels::Range(c + s.d_inner, n_heads));

  // The convolution sees x, B and C before or after they were repeated.
  const size_t width = s.repeat_before_conv ? s.d_inner : s.d_xb;
  const size_t conv_channels = 2 * width + s.d_inner;
  const auto convolution = [&](const std::string& name, const Selection& channels) {
    b.Convolution(to + name + ".weight", mixer + "conv1d.weight", conv_channels, d_conv, channels);
    b.ArrayOrZeros(to + name + ".bias", mixer + "conv1d.bias", conv_channels, channels);
  };
  convolution("conv_x", s.repeat_before_conv ? heads : repeated(0, padded));
  const Part conv_b = {s.repeat_before_conv ? Channels::Range(width, width) : repeated(width, n)};
  convolution(
      "conv_bc",
      Selection(std::vector<Part>{conv_b, {Channels::Range(2 * width, s.d_inner)}}).OfBias());
  b.Array(to + "dt_bias", mixer + "dt_bias", n_heads, Channels::Padded(0, n_heads));
  b.Array(to + "a", mixer + "A_log", n_heads, Channels::Range(0, n_heads), NegativeExpTimesLog2E);
  b.PerHead(to + "d", mixer + "D", heads);
  b.Array(to + "gated_norm", mixer + "norm.weight", s.d_inner, heads);
  b.Matrix(to + "out_proj", Role::kBulk, mixer + "out_proj.weight", s.d_model, s.d_inner,
           all_of_model, heads);
  ADDER_RETURN_IF_ERROR(b.status());
  return Mamba2Config{.n_heads = static_cast<uint32_t>(n_heads),
                      .head_dim = static_cast<uint32_t>(n),
                      .n_groups = static_cast<uint32_t>(n_heads),
                      .d_state = static_cast<uint32_t>(n),
                      .d_conv = static_cast<uint32_t>(d_conv),
                      .dt_min = static_cast<float>(s.dt_min),
                      .dt_max = static_cast<float>(s.dt_max),
                      .gating = Gating::kGateThenNorm,
                      .norm_groups = static_cast<uint32_t>(n_heads),
                      .gated_norm_eps = 1e-5f};
}

}  // namespace

Result<ModelHead> PlanMambaInLlama(const Config& config, const CheckpointNames& names,
                                   PlanBuilder& b) {
  const Config& mamba = *b.checkpoint().mamba_config();
  ADDER_RETURN_IF_ERROR(CheckActivation(config));
  ADDER_RETURN_IF_ERROR(CheckActivation(mamba));
  ADDER_ASSIGN_OR_RETURN(const uint32_t d_model, ModelWidth(config, names, b));
  ADDER_ASSIGN_OR_RETURN(const size_t layers, CountLayers(config, names, b));
  ADDER_ASSIGN_OR_RETURN(const double eps, ReadEpsilon(config, "rms_norm_eps", 1e-6));
  ADDER_ASSIGN_OR_RETURN(const double mamba_eps, ReadEpsilon(mamba, "rms_norm_eps", 1e-5));
  ADDER_ASSIGN_OR_RETURN(const std::vector<int64_t> attention_layers,
                         mamba.IntList({"attn_layers"}));
  ADDER_ASSIGN_OR_RETURN(const Settings settings, ReadSettings(mamba, d_model));
  ADDER_ASSIGN_OR_RETURN(AttentionSettings attention, ReadAttention(config, d_model));
  ADDER_ASSIGN_OR_RETURN(attention.rope, RopeFrequencies(config, attention.head_dim));
  for (size_t i = 0; i < layers; ++i) {
    const std::string from = names.root + "layers." + std::to_string(i) + ".";
    const std::string to = b.NextLayer();
    const bool attends =
        std::count(attention_layers.begin(), attention_layers.end(), static_cast<int64_t>(i)) > 0;
    const double layer_eps = attends ? eps : mamba_eps;
    b.Array(to + "norm", from + "input_layernorm.weight", d_model);
    if (attends) {
      ADDER_ASSIGN_OR_RETURN(const AttentionConfig mixer,
                             PlanAttention(to, from + "self_attn.", attention, b));
      b.AddLayer(layer_eps, mixer);
    } else {
      b.UseAll(from + "self_attn.");  // what the Mamba layer was distilled from
      ADDER_ASSIGN_OR_RETURN(const Mamba2Config mixer, PlanMixer(to, from + "mamba.", settings, b));
      b.AddLayer(layer_eps, mixer);
    }
    const std::string ff = b.NextLayer();
    b.Array(ff + "norm", from + "post_attention_layernorm.weight", d_model);
    MlpConfig mlp;
    mlp.d_ff =
        static_cast<uint32_t>(PlanMlp(ff, ProjTensors(from + "mlp.", true), d_model, 1.0, 1.0, b));
    b.AddLayer(layer_eps, mlp);
    ADDER_RETURN_IF_ERROR(b.status());
  }
  b.Warn("MambaInLlama is experimental: no published model was compared with its reference");
  return ReadHybridHead(config, "mamba_in_llama", eps);
}

}  // namespace adder
