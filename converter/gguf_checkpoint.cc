#include "converter/gguf_checkpoint.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <string_view>

#include "converter/gguf.h"
#include "converter/gguf_tokenizer.h"
#include "converter/text.h"
#include "runtime/rapidjson.h"

namespace adder {
namespace {

// What llama.cpp's converter does to a tensor of the checkpoint, and is undone here.
enum class Form {
  kSame,
  kTaps,         // [channels, taps], which was [channels, 1, taps]
  kVector,       // any shape of as many elements, which was one dimension
  kDecay,        // A = -exp(A_log)
  kDecayVector,  // both
};

struct TensorRule {
  const char* gguf;  // behind "blk.<i>."
  const char* hf;    // behind "<root>layers.<i>."
  Form form = Form::kSame;
};

struct KeyRule {
  const char* gguf;  // behind "<architecture>."
  const char* hf;
};

class ConfigWriter;

// One row per architecture that llama.cpp writes.
struct Architecture {
  const char* name;  // general.architecture
  const char* root;
  const char* embedding;  // behind the root
  const char* final_norm;
  std::span<const KeyRule> integers;
  std::span<const TensorRule> tensors;
  // model_type, and settings that are no copies of a key.
  Status (*more)(const GgufMetadata&, ConfigWriter*, std::vector<std::string>* warnings);
};

// config.json, key by key.
class ConfigWriter {
 public:
  ConfigWriter() { json_.StartObject(); }
  void Add(const char* key, int64_t value) { Key(key).Int64(value); }
  void Add(const char* key, double value) { Key(key).Double(value); }
  void Add(const char* key, bool value) { Key(key).Bool(value); }
  void Add(const char* key, const char* value) { Key(key).String(value); }
  void Add(const char* key, const std::vector<int64_t>& values) {
    Key(key).StartArray();
    for (const int64_t value : values) json_.Int64(value);
    json_.EndArray();
  }
  Result<Config> Finish(const std::string& name) {
    json_.EndObject();
    ADDER_ASSIGN_OR_RETURN(Json root, Json::Parse({buffer_.GetString(), buffer_.GetSize()}, name));
    return Config(std::move(root), name);
  }

 private:
  rapidjson::Writer<rapidjson::StringBuffer>& Key(const char* key) {
    json_.Key(key);
    return json_;
  }
  rapidjson::StringBuffer buffer_;
  rapidjson::Writer<rapidjson::StringBuffer> json_{buffer_};
};

constexpr char kNormEps[] = ".attention.layer_norm_rms_epsilon";

// A finite number: JSON has no other.
Result<double> NormEps(const GgufMetadata& metadata, const std::string& architecture) {
  ADDER_ASSIGN_OR_RETURN(const double eps, metadata.Double(architecture + kNormEps, std::nullopt));
  if (eps > 0 && eps <= 1) return eps;
  return Error(Code::kCorruptFile, "%s: %s%s is %g, expected up to 1", metadata.name().c_str(),
               architecture.c_str(), kNormEps, eps);
}

// ---- Mamba-1 and Falcon-Mamba.

constexpr KeyRule kMambaKeys[] = {
    {"embedding_length", "hidden_size"},     {"block_count", "num_hidden_layers"},
    {"ssm.inner_size", "intermediate_size"}, {"ssm.state_size", "state_size"},
    {"ssm.conv_kernel", "conv_kernel"},      {"ssm.time_step_rank", "time_step_rank"}};
constexpr TensorRule kMambaTensors[] = {{"attn_norm.weight", "norm.weight"},
                                        {"ssm_in.weight", "mixer.in_proj.weight"},
                                        {"ssm_in.bias", "mixer.in_proj.bias"},
                                        {"ssm_conv1d.weight", "mixer.conv1d.weight", Form::kTaps},
                                        {"ssm_conv1d.bias", "mixer.conv1d.bias"},
                                        {"ssm_x.weight", "mixer.x_proj.weight"},
                                        {"ssm_dt.weight", "mixer.dt_proj.weight"},
                                        {"ssm_dt.bias", "mixer.dt_proj.bias"},
                                        {"ssm_a", "mixer.A_log", Form::kDecay},
                                        {"ssm_d", "mixer.D", Form::kVector},
                                        {"ssm_out.weight", "mixer.out_proj.weight"},
                                        {"ssm_out.bias", "mixer.out_proj.bias"}};

Status FinishMamba(const GgufMetadata& metadata, ConfigWriter* config,
                   std::vector<std::string>* warnings) {
  ADDER_ASSIGN_OR_RETURN(const bool falcon, metadata.Bool("mamba.ssm.dt_b_c_rms", false));
  config->Add("model_type", falcon ? "falcon_mamba" : "mamba");
  if (!falcon) return {};
  ADDER_ASSIGN_OR_RETURN(const double eps, NormEps(metadata, "mamba"));
  config->Add("mixer_rms_eps", eps);
  char text[120];
  std::snprintf(text, sizeof(text), ": the epsilon of the dt, B and C norms is not in the file; %g",
                eps);
  warnings->push_back(metadata.name() + text + " of the layer norms is taken");
  return {};
}

// ---- Mamba-2.

constexpr KeyRule kMamba2Keys[] = {
    {"embedding_length", "hidden_size"},     {"block_count", "num_hidden_layers"},
    {"ssm.inner_size", "intermediate_size"}, {"ssm.state_size", "state_size"},
    {"ssm.conv_kernel", "conv_kernel"},      {"ssm.time_step_rank", "num_heads"},
    {"ssm.group_count", "n_groups"}};
constexpr TensorRule kMamba2Tensors[] = {{"attn_norm.weight", "norm.weight"},
                                         {"ssm_in.weight", "mixer.in_proj.weight"},
                                         {"ssm_in.bias", "mixer.in_proj.bias"},
                                         {"ssm_conv1d.weight", "mixer.conv1d.weight", Form::kTaps},
                                         {"ssm_conv1d.bias", "mixer.conv1d.bias"},
                                         {"ssm_dt.bias", "mixer.dt_bias"},
                                         {"ssm_a", "mixer.A_log", Form::kDecayVector},
                                         {"ssm_d", "mixer.D", Form::kVector},
                                         {"ssm_norm.weight", "mixer.norm.weight", Form::kVector},
                                         {"ssm_out.weight", "mixer.out_proj.weight"},
                                         {"ssm_out.bias", "mixer.out_proj.bias"}};

Status FinishMamba2(const GgufMetadata& metadata, ConfigWriter* config, std::vector<std::string>*) {
  config->Add("model_type", "mamba2");
  ADDER_ASSIGN_OR_RETURN(const int64_t inner, metadata.Int("mamba2.ssm.inner_size", std::nullopt));
  ADDER_ASSIGN_OR_RETURN(const int64_t heads,
                         metadata.Int("mamba2.ssm.time_step_rank", std::nullopt));
  if (heads < 1 || inner < 1 || inner % heads != 0) {
    return Error(Code::kCorruptFile,
                 "%s: mamba2.ssm.inner_size is %" PRId64 ", no multiple of the %" PRId64
                 " heads (mamba2.ssm.time_step_rank)",
                 metadata.name().c_str(), inner, heads);
  }
  config->Add("head_dim", inner / heads);
  return {};
}

constexpr Architecture kArchitectures[] = {
    {"mamba", "backbone.", "embeddings.weight", "norm_f.weight", kMambaKeys, kMambaTensors,
     FinishMamba},
    {"mamba2", "backbone.", "embeddings.weight", "norm_f.weight", kMamba2Keys, kMamba2Tensors,
     FinishMamba2}};

Result<const Architecture*> FindArchitecture(const GgufMetadata& metadata) {
  ADDER_ASSIGN_OR_RETURN(const std::string_view type, metadata.String("general.type", "model"));
  if (type != "model") {
    return Error(Code::kUnsupported, "%s: general.type is \"%s\", only models are converted",
                 metadata.name().c_str(), Shown(type).c_str());
  }
  ADDER_ASSIGN_OR_RETURN(const int64_t shards, metadata.Int("split.count", 1));
  if (shards > 1) {
    return Error(Code::kUnsupported,
                 "%s: one of %" PRId64 " parts; put them together first (llama-gguf-split --merge)",
                 metadata.name().c_str(), shards);
  }
  ADDER_ASSIGN_OR_RETURN(const std::string_view name,
                         metadata.String("general.architecture", std::nullopt));
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    if (name == architecture.name) return &architecture;
    known += (known.empty() ? "" : ", ") + std::string(architecture.name);
  }
  return Error(Code::kUnsupported,
               "%s: architecture \"%s\" is not supported; GGUF files are read of %s",
               metadata.name().c_str(), Shown(name).c_str(), known.c_str());
}

// Splits "blk.12.ssm_a" into "12" and "ssm_a"; false for other names.
bool SplitLayer(std::string_view name, std::string_view* layer, std::string_view* rest) {
  constexpr std::string_view kStart = "blk.";
  if (!name.starts_with(kStart)) return false;
  name.remove_prefix(kStart.size());
  const size_t dot = name.find('.');
  if (dot == 0 || dot == std::string_view::npos) return false;
  *layer = name.substr(0, dot);
  *rest = name.substr(dot + 1);
  return layer->find_first_not_of("0123456789") == std::string_view::npos;
}

SourceTensor Formed(SourceTensor tensor, Form form) {
  if (form == Form::kTaps && tensor.shape.size() == 2) {
    tensor.shape.insert(tensor.shape.begin() + 1, 1);
  }
  if (form == Form::kVector || form == Form::kDecayVector) tensor.shape = {tensor.elements()};
  tensor.negative_exp = form == Form::kDecay || form == Form::kDecayVector;
  return tensor;
}

// Under the checkpoint's name. A tensor that no rule knows keeps its own behind the layer's root,
// where the plan reports it.
void AddTensor(const Architecture& architecture, const std::string& name, SourceTensor tensor,
               TensorMap* out) {
  const std::string root = architecture.root;
  std::string_view layer, rest;
  if (SplitLayer(name, &layer, &rest)) {
    const auto rule = std::find_if(architecture.tensors.begin(), architecture.tensors.end(),
                                   [&](const TensorRule& r) { return rest == r.gguf; });
    const bool known = rule != architecture.tensors.end();
    out->emplace(
        root + "layers." + std::string(layer) + "." + (known ? rule->hf : std::string(rest)),
        Formed(std::move(tensor), known ? rule->form : Form::kSame));
  } else if (name == "token_embd.weight") {
    out->emplace(root + architecture.embedding, std::move(tensor));
  } else if (name == "output_norm.weight") {
    out->emplace(root + architecture.final_norm, std::move(tensor));
  } else if (name == "output.weight") {
    out->emplace("lm_head.weight", std::move(tensor));
  } else {
    out->emplace(name, std::move(tensor));
  }
}

Status AddSpecialTokens(const GgufMetadata& metadata, ConfigWriter* config) {
  constexpr int64_t kNone = -1;
  ADDER_ASSIGN_OR_RETURN(const int64_t bos, metadata.Int("tokenizer.ggml.bos_token_id", kNone));
  if (bos != kNone) config->Add("bos_token_id", bos);
  std::vector<int64_t> eos;
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    ADDER_ASSIGN_OR_RETURN(const int64_t id, metadata.Int(key, kNone));
    if (id != kNone) eos.push_back(id);
  }
  config->Add("eos_token_id", eos);
  return {};
}

Result<Config> MakeConfig(const Architecture& architecture, const Gguf& gguf,
                          std::vector<std::string>* warnings) {
  const GgufMetadata& metadata = gguf.metadata;
  const std::string prefix = std::string(architecture.name) + ".";
  ConfigWriter config;
  for (const KeyRule& rule : architecture.integers) {
    ADDER_ASSIGN_OR_RETURN(const int64_t value, metadata.Int(prefix + rule.gguf, std::nullopt));
    config.Add(rule.hf, value);
  }
  ADDER_ASSIGN_OR_RETURN(const double eps, NormEps(metadata, architecture.name));
  config.Add("layer_norm_epsilon", eps);
  ADDER_RETURN_IF_ERROR(architecture.more(metadata, &config, warnings));
  ADDER_RETURN_IF_ERROR(AddSpecialTokens(metadata, &config));
  const auto has = [&](const char* name) { return gguf.tensors.contains(name); };
  config.Add("use_bias", has("blk.0.ssm_in.bias"));
  config.Add("use_conv_bias", has("blk.0.ssm_conv1d.bias"));
  config.Add("tie_word_embeddings", !has("output.weight"));
  const auto embedding = gguf.tensors.find("token_embd.weight");
  if (embedding != gguf.tensors.end()) {
    config.Add("vocab_size", static_cast<int64_t>(embedding->second.shape.front()));
  }
  return config.Finish(metadata.name());
}

std::string Origin(const TensorMap& tensors) {
  std::vector<SourceType> types;
  for (const auto& [name, tensor] : tensors) types.push_back(tensor.type);
  std::sort(types.begin(), types.end());
  types.erase(std::unique(types.begin(), types.end()), types.end());
  std::string text = "GGUF, tensors in";
  for (const SourceType type : types) text += std::string(" ") + SourceTypeName(type);
  return text;
}

}  // namespace

Result<GgufCheckpoint> ReadGguf(std::span<const uint8_t> bytes, const std::string& name) {
  ADDER_ASSIGN_OR_RETURN(Gguf gguf, ParseGguf(bytes, name));
  ADDER_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(gguf.metadata));
  GgufCheckpoint out;
  ADDER_ASSIGN_OR_RETURN(out.config, MakeConfig(*architecture, gguf, &out.warnings));
  ADDER_ASSIGN_OR_RETURN(out.tokenizer_section, CompileGgufTokenizer(gguf.metadata));
  if (gguf.metadata.Has("tokenizer.chat_template")) {
    ADDER_ASSIGN_OR_RETURN(const std::string_view text,
                           gguf.metadata.String("tokenizer.chat_template", std::nullopt));
    out.chat_template = std::string(text);
  }
  out.origin = Origin(gguf.tensors);
  for (auto& [tensor_name, tensor] : gguf.tensors) {
    AddTensor(*architecture, tensor_name, std::move(tensor), &out.tensors);
  }
  return out;
}

}  // namespace adder
