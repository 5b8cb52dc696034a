// Mamba-3 checkpoints, which exist in the original mamba_ssm layout. ARCHITECTURES.md section 6.
#include <cmath>

#include "converter/families.h"

namespace adder {
namespace {

struct Settings {
  int64_t head_dim = 0, n_groups = 0;
  double rope_fraction = 0.5, a_floor = 1e-4;
  bool mimo = false, out_norm = false;
};

Result<Settings> ReadSettings(const Config& config) {
  Settings s;
  ADDER_ASSIGN_OR_RETURN(const Config ssm, config.Object("ssm_cfg"));
  ADDER_ASSIGN_OR_RETURN(s.head_dim, ssm.Int({"headdim"}, 64));
  ADDER_ASSIGN_OR_RETURN(s.n_groups, ssm.Int({"ngroups"}, 1));
  ADDER_ASSIGN_OR_RETURN(s.rope_fraction, ssm.Double({"rope_fraction"}, 0.5));
  ADDER_ASSIGN_OR_RETURN(s.a_floor, ssm.Double({"A_floor"}, 1e-4));
  ADDER_ASSIGN_OR_RETURN(s.mimo, ssm.Bool({"is_mimo"}, false));
  ADDER_ASSIGN_OR_RETURN(s.out_norm, ssm.Bool({"is_outproj_norm"}, false));
  const auto fail = [&](const char* key, double value, const char* expected) {
    return Error(Code::kCorruptFile, "%s: ssm_cfg.%s is %g, expected %s", config.name().c_str(),
                 key, value, expected);
  };
  for (const auto& [key, value] : {std::pair("headdim", s.head_dim), {"ngroups", s.n_groups}}) {
    if (value < 1 || value > (1 << 16)) return fail(key, static_cast<double>(value), "1 to 65536");
  }
  if (!(s.rope_fraction >= 0 && s.rope_fraction <= 1))
    return fail("rope_fraction", s.rope_fraction, "0 to 1");
  if (!(s.a_floor >= 0 && s.a_floor < 1e30)) return fail("A_floor", s.a_floor, "0 or more");
  return s;
}

// The sizes of a layer's mixer, from its tensors, checked against the configuration where shapes
// cannot decide (n_groups and the number of angles).
Result<Mamba3Config> MixerConfig(const std::string& mixer, const Settings& s, const Config& config,
                                 PlanBuilder& b) {
  const size_t d_inner = b.Dim(mixer + "out_proj.weight", 2, 1);
  const size_t n_heads = b.Dim(mixer + "dt_bias", 1, 0);
  const size_t rank = b.Dim(mixer + "B_bias", 3, 1);
  const size_t d_state = b.Dim(mixer + "B_norm.weight", 1, 0);
  const size_t in_rows = b.Dim(mixer + "in_proj.weight", 2, 0);
  ADDER_RETURN_IF_ERROR(b.status());
  const auto fail = [&](const std::string& what) {
    return Error(Code::kCorruptFile, "%s: %s", mixer.c_str(), what.c_str());
  };
  if (n_heads * static_cast<size_t>(s.head_dim) != d_inner) {
    return fail(std::to_string(n_heads) + " heads (dt_bias) of ssm_cfg.headdim " +
                std::to_string(s.head_dim) + " (" + config.name() + ") do not make the " +
                std::to_string(d_inner) + " inputs of out_proj");
  }
  if (!s.mimo && rank != 1) {
    return fail("B_bias has rank " + std::to_string(rank) + ", expected 1, as " + config.name() +
                " does not say is_mimo");
  }
  const auto rotated = static_cast<size_t>(static_cast<double>(d_state) * s.rope_fraction);
  const size_t n_angles = rotated / 2;
  const size_t expected_rows =
      2 * d_inner + 2 * rank * static_cast<size_t>(s.n_groups) * d_state + 3 * n_heads + n_angles;
  if (in_rows != expected_rows) {
    return fail("in_proj has " + std::to_string(in_rows) + " rows, expected " +
                std::to_string(expected_rows) + " from ssm_cfg.ngroups " +
                std::to_string(s.n_groups) + " and rope_fraction " +
                std::to_string(s.rope_fraction) + " of " + config.name());
  }
  return Mamba3Config{.n_heads = static_cast<uint32_t>(n_heads),
                      .head_dim = static_cast<uint32_t>(s.head_dim),
                      .n_groups = static_cast<uint32_t>(s.n_groups),
                      .d_state = static_cast<uint32_t>(d_state),
                      .rank = static_cast<uint32_t>(rank),
                      .mimo = s.mimo,
                      .n_angles = static_cast<uint32_t>(n_angles),
                      .a_floor = static_cast<float>(s.a_floor),
                      .out_norm = s.out_norm};
}

void PlanMixer(const std::string& to, const std::string& mixer, const Mamba3Config& c,
               size_t d_model, PlanBuilder& b) {
  const size_t d_inner = size_t{c.n_heads} * c.head_dim;
  const size_t bc = size_t{c.rank} * c.n_groups * c.d_state;
  const size_t in_rows = 2 * d_inner + 2 * bc + 3 * size_t{c.n_heads} + c.n_angles;
  const Channels all_of_model = Channels::Range(0, d_model);
  const Channels heads = Channels::Heads(0, c.n_heads, c.head_dim);
  // Rotated pairs are (s, s + d_state / 2) in the model file. SISO checkpoints pair neighbours:
  // their states are reordered, everywhere alike, which changes no sum over them.
  const auto states = [&](size_t begin, size_t runs) {
    return c.mimo ? Channels::Range(begin, runs * c.d_state)
                  : Channels::Pairs(begin, runs, c.d_state);
  };
  size_t row = 0;
  const auto in_proj = [&](const char* name, Role role, Channels rows, size_t count) {
    b.Matrix(to + name, role, mixer + "in_proj.weight", in_rows, d_model, rows, all_of_model);
    row += count;
  };
  in_proj("in_z", Role::kBulk, heads, d_inner);
  in_proj("in_x", Role::kBulk, Channels::Heads(row, c.n_heads, c.head_dim), d_inner);
  in_proj("in_b", Role::kSensitive, states(row, c.rank * c.n_groups), bc);
  in_proj("in_c", Role::kSensitive, states(row, c.rank * c.n_groups), bc);
  in_proj("in_dt", Role::kSensitive, Channels::Range(row, c.n_heads), c.n_heads);
  in_proj("in_a", Role::kSensitive, Channels::Range(row, c.n_heads), c.n_heads);
  in_proj("in_trap", Role::kSensitive, Channels::Range(row, c.n_heads), c.n_heads);
  if (c.n_angles > 0)
    in_proj("in_angle", Role::kSensitive, Channels::Range(row, c.n_angles), c.n_angles);
  b.Array(to + "dt_bias", mixer + "dt_bias", c.n_heads, Channels::Padded(0, c.n_heads));
  b.PerHead(to + "d", mixer + "D", heads);
  b.Array(to + "b_norm", mixer + "B_norm.weight", c.d_state, states(0, 1));
  b.Array(to + "c_norm", mixer + "C_norm.weight", c.d_state, states(0, 1));
  const std::vector<uint64_t> bias_shape = {c.n_heads, c.rank, c.d_state};
  b.ShapedArray(to + "b_bias", mixer + "B_bias", bias_shape, states(0, c.n_heads * c.rank));
  b.ShapedArray(to + "c_bias", mixer + "C_bias", bias_shape, states(0, c.n_heads * c.rank));
  if (c.mimo) {
    for (const char* name : {"mimo_x", "mimo_z", "mimo_o"})
      b.RankRows(to + name, mixer + name, c.rank, heads);
  }
  if (c.out_norm) b.Array(to + "out_norm", mixer + "norm.weight", d_inner, heads);
  b.Matrix(to + "out_proj", Role::kBulk, mixer + "out_proj.weight", d_model, d_inner, all_of_model,
           heads);
}

}  // namespace

Result<ModelHead> PlanOriginalMamba3(const Config& config, const CheckpointNames& names,
                                     PlanBuilder& b) {
  ModelHead head;
  head.family = "mamba3";
  ADDER_ASSIGN_OR_RETURN(const OriginalOptions options, ReadOriginalOptions(config));
  ADDER_ASSIGN_OR_RETURN(const Settings settings, ReadSettings(config));
  ADDER_ASSIGN_OR_RETURN(const uint32_t d_model, ModelWidth(config, names, b));
  ADDER_ASSIGN_OR_RETURN(const size_t layers, CountLayers(config, names, b));
  ADDER_ASSIGN_OR_RETURN(head.vocab_size, config.Int({"vocab_size"}, std::nullopt));
  ADDER_ASSIGN_OR_RETURN(head.tied, config.Bool({"tie_embeddings"}, true));
  for (size_t i = 0; i < layers; ++i) {
    const std::string from = names.root + "layers." + std::to_string(i) + ".";
    const std::string to = b.NextLayer();
    b.Array(to + "norm", from + "norm.weight", d_model);
    if (options.Attends(i)) {
      ADDER_RETURN_IF_ERROR(
          PlanOriginalAttention(from + "mixer.", options, d_model, head.norm_eps, b));
    } else {
      ADDER_ASSIGN_OR_RETURN(const Mamba3Config mixer,
                             MixerConfig(from + "mixer.", settings, config, b));
      PlanMixer(to, from + "mixer.", mixer, d_model, b);
      ADDER_RETURN_IF_ERROR(b.status());
      b.AddLayer(head.norm_eps, mixer);
    }
    if (options.mlp) PlanOriginalMlp(from, d_model, head.norm_eps, b);
  }
  ADDER_RETURN_IF_ERROR(b.status());
  return head;
}

}  // namespace adder
