// What the layers of the original package (mamba_ssm) share, whatever their mixer.
// ARCHITECTURES.md sections 3.2, 5.2 and 6.3.
#include <algorithm>
#include <cinttypes>
#include <cmath>

#include "converter/families.h"
#include "converter/layers.h"

namespace adder {
namespace {

// attn_cfg, whose keys are not those of other packages.
Result<AttentionSettings> ReadSettings(const Config& config, size_t d_model) {
  AttentionSettings s;
  const auto read = [&](const char* key, std::optional<int64_t> fallback, size_t* out) -> Status {
    ADDER_ASSIGN_OR_RETURN(const int64_t value, config.Int({key}, fallback));
    *out = static_cast<size_t>(value);
    if (value >= 1 && value <= (1 << 16)) return {};
    return Error(Code::kCorruptFile, "%s: %s is %" PRId64 ", expected 1 to 65536",
                 config.name().c_str(), key, value);
  };
  ADDER_RETURN_IF_ERROR(read("num_heads", std::nullopt, &s.n_heads));
  ADDER_RETURN_IF_ERROR(read("num_heads_kv", static_cast<int64_t>(s.n_heads), &s.n_kv_heads));
  ADDER_RETURN_IF_ERROR(read("head_dim", static_cast<int64_t>(d_model / s.n_heads), &s.head_dim));
  const double usual = 1 / std::sqrt(static_cast<double>(s.head_dim));
  ADDER_ASSIGN_OR_RETURN(s.scale, config.Double({"softmax_scale"}, usual));
  ADDER_ASSIGN_OR_RETURN(const bool causal, config.Bool({"causal"}, false));
  if (!causal) {
    return Error(Code::kUnsupported, "%s: causal is not true; only causal attention is supported",
                 config.name().c_str());
  }
  ADDER_ASSIGN_OR_RETURN(const int64_t rotary_dim, config.Int({"rotary_emb_dim"}, 0));
  if (rotary_dim == 0) return s;
  ADDER_ASSIGN_OR_RETURN(const bool interleaved, config.Bool({"rotary_emb_interleaved"}, false));
  if (interleaved) {
    return Error(Code::kUnsupported,
                 "%s: rotary_emb_interleaved is true; only halves of a head rotate",
                 config.name().c_str());
  }
  if (rotary_dim < 0 || rotary_dim > static_cast<int64_t>(s.head_dim)) {
    return Error(Code::kCorruptFile, "%s: rotary_emb_dim is %" PRId64 ", expected 0 to %zu",
                 config.name().c_str(), rotary_dim, s.head_dim);
  }
  ADDER_ASSIGN_OR_RETURN(const double base, config.Double({"rotary_emb_base"}, 10000.0));
  ADDER_ASSIGN_OR_RETURN(s.rope,
                         RotationFrequencies(config, base, static_cast<size_t>(rotary_dim)));
  return s;
}

}  // namespace

bool OriginalOptions::Attends(size_t layer) const {
  return std::count(attention_layers.begin(), attention_layers.end(), static_cast<int64_t>(layer)) >
         0;
}

Result<OriginalOptions> ReadOriginalOptions(const Config& config) {
  ADDER_ASSIGN_OR_RETURN(const bool rms_norm, config.Bool({"rms_norm"}, true));
  if (!rms_norm) {
    return Error(Code::kUnsupported, "%s: rms_norm is false; LayerNorm models are not supported",
                 config.name().c_str());
  }
  OriginalOptions options;
  ADDER_ASSIGN_OR_RETURN(options.attention_layers, config.IntList({"attn_layer_idx"}));
  ADDER_ASSIGN_OR_RETURN(options.attention, config.Object("attn_cfg"));
  ADDER_ASSIGN_OR_RETURN(const int64_t d_intermediate, config.Int({"d_intermediate"}, 0));
  if (d_intermediate < 0) {
    return Error(Code::kCorruptFile, "%s: d_intermediate is %" PRId64 ", expected 0 or more",
                 config.name().c_str(), d_intermediate);
  }
  options.mlp = d_intermediate > 0;
  return options;
}

Status PlanOriginalAttention(const std::string& mixer, const OriginalOptions& options,
                             size_t d_model, double norm_eps, PlanBuilder& b) {
  ADDER_ASSIGN_OR_RETURN(const AttentionSettings s, ReadSettings(options.attention, d_model));
  const size_t q = s.n_heads * s.head_dim, kv = s.n_kv_heads * s.head_dim, qkv = q + 2 * kv;
  const size_t in_rows = b.Dim(mixer + "in_proj.weight", 2, 0);
  const size_t out_cols = b.Dim(mixer + "out_proj.weight", 2, 1);
  ADDER_RETURN_IF_ERROR(b.status());
  // Behind q, k and v: up and gate of an MLP whose output joins the context.
  const size_t d_mlp = out_cols > q ? out_cols - q : 0;
  if (in_rows != qkv + 2 * d_mlp) {
    return Error(Code::kCorruptFile,
                 "%sin_proj.weight has %zu rows, expected %zu from %s (%zu heads, %zu of them for "
                 "keys and values, of %zu) and the %zu columns of out_proj",
                 mixer.c_str(), in_rows, qkv + 2 * d_mlp, options.attention.name().c_str(),
                 s.n_heads, s.n_kv_heads, s.head_dim, out_cols);
  }
  const std::string to = b.NextLayer();
  const auto in_proj = [&](const char* name, Channels rows) {
    b.Matrix(to + name, Role::kBulk, mixer + "in_proj.weight", in_rows, d_model, rows,
             Channels::Range(0, d_model));
  };
  const Channels q_heads = Channels::Heads(0, s.n_heads, s.head_dim);
  const Channels k_heads = Channels::Heads(q, s.n_kv_heads, s.head_dim);
  const Channels v_heads = Channels::Heads(q + kv, s.n_kv_heads, s.head_dim);
  in_proj("q", q_heads);
  in_proj("k", k_heads);
  in_proj("v", v_heads);
  const size_t d_conv = b.Has(mixer + "conv1d.weight") ? b.Dim(mixer + "conv1d.weight", 3, 2) : 0;
  for (const auto& [name, heads] :
       {std::pair("conv_q", q_heads), {"conv_k", k_heads}, {"conv_v", v_heads}}) {
    if (d_conv == 0) break;
    b.Convolution(to + name + ".weight", mixer + "conv1d.weight", qkv, d_conv, heads);
    b.ArrayOrZeros(to + name + ".bias", mixer + "conv1d.bias", qkv, heads);
  }
  const Channels all_of_model = Channels::Range(0, d_model);
  b.Matrix(to + "o", Role::kBulk, mixer + "out_proj.weight", d_model, out_cols, all_of_model,
           q_heads);
  if (d_mlp > 0) {
    in_proj("mlp_up", Channels::Range(qkv, d_mlp));
    in_proj("mlp_gate", Channels::Range(qkv + d_mlp, d_mlp));
    b.MatrixWithoutBias(to + "mlp_down", Role::kBulk, mixer + "out_proj.weight", d_model, out_cols,
                        all_of_model, Channels::Range(q, d_mlp));
  }
  if (!s.rope.empty()) b.Values(to + "rope", s.rope);
  b.AddLayer(norm_eps, AttentionConfig{.n_heads = static_cast<uint32_t>(s.n_heads),
                                       .n_kv_heads = static_cast<uint32_t>(s.n_kv_heads),
                                       .head_dim = static_cast<uint32_t>(s.head_dim),
                                       .rotary_dim = static_cast<uint32_t>(2 * s.rope.size()),
                                       .scale = static_cast<float>(s.scale),
                                       .d_conv = static_cast<uint32_t>(d_conv),
                                       .d_mlp = static_cast<uint32_t>(d_mlp)});
  return b.status();
}

void PlanOriginalMlp(const std::string& from, size_t d_model, double norm_eps, PlanBuilder& b) {
  // d_intermediate was rounded up when the model was made: the tensor knows.
  const size_t d_ff = b.Dim(from + "mlp.fc2.weight", 2, 1);
  if (!b.status().ok()) return;
  const std::string to = b.NextLayer();
  const Channels all_of_model = Channels::Range(0, d_model);
  const Channels all_of_ff = Channels::Range(0, d_ff);
  const auto fc1 = [&](const char* name, Channels rows) {
    b.Matrix(to + name, Role::kBulk, from + "mlp.fc1.weight", 2 * d_ff, d_model, rows,
             all_of_model);
  };
  b.Array(to + "norm", from + "norm2.weight", d_model, all_of_model);
  fc1("up", all_of_ff);
  fc1("gate", Channels::Range(d_ff, d_ff));  // the second half, unlike Hugging Face's layouts
  b.Matrix(to + "down", Role::kBulk, from + "mlp.fc2.weight", d_model, d_ff, all_of_model,
           all_of_ff);
  const MlpConfig mlp = {
      .d_ff = static_cast<uint32_t>(d_ff), .activation = Activation::kSilu, .gated = true};
  b.AddLayer(norm_eps, mlp);
}

}  // namespace adder
