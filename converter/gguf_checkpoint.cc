#include "converter/gguf_checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <string_view>

#include "converter/gguf.h"
#include "converter/gguf_family.h"
#include "converter/gguf_tokenizer.h"
#include "converter/text.h"
#include "runtime/model_file.h"

namespace adder {
namespace {

constexpr int64_t kMaxExperts = 1 << 14;

Result<const GgufFamily*> FindFamily(const Gguf& gguf) {
  const GgufMetadata& metadata = gguf.metadata;
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
  std::string known, last;
  for (const auto families : {GgufMambaFamilies(), GgufHybridFamilies()}) {
    for (const GgufFamily& family : families) {
      const GgufSettings settings(gguf, family.architecture);
      if (name == family.architecture && (family.matches == nullptr || family.matches(settings)))
        return &family;
      if (last != family.architecture) {
        known += (known.empty() ? "" : ", ") + std::string(family.architecture);
      }
      last = family.architecture;
    }
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

// Gives the tensors the names and shapes of the checkpoint.
class TensorMapper {
 public:
  TensorMapper(const GgufFamily& family, const GgufSettings& settings, TensorMap* out)
      : family_(family), settings_(settings), out_(out) {}

  // A tensor that no rule knows keeps its name behind the layer's root, where the plan reports it.
  Status Add(const std::string& name, SourceTensor tensor) {
    const std::string root = family_.root;
    std::string_view layer, rest;
    if (SplitLayer(name, &layer, &rest)) {
      size_t block = SIZE_MAX;
      std::from_chars(layer.data(), layer.data() + layer.size(), block);
      ADDER_ASSIGN_OR_RETURN(const bool further, IsFurther(block));
      if (further) return Put(name, "mtp." + name, std::move(tensor));
      const std::string to = root + "layers." + std::string(layer) + ".";
      for (const TensorGroup& group : family_.tensors) {
        for (const TensorRule& rule : group.rules) {
          if (rest != rule.gguf) continue;
          return AddFormed(name, block, to + group.prefix + rule.hf, rule.form, std::move(tensor));
        }
      }
      return Put(name, to + std::string(rest), std::move(tensor));
    }
    if (name == "token_embd.weight") return Put(name, root + family_.embedding, std::move(tensor));
    if (name == "output_norm.weight") {
      return Put(name, root + family_.final_norm, std::move(tensor));
    }
    return Put(name, name == "output.weight" ? "lm_head.weight" : name, std::move(tensor));
  }

 private:
  Status Put(const std::string& name, const std::string& to, SourceTensor tensor) {
    if (out_->emplace(to, std::move(tensor)).second) return {};
    return Error(Code::kCorruptFile, "%s: %s is there under another name too (%s)",
                 settings_.name().c_str(), Shown(name).c_str(), Shown(to).c_str());
  }

  // Whether a block predicts further tokens.
  Result<bool> IsFurther(size_t block) const {
    if (!settings_.Has("nextn_predict_layers")) return false;
    ADDER_ASSIGN_OR_RETURN(const size_t layers, settings_.Layers());
    ADDER_ASSIGN_OR_RETURN(const size_t blocks, settings_.Blocks());
    return block >= layers && block < blocks;
  }

  Status AddFormed(const std::string& name, size_t block, std::string to, Form form,
                   SourceTensor tensor) {
    switch (form) {
      case Form::kSame:
        break;
      case Form::kTaps:
        if (tensor.shape.size() == 2) tensor.shape.insert(tensor.shape.begin() + 1, 1);
        break;
      case Form::kDecayVector:
      case Form::kVector:
        tensor.shape = {tensor.elements()};
        tensor.negative_exp = form == Form::kDecayVector;
        break;
      case Form::kDecay:
        tensor.negative_exp = true;
        break;
      case Form::kQuery:
      case Form::kKey: {
        const char* key = form == Form::kQuery ? "attention.head_count" : "attention.head_count_kv";
        ADDER_ASSIGN_OR_RETURN(tensor.paired_heads, PairedHeads(name, block, key, tensor));
        break;
      }
      case Form::kExperts:
        return AddExperts(name, std::move(to), tensor);
    }
    return Put(name, to, std::move(tensor));
  }

  Result<uint64_t> PairedHeads(const std::string& name, size_t block, const char* key,
                               const SourceTensor& tensor) const {
    ADDER_ASSIGN_OR_RETURN(const auto heads, settings_.PerBlock(key));
    const auto count = block < heads.size() ? static_cast<uint64_t>(heads[block]) : 0;
    if (count > 0 && tensor.shape[0] % 2 == 0 && tensor.shape[0] / 2 % count == 0) return count;
    return Error(Code::kCorruptFile,
                 "%s: %s has %" PRIu64 " rows, which are no pairs of %" PRIu64
                 " heads (%s of block %zu of %zu)",
                 settings_.name().c_str(), name.c_str(), tensor.shape[0], count,
                 settings_.Key(key).c_str(), block, heads.size());
  }

  // A view for each expert.
  Status AddExperts(const std::string& name, std::string to, const SourceTensor& tensor) {
    ADDER_ASSIGN_OR_RETURN(const int64_t experts, settings_.Int("expert_count", std::nullopt));
    if (experts < 1 || experts > kMaxExperts) {
      return Error(Code::kCorruptFile, "%s: %s is %" PRId64 ", expected 1 to %" PRId64,
                   settings_.name().c_str(), settings_.Key("expert_count").c_str(), experts,
                   kMaxExperts);
    }
    if (tensor.shape.size() != 3 || tensor.shape[0] != static_cast<uint64_t>(experts)) {
      return Error(Code::kCorruptFile,
                   "%s: %s has shape %s, expected 3 dimensions of which the first is %" PRId64
                   " (%s)",
                   settings_.name().c_str(), name.c_str(), ShapeText(tensor.shape).c_str(), experts,
                   settings_.Key("expert_count").c_str());
    }
    const size_t star = to.find('*');
    for (uint64_t e = 0; e < tensor.shape[0]; ++e) {
      std::string expert = to;
      expert.replace(star, 1, std::to_string(e));
      ADDER_RETURN_IF_ERROR(Put(name, expert, tensor.Slice(e)));
    }
    return {};
  }

  const GgufFamily& family_;
  const GgufSettings& settings_;
  TensorMap* out_;
};

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

Result<Config> MakeConfig(const GgufFamily& family, const Gguf& gguf, const GgufSettings& settings,
                          std::vector<std::string>* warnings) {
  ConfigWriter config;
  config.Add("model_type", family.model_type);
  for (const KeyRule& rule : family.integers) {
    ADDER_ASSIGN_OR_RETURN(const int64_t value, settings.Int(rule.gguf, std::nullopt));
    config.Add(rule.hf, value);
  }
  ADDER_ASSIGN_OR_RETURN(const double eps, settings.NormEps());
  config.Add(family.norm_eps, eps);
  ADDER_RETURN_IF_ERROR(family.add(settings, &config, warnings));
  ADDER_RETURN_IF_ERROR(AddSpecialTokens(gguf.metadata, &config));
  config.Add("tie_word_embeddings", !settings.HasTensor("output.weight"));
  const auto embedding = gguf.tensors.find("token_embd.weight");
  if (embedding != gguf.tensors.end()) {
    config.Add("vocab_size", static_cast<int64_t>(embedding->second.shape.front()));
  }
  return config.Finish(settings.name());
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
  ADDER_ASSIGN_OR_RETURN(const GgufFamily* family, FindFamily(gguf));
  const GgufSettings settings(gguf, family->architecture);
  GgufCheckpoint out;
  ADDER_ASSIGN_OR_RETURN(out.config, MakeConfig(*family, gguf, settings, &out.warnings));
  ADDER_ASSIGN_OR_RETURN(out.tokenizer_section, CompileGgufTokenizer(gguf.metadata));
  if (gguf.metadata.Has("tokenizer.chat_template")) {
    ADDER_ASSIGN_OR_RETURN(const std::string_view text,
                           gguf.metadata.String("tokenizer.chat_template", std::nullopt));
    out.chat_template = std::string(text);
  }
  out.origin = Origin(gguf.tensors);
  TensorMapper mapper(*family, settings, &out.tensors);
  for (const auto& [tensor_name, tensor] : gguf.tensors) {
    ADDER_RETURN_IF_ERROR(mapper.Add(tensor_name, tensor));
  }
  return out;
}

}  // namespace adder
