// Zamba2: Mamba-2 layers, into some of which a shared transformer block feeds.
// ARCHITECTURES.md section 11.
#include <cinttypes>
#include <cmath>

#include "converter/families.h"
#include "converter/layers.h"

namespace adder {
namespace {

const Keys kLists = {"layers_block_type", "layer_types"};

struct Settings {
  size_t d_model = 0;
  double eps = 1e-5;
  size_t shared_blocks = 1;
  bool attention_adapters = false;
  Mamba2Settings mamba2;
  AttentionSettings attention;
  std::vector<float> rope;
};

Result<Mamba2Settings> ReadMamba2(const Config& config, size_t d_model) {
  Mamba2Settings s;
  s.d_model = d_model;
  s.head_dim_key = "mamba_headdim";
  s.n_groups_key = "mamba_ngroups";
  s.d_state_key = "mamba_d_state";
  ADDER_ASSIGN_OR_RETURN(s.head_dim, config.IntOrAuto({"mamba_headdim"}, 0));
  ADDER_ASSIGN_OR_RETURN(s.n_groups, config.Int({"mamba_ngroups"}, 1));
  ADDER_ASSIGN_OR_RETURN(s.d_state, config.Int({"mamba_d_state", "state_size"}, 64));
  // time_step_min and time_step_max belong to the initialization.
  ADDER_RETURN_IF_ERROR(ReadLimits(config, {"time_step_limit"}, &s));
  ADDER_RETURN_IF_ERROR(CheckMamba2Sizes(config, s));
  return s;
}

Result<Settings> ReadSettings(const Config& config, size_t d_model) {
  Settings s;
  s.d_model = d_model;
  ADDER_ASSIGN_OR_RETURN(s.eps, ReadEpsilon(config, "rms_norm_eps", 1e-5));
  ADDER_ASSIGN_OR_RETURN(s.mamba2, ReadMamba2(config, d_model));
  ADDER_ASSIGN_OR_RETURN(const bool long_context, config.Bool({"use_long_context"}, false));
  if (long_context) {
    return Error(Code::kUnsupported,
                 "%s: use_long_context is true; its scaling of rotations is not supported",
                 config.name().c_str());
  }
  ADDER_ASSIGN_OR_RETURN(const Activation act, ReadActivation(config, "hidden_act", "gelu"));
  if (act != Activation::kGelu) {
    return Error(Code::kUnsupported, "%s: hidden_act is not gelu", config.name().c_str());
  }
  ADDER_ASSIGN_OR_RETURN(const int64_t blocks, config.Int({"num_mem_blocks"}, 1));
  if (blocks < 1 || blocks > 1024) {
    return Error(Code::kCorruptFile, "%s: num_mem_blocks is %" PRId64 ", expected 1 to 1024",
                 config.name().c_str(), blocks);
  }
  s.shared_blocks = static_cast<size_t>(blocks);
  // Attention reads (h; embedding).
  ADDER_ASSIGN_OR_RETURN(s.attention, ReadAttention(config, 2 * d_model));
  s.attention.d_out = d_model;
  s.attention.scale = 1 / std::sqrt(static_cast<double>(s.attention.head_dim) / 2);
  if (s.attention.n_kv_heads != 0 && s.attention.n_kv_heads != s.attention.n_heads) {
    return Error(Code::kUnsupported,
                 "%s: num_key_value_heads is %zu, num_attention_heads %zu; they must be equal",
                 config.name().c_str(), s.attention.n_kv_heads, s.attention.n_heads);
  }
  s.attention.n_kv_heads = s.attention.n_heads;
  ADDER_ASSIGN_OR_RETURN(s.attention_adapters,
                         config.Bool({"use_shared_attention_adapter"}, false));
  ADDER_ASSIGN_OR_RETURN(const bool rotate, config.Bool({"use_mem_rope"}, false));
  if (rotate) {
    ADDER_ASSIGN_OR_RETURN(s.rope, RopeFrequencies(config, s.attention.head_dim));
  }
  return s;
}

// One Mamba-2 layer, then six of which the last one also reads a shared block, and so on.
std::vector<LayerType> DefaultLayers() {
  std::vector<LayerType> types;
  const auto add = [&](size_t plain) { types.insert(types.end(), plain, LayerType::kSsm); };
  add(1);
  for (const size_t plain : {5u, 5u, 5u, 5u, 5u, 5u, 5u, 4u, 3u}) {
    add(plain);
    types.push_back(LayerType::kHybrid);
  }
  add(2);
  return types;
}

Result<AttentionConfig> PlanShared(const std::string& to, const std::string& from,
                                   const Settings& s, PlanBuilder& b) {
  b.Array(to + "norm", from + "input_layernorm.weight", 2 * s.d_model);
  b.Array(to + "mlp_norm", from + "pre_ff_layernorm.weight", s.d_model);
  const Source gate_up = from + "feed_forward.gate_up_proj.weight";
  PlanMlp(to, {gate_up, gate_up, from + "feed_forward.down_proj.weight"}, s.d_model, 1.0, 1.0, b);
  return PlanAttention(to, from + "self_attn.", s.attention, b);
}

// What use number `use` of the shared block `from` adds to its projections.
void PlanAdapters(const std::string& to, const std::string& from, size_t use, const Settings& s,
                  Zamba2Config* c, PlanBuilder& b) {
  const std::string mlp =
      from + "feed_forward.gate_up_proj_adapter_list." + std::to_string(use) + ".";
  const size_t rank = b.Dim(mlp + "0.weight", 2, 0);
  const size_t d_ff = b.Dim(from + "feed_forward.down_proj.weight", 2, 1);
  const Channels all = Channels::Range(0, rank);
  b.Matrix(to + "adapter_in", Role::kBulk, mlp + "0.weight", rank, s.d_model);
  b.Matrix(to + "adapter_gate", Role::kBulk, mlp + "1.weight", 2 * d_ff, rank,
           Channels::Range(0, d_ff), all);
  b.Matrix(to + "adapter_up", Role::kBulk, mlp + "1.weight", 2 * d_ff, rank,
           Channels::Range(d_ff, d_ff), all);
  c->d_ff = static_cast<uint32_t>(d_ff);
  c->adapter_rank = static_cast<uint32_t>(rank);
  if (!s.attention_adapters) return;
  for (const std::string part : {"q", "k", "v"}) {
    const std::string list =
        from + "self_attn.linear_" + part + "_adapter_list." + std::to_string(use) + ".";
    const size_t n = b.Dim(list + "0.weight", 2, 0);
    if (part == "q") c->attention_adapter_rank = static_cast<uint32_t>(n);
    b.Matrix(to + part + "_adapter_in", Role::kBulk, list + "0.weight", n, 2 * s.d_model);
    b.Matrix(to + part + "_adapter_out", Role::kBulk, list + "1.weight",
             s.attention.n_heads * s.attention.head_dim, n,
             Channels::Heads(0, s.attention.n_heads, s.attention.head_dim), Channels::Range(0, n));
  }
}

}  // namespace

Result<ModelHead> PlanZamba2(const Config& config, const CheckpointNames& names, PlanBuilder& b) {
  ADDER_ASSIGN_OR_RETURN(const uint32_t d_model, ModelWidth(config, names, b));
  ADDER_ASSIGN_OR_RETURN(const size_t layers, CountLayers(config, names, b));
  ADDER_ASSIGN_OR_RETURN(const Settings s, ReadSettings(config, d_model));
  std::vector<LayerType> types = DefaultLayers();
  if (!config.Has(kLists) && types.size() != layers) {
    return Error(Code::kCorruptFile, "%s: layers_block_type is missing", config.name().c_str());
  }
  types.resize(layers);
  ADDER_ASSIGN_OR_RETURN(types, ResolveLayerTypes(config, kLists, types, /*said=*/false));

  std::vector<std::string> shared;  // where each shared block lies
  std::vector<AttentionConfig> shared_attention;
  size_t uses = 0;
  for (size_t i = 0; i < layers; ++i) {
    const std::string from = names.root + "layers." + std::to_string(i) + ".";
    const std::string to = b.NextLayer();
    if (types[i] == LayerType::kSsm) {
      b.Array(to + "norm", from + "input_layernorm.weight", d_model);
      ADDER_ASSIGN_OR_RETURN(const Mamba2Config mixer,
                             PlanMamba2Mixer(to, from + "mamba.", s.mamba2, config, b));
      b.AddLayer(s.eps, mixer);
      continue;
    }
    if (types[i] != LayerType::kHybrid) return WrongLayerType(config, "zamba2", i);

    const size_t block = uses % s.shared_blocks;
    const std::string here = from + "shared_transformer.";
    if (block == shared.size()) {
      shared.push_back(here);
      ADDER_ASSIGN_OR_RETURN(shared_attention.emplace_back(),
                             PlanShared("shared." + std::to_string(block) + ".", here, s, b));
    } else {
      b.UseAll(here);  // copies that some checkpoints hold
    }
    Zamba2Config c;
    c.shared = static_cast<uint32_t>(block);
    c.attention = shared_attention[block];
    c.attention.rotary_dim = static_cast<uint32_t>(2 * s.rope.size());
    if (!s.rope.empty()) b.Values(to + "rope", s.rope);
    PlanAdapters(to, shared[block], uses++, s, &c, b);
    b.Matrix(to + "linear", Role::kBulk, from + "linear.weight", d_model, d_model);
    b.Array(to + "ssm.norm", from + "mamba_decoder.input_layernorm.weight", d_model);
    ADDER_ASSIGN_OR_RETURN(
        c.mamba2, PlanMamba2Mixer(to + "ssm.", from + "mamba_decoder.mamba.", s.mamba2, config, b));
    b.AddLayer(s.eps, c);
  }
  ADDER_RETURN_IF_ERROR(b.status());
  ADDER_ASSIGN_OR_RETURN(ModelHead head, ReadHybridHead(config, "zamba2", s.eps));
  ADDER_ASSIGN_OR_RETURN(head.tied, config.Bool({"tie_word_embeddings"}, true));
  return head;
}

}  // namespace adder
