// GGUF architectures with attention beside Mamba: jamba, granitehybrid (Granite 4 and Bamba),
// falcon-h1, nemotron_h and nemotron_h_moe.
#include <algorithm>
#include <cinttypes>
#include <cmath>

#include "converter/gguf_family.h"
#include "converter/text.h"

namespace adder {
namespace {

constexpr TensorRule kAttention[] = {
    {"attn_q.weight", "q_proj.weight"},      {"attn_q.bias", "q_proj.bias"},
    {"attn_k.weight", "k_proj.weight"},      {"attn_k.bias", "k_proj.bias"},
    {"attn_v.weight", "v_proj.weight"},      {"attn_v.bias", "v_proj.bias"},
    {"attn_output.weight", "o_proj.weight"}, {"attn_output.bias", "o_proj.bias"}};
// Of models whose q and k were laid out for rotations of neighbours, whether they rotate or not.
constexpr TensorRule kPairedAttention[] = {{"attn_q.weight", "q_proj.weight", Form::kQuery},
                                           {"attn_q.bias", "q_proj.bias", Form::kQuery},
                                           {"attn_k.weight", "k_proj.weight", Form::kKey},
                                           {"attn_k.bias", "k_proj.bias", Form::kKey},
                                           {"attn_v.weight", "v_proj.weight"},
                                           {"attn_v.bias", "v_proj.bias"},
                                           {"attn_output.weight", "o_proj.weight"},
                                           {"attn_output.bias", "o_proj.bias"}};
constexpr TensorRule kMlp[] = {
    {"ffn_gate.weight", "gate_proj.weight"}, {"ffn_gate.bias", "gate_proj.bias"},
    {"ffn_up.weight", "up_proj.weight"},     {"ffn_up.bias", "up_proj.bias"},
    {"ffn_down.weight", "down_proj.weight"}, {"ffn_down.bias", "down_proj.bias"}};
constexpr TensorRule kExperts[] = {
    {"ffn_gate_exps.weight", "experts.*.gate_proj.weight", Form::kExperts},
    {"ffn_up_exps.weight", "experts.*.up_proj.weight", Form::kExperts},
    {"ffn_down_exps.weight", "experts.*.down_proj.weight", Form::kExperts}};
constexpr TensorRule kSharedExpert[] = {{"ffn_gate_shexp.weight", "gate_proj.weight"},
                                        {"ffn_up_shexp.weight", "up_proj.weight"},
                                        {"ffn_down_shexp.weight", "down_proj.weight"}};

// The finished list of layers: which of them attend. The heads, which must be the same in all that
// do, go into `config`.
Result<std::vector<bool>> AddAttention(const GgufSettings& settings, ConfigWriter* config) {
  ADDER_ASSIGN_OR_RETURN(const size_t layers, settings.Layers());
  ADDER_ASSIGN_OR_RETURN(const auto heads, settings.PerBlock("attention.head_count"));
  ADDER_ASSIGN_OR_RETURN(const auto kv_heads, settings.PerBlock("attention.head_count_kv"));
  std::vector<bool> attends(layers);
  size_t first = layers;
  for (size_t i = 0; i < layers; ++i) {
    attends[i] = kv_heads[i] > 0;
    if (!attends[i]) continue;
    first = std::min(first, i);
    if (heads[i] == heads[first] && kv_heads[i] == kv_heads[first]) continue;
    return Error(Code::kUnsupported,
                 "%s: block %zu has %" PRId64 " heads and %" PRId64
                 " of keys (%s), block %zu has %" PRId64 " and %" PRId64,
                 settings.name().c_str(), i, heads[i], kv_heads[i],
                 settings.Key("attention.head_count_kv").c_str(), first, heads[first],
                 kv_heads[first]);
  }
  if (first == layers) return attends;
  config->Add("num_attention_heads", heads[first]);
  config->Add("num_key_value_heads", kv_heads[first]);
  if (settings.Has("attention.key_length")) {
    ADDER_ASSIGN_OR_RETURN(const int64_t length, settings.Int("attention.key_length", {}));
    config->Add("head_dim", length);
  }
  return attends;
}

std::vector<const char*> LayerTypes(const std::vector<bool>& attends) {
  std::vector<const char*> types;
  for (const bool attention : attends) types.push_back(attention ? "attention" : "mamba");
  return types;
}

// The width of an attention head, of keys as of queries.
Result<int64_t> HeadDim(const GgufSettings& settings) {
  ADDER_ASSIGN_OR_RETURN(const auto heads, settings.PerBlock("attention.head_count"));
  ADDER_ASSIGN_OR_RETURN(const int64_t width, settings.Int("embedding_length", std::nullopt));
  return settings.Int("attention.key_length", width / std::max<int64_t>(heads[0], 1));
}

Status CheckWholeHeadsRotate(const GgufSettings& settings) {
  ADDER_ASSIGN_OR_RETURN(const int64_t head_dim, HeadDim(settings));
  ADDER_ASSIGN_OR_RETURN(const int64_t rotating, settings.Int("rope.dimension_count", head_dim));
  if (rotating == head_dim) return {};
  return Error(Code::kUnsupported,
               "%s: %s is %" PRId64 ", only rotations of whole heads of %" PRId64 " are supported",
               settings.name().c_str(), settings.Key("rope.dimension_count").c_str(), rotating,
               head_dim);
}

// What rotates is for the family to know; how fast is here.
Status AddRope(const GgufSettings& settings, ConfigWriter* config) {
  if (settings.HasTensor("rope_freqs.weight")) {
    return Error(Code::kUnsupported,
                 "%s: rope_freqs.weight: rotations with factors of their own are not supported",
                 settings.name().c_str());
  }
  ADDER_ASSIGN_OR_RETURN(const double theta, settings.Number("rope.freq_base", 10000.0));
  ADDER_ASSIGN_OR_RETURN(const std::string_view type,
                         settings.String("rope.scaling.type", "linear"));
  ADDER_ASSIGN_OR_RETURN(const double factor, settings.Number("rope.scaling.factor", 1.0));
  if (type != "none" && type != "linear") {
    return Error(Code::kUnsupported, "%s: %s is \"%s\"; none and linear are supported",
                 settings.name().c_str(), settings.Key("rope.scaling.type").c_str(),
                 Shown(type).c_str());
  }
  config->Add("rope_theta", theta);
  if (type == "none" || factor == 1 || factor == 0) return {};
  config->Begin("rope_scaling");
  config->Add("type", "linear");
  config->Add("factor", factor);
  config->End();
  return {};
}

// ---- Jamba.

constexpr KeyRule kJambaKeys[] = {
    {"embedding_length", "hidden_size"},     {"block_count", "num_hidden_layers"},
    {"ssm.state_size", "mamba_d_state"},     {"ssm.conv_kernel", "mamba_d_conv"},
    {"ssm.time_step_rank", "mamba_dt_rank"}, {"expert_used_count", "num_experts_per_tok"}};
constexpr TensorRule kJambaNorms[] = {{"attn_norm.weight", "input_layernorm.weight"},
                                      {"ffn_norm.weight", "pre_ff_layernorm.weight"},
                                      {"ssm_dt_norm.weight", "mamba.dt_layernorm.weight"},
                                      {"ssm_b_norm.weight", "mamba.b_layernorm.weight"},
                                      {"ssm_c_norm.weight", "mamba.c_layernorm.weight"}};
constexpr TensorRule kJambaRouter[] = {{"ffn_gate_inp.weight", "router.weight"}};
constexpr TensorGroup kJambaTensors[] = {
    {"", kJambaNorms},       {"mamba.", kGgufMamba1Mixer}, {"self_attn.", kAttention},
    {"feed_forward.", kMlp}, {"feed_forward.", kExperts},  {"feed_forward.", kJambaRouter}};

// The layers with experts, as a period and an offset.
Status AddExpertLayers(const GgufSettings& settings, size_t layers, ConfigWriter* config) {
  std::vector<size_t> with;
  for (size_t i = 0; i < layers; ++i) {
    if (settings.HasTensor(i, "ffn_gate_inp.weight")) with.push_back(i);
  }
  if (with.empty()) {
    config->Add("num_experts", int64_t{1});
    return {};
  }
  const size_t period = with.size() == 1 ? layers : with[1] - with[0];
  for (size_t i = 0, found = 0; i < layers; ++i) {
    const bool expected = i % period == with[0] % period;
    if (expected == (found < with.size() && with[found] == i)) {
      found += expected;
      continue;
    }
    return Error(Code::kUnsupported,
                 "%s: block %zu has %s router, where one in %zu blocks (the first is %zu) has one",
                 settings.name().c_str(), i, expected ? "no" : "a", period, with[0]);
  }
  ADDER_ASSIGN_OR_RETURN(const int64_t experts, settings.Int("expert_count", std::nullopt));
  config->Add("num_experts", experts);
  config->Add("expert_layer_period", static_cast<int64_t>(period));
  config->Add("expert_layer_offset", static_cast<int64_t>(with[0]));
  return {};
}

Status AddJamba(const GgufSettings& settings, ConfigWriter* config, std::vector<std::string>*) {
  ADDER_ASSIGN_OR_RETURN(const std::vector<bool> attends, AddAttention(settings, config));
  config->Add("layers_block_type", LayerTypes(attends));
  return AddExpertLayers(settings, attends.size(), config);
}

// ---- Granite 4 and Bamba.

constexpr KeyRule kGraniteKeys[] = {
    {"embedding_length", "hidden_size"},   {"block_count", "num_hidden_layers"},
    {"ssm.group_count", "mamba_n_groups"}, {"ssm.state_size", "mamba_d_state"},
    {"ssm.conv_kernel", "mamba_d_conv"},   {"ssm.time_step_rank", "mamba_n_heads"}};
constexpr TensorRule kGraniteLayer[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_gate_inp.weight", "block_sparse_moe.router.layer.weight"}};
constexpr TensorGroup kGraniteTensors[] = {
    {"", kGraniteLayer},   {"mamba.", kGgufMamba2Mixer},   {"self_attn.", kPairedAttention},
    {"shared_mlp.", kMlp}, {"shared_mlp.", kSharedExpert}, {"block_sparse_moe.", kExperts}};

Status AddMamba2Head(const GgufSettings& settings, const char* key, ConfigWriter* config) {
  ADDER_ASSIGN_OR_RETURN(const int64_t head_dim, GgufMamba2HeadDim(settings));
  config->Add(key, head_dim);
  return {};
}

// 0 is as good as absent, as it is to llama.cpp.
Status AddMultiplier(const GgufSettings& settings, const char* key, const char* hf,
                     ConfigWriter* config) {
  ADDER_ASSIGN_OR_RETURN(const double value, settings.Number(key, 0.0));
  if (value != 0) config->Add(hf, value);
  return {};
}

// Without a scale of its own, that of other models.
Status AddGraniteScale(const GgufSettings& settings, ConfigWriter* config) {
  ADDER_ASSIGN_OR_RETURN(double scale, settings.Number("attention.scale", 0.0));
  if (scale == 0) {
    ADDER_ASSIGN_OR_RETURN(const int64_t head_dim, HeadDim(settings));
    scale = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(head_dim, 1)));
  }
  config->Add("attention_multiplier", scale);
  return {};
}

Status AddGranite(const GgufSettings& settings, ConfigWriter* config, std::vector<std::string>*) {
  ADDER_ASSIGN_OR_RETURN(const std::vector<bool> attends, AddAttention(settings, config));
  config->Add("layer_types", LayerTypes(attends));
  ADDER_RETURN_IF_ERROR(AddMamba2Head(settings, "mamba_d_head", config));
  ADDER_RETURN_IF_ERROR(AddGraniteScale(settings, config));
  for (const KeyRule& rule : {KeyRule{"embedding_scale", "embedding_multiplier"},
                              {"residual_scale", "residual_multiplier"},
                              {"logit_scale", "logits_scaling"}}) {
    ADDER_RETURN_IF_ERROR(AddMultiplier(settings, rule.gguf, rule.hf, config));
  }
  ADDER_ASSIGN_OR_RETURN(const int64_t experts, settings.Int("expert_count", 0));
  ADDER_ASSIGN_OR_RETURN(const int64_t used, settings.Int("expert_used_count", 0));
  config->Add("num_local_experts", experts);
  config->Add("num_experts_per_tok", used);
  ADDER_ASSIGN_OR_RETURN(const bool rotates, settings.Bool("rope.scaling.finetuned", true));
  config->Add("position_embedding_type", rotates ? "rope" : "nope");
  if (!rotates) return {};
  ADDER_RETURN_IF_ERROR(CheckWholeHeadsRotate(settings));
  return AddRope(settings, config);
}

constexpr TensorRule kBambaNorms[] = {{"attn_norm.weight", "input_layernorm.weight"},
                                      {"ffn_norm.weight", "pre_ff_layernorm.weight"}};
constexpr TensorGroup kBambaTensors[] = {{"", kBambaNorms},
                                         {"mamba.", kGgufMamba2Mixer},
                                         {"self_attn.", kPairedAttention},
                                         {"feed_forward.", kMlp}};

// Of the models under this name Bamba alone rotates, and it alone has no multipliers.
bool IsBamba(const GgufSettings& settings) {
  const Result<bool> rotates = settings.Bool("rope.scaling.finetuned", true);
  const bool multiplied = settings.Has("attention.scale") || settings.Has("embedding_scale") ||
                          settings.Has("residual_scale") || settings.Has("logit_scale");
  return rotates.ok() && *rotates && !multiplied;
}

Status AddBamba(const GgufSettings& settings, ConfigWriter* config, std::vector<std::string>*) {
  ADDER_ASSIGN_OR_RETURN(const std::vector<bool> attends, AddAttention(settings, config));
  config->Add("layers_block_type", LayerTypes(attends));
  ADDER_RETURN_IF_ERROR(AddMamba2Head(settings, "mamba_d_head", config));
  return AddRope(settings, config);
}

// ---- Falcon-H1: its multipliers are in the weights already.

constexpr TensorRule kFalconNorms[] = {{"attn_norm.weight", "input_layernorm.weight"},
                                       {"ffn_norm", "pre_ff_layernorm.weight"},
                                       {"ffn_norm.weight", "pre_ff_layernorm.weight"}};
constexpr TensorGroup kFalconTensors[] = {{"", kFalconNorms},
                                          {"mamba.", kGgufMamba2Mixer},
                                          {"self_attn.", kAttention},
                                          {"feed_forward.", kMlp}};

Status AddFalconH1(const GgufSettings& settings, ConfigWriter* config,
                   std::vector<std::string>* warnings) {
  ADDER_RETURN_IF_ERROR(AddAttention(settings, config).status());
  ADDER_RETURN_IF_ERROR(AddMamba2Head(settings, "mamba_d_head", config));
  const bool norm = settings.HasTensors("ssm_norm.weight");
  config->Add("mamba_rms_norm", norm);
  config->Add("mamba_norm_before_gate", false);
  if (norm) {
    warnings->push_back(settings.name() +
                        ": whether the gate comes before the norm of the mixers is not in the "
                        "file; it is taken to, as in llama.cpp");
  }
  if (!settings.HasTensor("output.weight")) {
    warnings->push_back(settings.name() +
                        ": the multiplier of the logits is not in the file, whose head is the "
                        "embedding with its own multiplier; as in llama.cpp, logits are scaled by "
                        "that one");
  }
  ADDER_RETURN_IF_ERROR(CheckWholeHeadsRotate(settings));
  return AddRope(settings, config);
}

// ---- Nemotron-H.

constexpr KeyRule kNemotronKeys[] = {
    {"embedding_length", "hidden_size"}, {"block_count", "num_hidden_layers"},
    {"ssm.group_count", "n_groups"},     {"ssm.state_size", "ssm_state_size"},
    {"ssm.conv_kernel", "conv_kernel"},  {"ssm.time_step_rank", "mamba_num_heads"}};
constexpr TensorRule kNemotronLayer[] = {{"attn_norm.weight", "norm.weight"},
                                         {"ffn_gate_inp.weight", "mixer.gate.weight"},
                                         {"exp_probs_b.bias", "mixer.gate.e_score_correction_bias"},
                                         {"ffn_latent_down.weight", "mixer.fc1_latent_proj.weight"},
                                         {"ffn_latent_up.weight", "mixer.fc2_latent_proj.weight"}};
constexpr TensorGroup kNemotronTensors[] = {
    {"", kNemotronLayer}, {"mixer.", kGgufMamba2Mixer}, {"mixer.", kPairedAttention},
    {"mixer.", kMlp},     {"mixer.", kExperts},         {"mixer.shared_experts.", kSharedExpert}};

Status AddNemotronExperts(const GgufSettings& settings, ConfigWriter* config) {
  for (const KeyRule& rule : {KeyRule{"expert_used_count", "num_experts_per_tok"},
                              {"expert_group_count", "n_group"},
                              {"expert_group_used_count", "topk_group"},
                              {"moe_latent_size", "moe_latent_size"}}) {
    if (!settings.Has(rule.gguf)) continue;
    ADDER_ASSIGN_OR_RETURN(const int64_t value, settings.Int(rule.gguf, std::nullopt));
    config->Add(rule.hf, value);
  }
  ADDER_ASSIGN_OR_RETURN(const bool normalized, settings.Bool("expert_weights_norm", false));
  config->Add("norm_topk_prob", normalized);
  return AddMultiplier(settings, "expert_weights_scale", "routed_scaling_factor", config);
}

// A layer with heads of keys attends, another with a feed-forward length is an MLP or has experts.
Status AddNemotronH(const GgufSettings& settings, ConfigWriter* config, std::vector<std::string>*) {
  ADDER_ASSIGN_OR_RETURN(const std::vector<bool> attends, AddAttention(settings, config));
  ADDER_ASSIGN_OR_RETURN(const auto lengths, settings.PerBlock("feed_forward_length"));
  std::vector<const char*> types = LayerTypes(attends);
  for (size_t i = 0; i < types.size(); ++i) {
    if (lengths[i] == 0) continue;
    if (attends[i]) {
      return Error(Code::kCorruptFile,
                   "%s: block %zu attends (%s) and has a feed-forward length of %" PRId64,
                   settings.name().c_str(), i, settings.Key("attention.head_count_kv").c_str(),
                   lengths[i]);
    }
    types[i] = settings.HasTensor(i, "ffn_gate_inp.weight") ? "moe" : "mlp";
  }
  config->Add("layers_block_type", types);
  ADDER_RETURN_IF_ERROR(AddMamba2Head(settings, "mamba_head_dim", config));
  return AddNemotronExperts(settings, config);
}

constexpr GgufFamily kFamilies[] = {
    {"jamba", "jamba", "model.", "embed_tokens.weight", "final_layernorm.weight", "rms_norm_eps",
     kJambaKeys, kJambaTensors, AddJamba},
    {"granitehybrid", "bamba", "model.", "embed_tokens.weight", "final_layernorm.weight",
     "rms_norm_eps", kGraniteKeys, kBambaTensors, AddBamba, IsBamba},
    {"granitehybrid", "granitemoehybrid", "model.", "embed_tokens.weight", "norm.weight",
     "rms_norm_eps", kGraniteKeys, kGraniteTensors, AddGranite},
    {"falcon-h1", "falcon_h1", "model.", "embed_tokens.weight", "final_layernorm.weight",
     "rms_norm_eps", kGraniteKeys, kFalconTensors, AddFalconH1},
    {"nemotron_h", "nemotron_h", "backbone.", "embeddings.weight", "norm_f.weight",
     "layer_norm_epsilon", kNemotronKeys, kNemotronTensors, AddNemotronH},
    {"nemotron_h_moe", "nemotron_h", "backbone.", "embeddings.weight", "norm_f.weight",
     "layer_norm_epsilon", kNemotronKeys, kNemotronTensors, AddNemotronH}};

}  // namespace

std::span<const GgufFamily> GgufHybridFamilies() { return kFamilies; }

}  // namespace adder
