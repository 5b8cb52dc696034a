// What llama.cpp's converter makes of a checkpoint of a hybrid: names, shapes, and what it does to
// the values. Written from its conversion/*.py and gguf-py, nothing shared with Adder's reader.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "converter/json.h"
#include "runtime/rapidjson.h"
#include "tests/gguf_writer.h"
#include "tests/tiny_checkpoint.h"

namespace adder::test {

// A GGUF file in pieces, so that a test can change them.
struct GgufModel {
  using Value = std::variant<uint32_t, float, bool, std::string, std::vector<int32_t>>;
  std::map<std::string, Value> metadata;
  Weights tensors;  // shapes row-major, all F32

  std::vector<uint8_t> File() const {
    GgufWriter file;
    for (const auto& [key, value] : metadata) {
      if (const auto* numbers = std::get_if<std::vector<int32_t>>(&value)) {
        file.Numbers<int32_t>(key, GgufType::kI32, *numbers);
      } else if (const auto* text = std::get_if<std::string>(&value)) {
        file.Add(key, std::string_view(*text));
      } else if (const auto* number = std::get_if<float>(&value)) {
        file.Add(key, *number);
      } else if (const auto* flag = std::get_if<bool>(&value)) {
        file.Add(key, *flag);
      } else {
        file.Add(key, std::get<uint32_t>(value));
      }
    }
    for (const auto& [name, array] : tensors) {
      file.Tensor(name, {array.shape.rbegin(), array.shape.rend()}, 0, BytesOf(array.values));
    }
    return file.File();
  }
};

class LlamaCppConverter {
 public:
  LlamaCppConverter(const TinyCheckpoint& checkpoint, std::string architecture)
      : checkpoint_(checkpoint),
        architecture_(std::move(architecture)),
        config_(*Json::Parse(checkpoint.config, "config.json"), "config.json") {}

  GgufModel Run() {
    out_.metadata["general.architecture"] = architecture_;
    AddTokens();
    AddSizes();
    AddLayers();
    for (const auto& [name, array] : checkpoint_.weights) AddTensor(name, array);
    for (auto& [name, experts] : experts_) Stack(name, experts);
    return std::move(out_);
  }

 private:
  int64_t Int(std::initializer_list<std::string_view> keys, int64_t fallback = 0) const {
    return *config_.Int(keys, fallback);
  }
  void Set(const std::string& key, int64_t value) {
    out_.metadata[architecture_ + "." + key] = static_cast<uint32_t>(value);
  }
  void SetFloat(const std::string& key, double value) {
    out_.metadata[architecture_ + "." + key] = static_cast<float>(value);
  }
  void SetFlag(const std::string& key, bool value) {
    out_.metadata[architecture_ + "." + key] = value;
  }
  void SetList(const std::string& key, std::vector<int32_t> values) {
    out_.metadata[architecture_ + "." + key] = std::move(values);
  }
  bool IsNemotron() const { return architecture_.starts_with("nemotron"); }
  bool IsGranite() const { return architecture_ == "granitehybrid"; }
  bool IsBamba() const { return *config_.String({"model_type"}, "") == "bamba"; }

  // No tokenizer: these checkpoints have none.
  void AddTokens() {
    out_.metadata["tokenizer.ggml.model"] = std::string("none");
    Set("vocab_size", Int({"vocab_size"}));
    for (const char* which : {"bos", "eos"}) {
      const std::string id = std::string(which) + "_token_id";
      if (config_.Has({id}))
        out_.metadata["tokenizer.ggml." + id] = static_cast<uint32_t>(Int({id}));
    }
  }

  void AddSizes() {
    const int64_t width = Int({"hidden_size"});
    Set("embedding_length", width);
    Set("context_length", 1 << 20);
    Set("attention.head_count", Int({"num_attention_heads"}));
    SetFloat("attention.layer_norm_rms_epsilon",
             *config_.Double({"rms_norm_eps", "layer_norm_epsilon"}, 1e-5));
    if (IsNemotron()) {
      SetFloat("attention.layer_norm_epsilon", *config_.Double({"layer_norm_epsilon"}, 1e-5));
    }
    const FloatArray& mixer = FirstOf("A_log");
    const auto heads = static_cast<int64_t>(mixer.shape[0]);
    Set("ssm.conv_kernel", static_cast<int64_t>(FirstOf("conv1d.weight").shape[2]));
    if (architecture_ == "jamba") {
      Set("ssm.inner_size", heads);
      Set("ssm.state_size", static_cast<int64_t>(mixer.shape[1]));
      Set("ssm.time_step_rank", static_cast<int64_t>(FirstOf("dt_proj.weight").shape[1]));
    } else {
      inner_ = heads * Int({"mamba_d_head", "mamba_head_dim"});
      groups_ = Int({"mamba_n_groups", "n_groups"});
      Set("ssm.inner_size", inner_);
      Set("ssm.state_size", Int({"mamba_d_state", "ssm_state_size"}));
      Set("ssm.time_step_rank", heads);
      Set("ssm.group_count", groups_);
    }
    // Granite drops a head width of its own.
    if (config_.Has({"head_dim"}) && !IsGranite()) {
      Set("attention.key_length", Int({"head_dim"}));
      Set("attention.value_length", Int({"head_dim"}));
    }
    if (IsGranite()) AddGranite();
    if (architecture_ == "falcon-h1" || IsBamba()) {
      const auto rope = config_.Object("rope_parameters");
      SetFloat("rope.freq_base", *rope->Double({"rope_theta"}, *config_.Double({"rope_theta"}, 1)));
    }
    if (architecture_ == "jamba" || config_.Has({"num_local_experts"})) {
      Set("expert_count", Int({"num_local_experts", "num_experts"}));
      Set("expert_used_count", Int({"num_experts_per_tok"}));
    }
    if (architecture_ == "nemotron_h_moe") AddNemotronExperts();
  }

  void AddGranite() {
    const int64_t head_dim = Int({"hidden_size"}) / Int({"num_attention_heads"});
    Set("rope.dimension_count", IsBamba() ? head_dim / 2 : head_dim);
    const bool rope = *config_.String({"position_embedding_type"}, "nope") == "rope";
    SetFlag("rope.scaling.finetuned", IsBamba() || rope);
    for (const auto& [key, hf] : {std::pair("attention.scale", "attention_multiplier"),
                                  std::pair("embedding_scale", "embedding_multiplier"),
                                  std::pair("residual_scale", "residual_multiplier"),
                                  std::pair("logit_scale", "logits_scaling")}) {
      if (config_.Has({hf})) SetFloat(key, *config_.Double({hf}, 0));
    }
  }

  void AddNemotronExperts() {
    Set("expert_count", Int({"n_routed_experts"}));
    Set("expert_used_count", Int({"num_experts_per_tok"}));
    Set("expert_shared_count", 1);
    const FloatArray& expert = FirstOf("mixer.experts.0.up_proj.weight");
    Set("expert_feed_forward_length", static_cast<int64_t>(expert.shape[0]));
    Set("expert_group_count", Int({"n_group"}, 1));
    Set("expert_group_used_count", Int({"topk_group"}, 1));
    SetFlag("expert_weights_norm", *config_.Bool({"norm_topk_prob"}, true));
    SetFloat("expert_weights_scale", *config_.Double({"routed_scaling_factor"}, 1));
    if (config_.Has({"moe_latent_size"})) Set("moe_latent_size", Int({"moe_latent_size"}));
  }

  // Which layers attend and which have a feed-forward part, by what the checkpoint has there.
  void AddLayers() {
    std::vector<int32_t> kv_heads, lengths;
    const auto kv = static_cast<int32_t>(Int({"num_key_value_heads"}));
    for (size_t i = 0; HasLayer(i); ++i) {
      kv_heads.push_back(Find(i, "k_proj.weight") == nullptr ? 0 : kv);
      const FloatArray* mlp = Find(i, "mixer.up_proj.weight");
      if (mlp == nullptr) mlp = Find(i, "mixer.experts.0.up_proj.weight");
      lengths.push_back(mlp == nullptr ? 0 : static_cast<int32_t>(mlp->shape[0]));
    }
    Set("block_count", static_cast<int64_t>(kv_heads.size()));
    if (architecture_ == "falcon-h1") {
      Set("attention.head_count_kv", kv);
    } else {
      SetList("attention.head_count_kv", kv_heads);
    }
    if (IsNemotron()) {
      SetList("feed_forward_length", lengths);
    } else {
      // Of released Granites without experts shared_intermediate_size is intermediate_size.
      const bool dense = IsGranite() && !IsBamba() && Int({"num_local_experts"}) == 0;
      const FloatArray* mlp = dense ? Find(0, "shared_mlp.output_linear.weight") : nullptr;
      Set("feed_forward_length",
          mlp != nullptr ? static_cast<int64_t>(mlp->shape[1]) : Int({"intermediate_size"}, 1));
    }
    for (const char* shared :
         {"shared_mlp.output_linear.weight", "shared_experts.down_proj.weight"}) {
      for (size_t i = 0; HasLayer(i); ++i) {
        if (const FloatArray* mlp = Find(i, shared))
          Set("expert_shared_feed_forward_length", static_cast<int64_t>(mlp->shape[1]));
      }
    }
  }

  static std::string Root(size_t i, const std::string& root) {
    return root + "layers." + std::to_string(i) + ".";
  }
  bool HasLayer(size_t i) const { return Find(i, "norm.weight") != nullptr; }
  const FloatArray* Find(size_t i, const std::string& end) const {
    for (const auto& [name, array] : checkpoint_.weights) {
      const bool here =
          name.starts_with(Root(i, "model.")) || name.starts_with(Root(i, "backbone."));
      if (here && name.ends_with(end)) return &array;
    }
    return nullptr;
  }
  const FloatArray& FirstOf(const std::string& end) const {
    const FloatArray* found = nullptr;
    for (size_t i = 0; found == nullptr; ++i) found = Find(i, end);
    return *found;
  }

  void AddTensor(const std::string& name, const FloatArray& array) {
    const size_t at = name.find("layers.");
    if (name == checkpoint_.embedding) {
      out_.tensors["token_embd.weight"] = array;
    } else if (name == "lm_head.weight") {
      out_.tensors["output.weight"] = array;
    } else if (at == std::string::npos) {
      out_.tensors["output_norm.weight"] = array;
    } else {
      const size_t dot = name.find('.', at + 7);
      AddLayerTensor("blk." + name.substr(at + 7, dot - at - 7) + ".", name.substr(dot + 1), array);
    }
  }

  void AddLayerTensor(const std::string& block, std::string rest, const FloatArray& array) {
    if (rest == "norm.weight" || rest == "input_layernorm.weight") {
      out_.tensors[block + "attn_norm.weight"] = array;
      return;
    }
    if (rest == "pre_ff_layernorm.weight" || rest == "post_attention_layernorm.weight") {
      const char* end = architecture_ == "falcon-h1" ? "" : ".weight";
      out_.tensors[block + "ffn_norm" + end] = array;
      return;
    }
    const std::string part = rest.substr(0, rest.find('.') + 1);
    rest = rest.substr(part.size());
    if (rest.starts_with("experts.")) return AddExpert(block, rest.substr(8), array);
    if (part == "shared_mlp." || part == "block_sparse_moe.")
      return AddGraniteFeedForward(block, part, rest, array);
    static const std::map<std::string, std::string> kNames = {
        {"in_proj", "ssm_in"},
        {"conv1d", "ssm_conv1d"},
        {"x_proj", "ssm_x"},
        {"dt_proj", "ssm_dt"},
        {"dt_layernorm", "ssm_dt_norm"},
        {"b_layernorm", "ssm_b_norm"},
        {"c_layernorm", "ssm_c_norm"},
        {"norm", "ssm_norm"},
        {"out_proj", "ssm_out"},
        {"q_proj", "attn_q"},
        {"k_proj", "attn_k"},
        {"v_proj", "attn_v"},
        {"o_proj", "attn_output"},
        {"gate_proj", "ffn_gate"},
        {"up_proj", "ffn_up"},
        {"down_proj", "ffn_down"},
        {"router", "ffn_gate_inp"},
        {"gate", "ffn_gate_inp"},
        {"fc1_latent_proj", "ffn_latent_down"},
        {"fc2_latent_proj", "ffn_latent_up"},
        {"shared_experts.up_proj", "ffn_up_shexp"},
        {"shared_experts.down_proj", "ffn_down_shexp"}};
    if (rest == "A_log") {
      out_.tensors[block + "ssm_a"] = Decay(array);
    } else if (rest == "D") {
      out_.tensors[block + "ssm_d"] = architecture_ == "jamba" ? array : Column(array);
    } else if (rest == "dt_bias") {
      out_.tensors[block + "ssm_dt.bias"] = array;
    } else if (rest == "gate.e_score_correction_bias") {
      out_.tensors[block + "exp_probs_b.bias"] = array;
    } else {
      const size_t dot = rest.rfind('.');
      const std::string name = kNames.at(rest.substr(0, dot)) + rest.substr(dot);
      out_.tensors[block + name] = Changed(name, array);
    }
  }

  FloatArray Changed(const std::string& name, FloatArray array) const {
    if (name == "ssm_conv1d.weight") array.shape = {array.shape[0], array.shape[2]};
    if (name == "ssm_norm.weight") {
      array.shape = {static_cast<uint64_t>(groups_), static_cast<uint64_t>(inner_ / groups_)};
    }
    if (!IsGranite() && !IsNemotron()) return array;
    if (name.starts_with("attn_q.")) return Permuted(array, Int({"num_attention_heads"}));
    if (name.starts_with("attn_k.")) return Permuted(array, Int({"num_key_value_heads"}));
    return array;
  }

  // reshape(heads, 2, half, ...).swapaxes(1, 2)
  static FloatArray Permuted(const FloatArray& array, int64_t n_heads) {
    const auto heads = static_cast<size_t>(n_heads);
    const size_t half = array.shape[0] / heads / 2, width = array.values.size() / array.shape[0];
    FloatArray out{array.shape, {}};
    for (size_t h = 0; h < heads; ++h) {
      for (size_t i = 0; i < half; ++i) {
        for (size_t side = 0; side < 2; ++side) {
          const size_t row = (h * 2 + side) * half + i;
          for (size_t c = 0; c < width; ++c) out.values.push_back(array.values[row * width + c]);
        }
      }
    }
    return out;
  }

  FloatArray Decay(FloatArray array) const {
    for (float& value : array.values) value = -std::exp(value);
    return architecture_ == "jamba" ? array : Column(array);
  }
  static FloatArray Column(FloatArray array) {
    array.shape.push_back(1);
    return array;
  }

  // "<e>.<name>_proj.weight", or "<name>_proj" of all experts.
  void AddExpert(const std::string& block, const std::string& rest, const FloatArray& array) {
    const auto stacked = [&](const std::string& name) {
      return block + "ffn_" + name.substr(0, name.find('_')) + "_exps.weight";
    };
    if (rest.find('.') == std::string::npos) {
      out_.tensors[stacked(rest)] = array;
    } else {
      experts_[stacked(rest.substr(rest.find('.') + 1))][std::stoi(rest)] = array;
    }
  }
  void Stack(const std::string& name, const std::map<int, FloatArray>& experts) {
    FloatArray all{experts.at(0).shape, {}};
    all.shape.insert(all.shape.begin(), experts.size());
    for (const auto& [e, expert] : experts) {
      all.values.insert(all.values.end(), expert.values.begin(), expert.values.end());
    }
    out_.tensors[name] = all;
  }

  // Gate and up lie merged in the checkpoint.
  void AddGraniteFeedForward(const std::string& block, const std::string& part,
                             const std::string& rest, const FloatArray& array) {
    if (rest == "router.layer.weight") {
      out_.tensors[block + "ffn_gate_inp.weight"] = array;
      return;
    }
    const bool has_experts = Int({"num_local_experts"}) > 0;
    const char* end = part != "shared_mlp." ? "_exps.weight"
                      : has_experts         ? "_shexp.weight"
                                            : ".weight";
    if (rest == "output_linear.weight") {
      out_.tensors[block + "ffn_down" + end] = array;
      return;
    }
    const size_t rank = array.shape.size(), cols = array.shape[rank - 1];
    const size_t both = array.shape[rank - 2] * cols;
    FloatArray gate{array.shape, {}};
    gate.shape[rank - 2] /= 2;
    FloatArray up = gate;
    for (size_t i = 0; i < array.values.size(); ++i) {
      (i % both < both / 2 ? gate : up).values.push_back(array.values[i]);
    }
    out_.tensors[block + "ffn_gate" + end] = gate;
    out_.tensors[block + "ffn_up" + end] = up;
  }

  const TinyCheckpoint& checkpoint_;
  std::string architecture_;
  Config config_;
  int64_t inner_ = 0, groups_ = 1;
  std::map<std::string, std::map<int, FloatArray>> experts_;  // by name of the stack
  GgufModel out_;
};

// The same with Falcon-H1's multipliers in the weights, which llama.cpp puts there one after the
// other in float32.
inline void FoldFalconMultipliers(TinyCheckpoint* checkpoint) {
  rapidjson::Document config;
  config.Parse(checkpoint->config.c_str());
  const auto number = [&](const char* key) { return config[key].GetFloat(); };
  const auto listed = [&](const char* key, unsigned i) { return config[key][i].GetFloat(); };
  const size_t inner = config["mamba_d_ssm"].GetUint();
  const size_t bc = size_t{config["mamba_n_groups"].GetUint()} * config["mamba_d_state"].GetUint();
  for (auto& tensor : checkpoint->weights) {
    const std::string& name = tensor.first;
    FloatArray& array = tensor.second;
    const size_t cols = array.shape.back();
    const auto contains = [&](const char* part) { return name.find(part) != std::string::npos; };
    for (size_t i = 0; i < array.values.size(); ++i) {
      float& value = array.values[i];
      if (contains("down_proj")) value *= listed("mlp_multipliers", 1);
      if (contains("gate_proj")) value *= listed("mlp_multipliers", 0);
      if (contains("k_proj")) value *= number("key_multiplier");
      if (contains("k_proj") || contains("q_proj") || contains("v_proj"))
        value *= number("attention_in_multiplier");
      if (contains("o_proj")) value *= number("attention_out_multiplier");
      if (contains(".out_proj")) value *= number("ssm_out_multiplier");
      if (contains("in_proj")) {
        value *= number("ssm_in_multiplier");
        const size_t row = i / cols;
        const size_t ends[] = {inner, 2 * inner, 2 * inner + bc, 2 * inner + 2 * bc};
        value *= listed("ssm_multipliers",
                        static_cast<unsigned>(std::upper_bound(ends, ends + 4, row) - ends));
      }
      if (contains("lm_head")) value *= number("lm_head_multiplier");
      if (contains("embed_tokens")) value *= number("embedding_multiplier");
    }
  }
  for (const char* key : {"mlp_multipliers", "key_multiplier", "attention_in_multiplier",
                          "attention_out_multiplier", "ssm_out_multiplier", "ssm_in_multiplier",
                          "ssm_multipliers", "lm_head_multiplier", "embedding_multiplier"}) {
    config.RemoveMember(key);
  }
  rapidjson::StringBuffer text;
  rapidjson::Writer<rapidjson::StringBuffer> writer(text);
  config.Accept(writer);
  checkpoint->config = text.GetString();
}

}  // namespace adder::test
