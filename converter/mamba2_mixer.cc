// The Mamba-2 mixer, as every family that has one stores it. ARCHITECTURES.md section 5.1.
#include <cmath>
#include <limits>

#include "converter/layers.h"

namespace adder {
namespace {

// Rows of in_proj: gate and up of an MLP (original package with d_ssm below the inner width), then
// z, x, B, C, dt. Columns of out_proj: up * silu(gate), then y.
struct Sizes {
  size_t n_heads, head_dim, bc, d_conv, d_mlp;  // bc: of B and C of all groups
  size_t d_inner() const { return n_heads * head_dim; }
  size_t conv_channels() const { return d_inner() + bc; }
  size_t in_rows() const { return 2 * d_mlp + 2 * d_inner() + bc + n_heads; }
};

// From the tensors, checked against the configuration where shapes cannot decide: how d_inner
// splits into heads, and n_groups * d_state into its factors.
Result<Sizes> ReadSizes(const std::string& mixer, const Mamba2Settings& s, const Config& config,
                        PlanBuilder& b) {
  const size_t out_cols = b.Dim(mixer + "out_proj.weight", 2, 1);
  const size_t n_heads = b.Dim(mixer + "A_log", 1, 0);
  const size_t conv_channels = b.Dim(mixer + "conv1d.weight", 3, 0);
  const size_t d_conv = b.Dim(mixer + "conv1d.weight", 3, 2);
  const size_t in_rows = b.Dim(mixer + "in_proj.weight", 2, 0);
  ADDER_RETURN_IF_ERROR(b.status());
  const auto bc = static_cast<size_t>(2 * s.n_groups * s.d_state);
  const auto fail = [&](const std::string& what) {
    return Error(Code::kCorruptFile, "%s: %s", mixer.c_str(), what.c_str());
  };
  Sizes sizes = {n_heads, static_cast<size_t>(s.head_dim), bc, d_conv, 0};
  if (s.head_dim == 0) {
    sizes.head_dim = out_cols / std::max<size_t>(n_heads, 1);
  } else if (s.may_have_mlp && out_cols > sizes.d_inner()) {
    sizes.d_mlp = out_cols - sizes.d_inner();
  }
  if (sizes.d_mlp + sizes.d_inner() != out_cols) {
    return fail(std::to_string(n_heads) + " heads (A_log) of " + s.head_dim_key + " " +
                std::to_string(sizes.head_dim) + " (" + config.name() + ") do not make the " +
                std::to_string(out_cols) + " inputs of out_proj");
  }
  if (conv_channels != sizes.conv_channels()) {
    return fail("conv1d has " + std::to_string(conv_channels) + " channels, expected " +
                std::to_string(sizes.conv_channels()) + " from " + s.n_groups_key + " " +
                std::to_string(s.n_groups) + " and " + s.d_state_key + " " +
                std::to_string(s.d_state) + " of " + config.name());
  }
  if (in_rows != sizes.in_rows()) {
    return fail("in_proj has " + std::to_string(in_rows) + " rows, expected " +
                std::to_string(sizes.in_rows()) + " with a d_ssm of " +
                std::to_string(sizes.d_inner()));
  }
  return sizes;
}

}  // namespace

// 1e30 and more stand for infinity, however it was spelled.
Status ReadLimits(const Config& config, Keys keys, Mamba2Settings* settings) {
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

Status CheckMamba2Sizes(const Config& config, const Mamba2Settings& s) {
  for (const auto& [key, value, least] : {std::tuple(s.head_dim_key, s.head_dim, 0),
                                          {s.n_groups_key, s.n_groups, 1},
                                          {s.d_state_key, s.d_state, 1}}) {
    if (value < least || value > (1 << 16)) {
      return Error(Code::kCorruptFile, "%s: %s is %lld, expected 1 to 65536", config.name().c_str(),
                   key, static_cast<long long>(value));
    }
  }
  return {};
}

Status ReadMamba2Keys(const Config& config, Mamba2Settings* s) {
  s->head_dim_key = "mamba_d_head";
  s->n_groups_key = "mamba_n_groups";
  s->d_state_key = "mamba_d_state";
  ADDER_ASSIGN_OR_RETURN(s->head_dim, config.IntOrAuto({s->head_dim_key}, 0));
  ADDER_ASSIGN_OR_RETURN(s->n_groups, config.Int({s->n_groups_key}, 1));
  ADDER_ASSIGN_OR_RETURN(s->d_state, config.Int({s->d_state_key}, 256));
  ADDER_RETURN_IF_ERROR(ReadLimits(config, {"time_step_limit"}, s));
  return CheckMamba2Sizes(config, *s);
}

Result<Mamba2Config> PlanMamba2Mixer(const std::string& to, const std::string& mixer,
                                     const Mamba2Settings& s, const Config& config,
                                     PlanBuilder& b) {
  ADDER_ASSIGN_OR_RETURN(const Sizes sizes, ReadSizes(mixer, s, config, b));
  const size_t d_inner = sizes.d_inner(), half = sizes.bc / 2, d_mlp = sizes.d_mlp;
  const size_t z = 2 * d_mlp, x = z + d_inner, in_b = x + d_inner, dt = in_b + sizes.bc;
  const Channels all_of_model = Channels::Range(0, s.d_model);
  const Channels heads = Channels::Heads(0, sizes.n_heads, sizes.head_dim);
  const auto in_proj = [&](const char* name, Role role, const std::vector<Part>& rows) {
    b.Matrix(to + name, role, mixer + "in_proj.weight", sizes.in_rows(), s.d_model, rows,
             all_of_model);
  };
  const auto scaled = [&](Channels rows, double scale) { return Part{rows, s.in * scale, scale}; };
  in_proj("in_z", Role::kBulk, {scaled(Channels::Heads(z, sizes.n_heads, sizes.head_dim), s.z)});
  in_proj("in_x", Role::kBulk, {scaled(Channels::Heads(x, sizes.n_heads, sizes.head_dim), s.x)});
  in_proj(
      "in_bc", Role::kSensitive,
      {scaled(Channels::Range(in_b, half), s.b), scaled(Channels::Range(in_b + half, half), s.c)});
  in_proj("in_dt", Role::kSensitive, {scaled(Channels::Range(dt, sizes.n_heads), s.dt)});
  const auto convolution = [&](const std::string& name, Channels channels) {
    b.Convolution(to + name + ".weight", mixer + "conv1d.weight", sizes.conv_channels(),
                  sizes.d_conv, channels);
    b.ArrayOrZeros(to + name + ".bias", mixer + "conv1d.bias", sizes.conv_channels(), channels);
  };
  convolution("conv_x", heads);
  convolution("conv_bc", Channels::Padded(d_inner, sizes.bc));
  b.Array(to + "dt_bias", mixer + "dt_bias", sizes.n_heads, Channels::Padded(0, sizes.n_heads));
  b.Array(to + "a", mixer + "A_log", sizes.n_heads, Channels::Range(0, sizes.n_heads),
          NegativeExpTimesLog2E);
  b.PerHead(to + "d", mixer + "D", heads);
  if (s.gating != Gating::kGateOnly)
    b.Array(to + "gated_norm", mixer + "norm.weight", d_inner, heads);
  b.Matrix(to + "out_proj", Role::kBulk, mixer + "out_proj.weight", s.d_model, d_mlp + d_inner,
           std::vector<Part>{{all_of_model, s.out, s.out}},
           Channels::Heads(d_mlp, sizes.n_heads, sizes.head_dim));
  if (d_mlp > 0) {
    in_proj("mlp_gate", Role::kBulk, {{Channels::Range(0, d_mlp)}});
    in_proj("mlp_up", Role::kBulk, {{Channels::Range(d_mlp, d_mlp)}});
    b.MatrixWithoutBias(to + "mlp_down", Role::kBulk, mixer + "out_proj.weight", s.d_model,
                        d_mlp + d_inner, all_of_model, Channels::Range(0, d_mlp));
  }
  ADDER_RETURN_IF_ERROR(b.status());
  return Mamba2Config{.n_heads = static_cast<uint32_t>(sizes.n_heads),
                      .head_dim = static_cast<uint32_t>(sizes.head_dim),
                      .n_groups = static_cast<uint32_t>(s.n_groups),
                      .d_state = static_cast<uint32_t>(s.d_state),
                      .d_conv = static_cast<uint32_t>(sizes.d_conv),
                      .dt_min = static_cast<float>(s.dt_min),
                      .dt_max = static_cast<float>(s.dt_max),
                      .gating = s.gating,
                      .norm_groups = s.norm_per_group ? static_cast<uint32_t>(s.n_groups) : 1,
                      .gated_norm_eps = static_cast<float>(s.gated_norm_eps),
                      .d_mlp = static_cast<uint32_t>(d_mlp)};
}

}  // namespace adder
