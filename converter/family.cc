// Which family a checkpoint belongs to (ARCHITECTURES.md section 2), and what all families share:
// tensor names around the layers, embedding, head, final norm.
#include <algorithm>
#include <cctype>
#include <cinttypes>
#include <cmath>
#include <cstring>

#include "converter/families.h"

namespace adder {
namespace {

using Mapping = Result<ModelHead> (*)(const Config&, const CheckpointNames&, PlanBuilder&);

struct FamilyMapping {
  Mapping map = nullptr;
  const Config* config = nullptr;
};

constexpr std::pair<const char*, Mapping> kHfFamilies[] = {
    {"mamba", PlanHfMamba1},       {"falcon_mamba", PlanFalconMamba},
    {"mamba2", PlanHfMamba2},      {"jamba", PlanJamba},
    {"bamba", PlanBamba},          {"granitemoehybrid", PlanGranite},
    {"nemotron_h", PlanNemotronH}, {"zamba2", PlanZamba2},
    {"falcon_h1", PlanFalconH1}};
constexpr std::pair<const char*, const char*> kArchitectures[] = {
    {"MambaForCausalLM", "mamba"},          {"FalconMambaForCausalLM", "falcon_mamba"},
    {"Mamba2ForCausalLM", "mamba2"},        {"JambaForCausalLM", "jamba"},
    {"BambaForCausalLM", "bamba"},          {"GraniteMoeHybridForCausalLM", "granitemoehybrid"},
    {"NemotronHForCausalLM", "nemotron_h"}, {"Zamba2ForCausalLM", "zamba2"},
    {"FalconH1ForCausalLM", "falcon_h1"}};
constexpr const char* kSupported =
    "mamba, falcon_mamba, mamba2, jamba, bamba, granitemoehybrid, nemotron_h, zamba2, falcon_h1, "
    "MambaInLlama and the original layouts of Mamba-1, Mamba-2 and Mamba-3";

Status UnsupportedFamily(const std::string& name) {
  return Error(Code::kUnsupported, "model family \"%s\" is not supported; this build converts %s",
               name.c_str(), kSupported);
}

bool ContainsFalcon(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text.find("falcon") != std::string::npos;
}

// model_type, or what the first architecture implies; empty when neither is there.
Result<std::string> HfModelType(const Config& config) {
  ADDER_ASSIGN_OR_RETURN(std::string type, config.String({"model_type"}, ""));
  if (type.empty()) {
    const Json* architectures = config.Find({"architectures"});
    if (architectures != nullptr && !architectures->items().empty() &&
        architectures->items()[0].is_string()) {
      const std::string& name = architectures->items()[0].AsString();
      for (const auto& [architecture, model_type] : kArchitectures) {
        if (name == architecture) type = model_type;
      }
      if (type.empty()) return UnsupportedFamily(name);
    }
  }
  // Copies of Falcon-Mamba exist that call themselves mamba; no tensor tells them apart.
  ADDER_ASSIGN_OR_RETURN(const std::string path, config.String({"_name_or_path"}, ""));
  if (type == "mamba" && ContainsFalcon(path)) type = "falcon_mamba";
  return type;
}

Result<FamilyMapping> OriginalFamily(const Config& config) {
  ADDER_ASSIGN_OR_RETURN(const Config ssm, config.Object("ssm_cfg"));
  ADDER_ASSIGN_OR_RETURN(const std::string layer, ssm.String({"layer"}, "Mamba1"));
  if (layer == "Mamba1") return FamilyMapping{PlanOriginalMamba1, &config};
  if (layer == "Mamba2") return FamilyMapping{PlanOriginalMamba2, &config};
  if (layer == "Mamba3") return FamilyMapping{PlanOriginalMamba3, &config};
  return UnsupportedFamily(layer);
}

Result<FamilyMapping> DetectFamily(const Checkpoint& checkpoint, const std::string& forced) {
  if (!forced.empty()) {
    for (const auto& [name, map] : kHfFamilies) {
      if (forced != name) continue;
      if (!checkpoint.config())
        return Status(Code::kNotFound, "config.json is missing beside the weights");
      return FamilyMapping{map, &*checkpoint.config()};
    }
    return UnsupportedFamily(forced);
  }
  if (checkpoint.mamba_config() && checkpoint.config())
    return FamilyMapping{PlanMambaInLlama, &*checkpoint.config()};
  if (checkpoint.config()) {
    const Config& config = *checkpoint.config();
    ADDER_ASSIGN_OR_RETURN(const std::string type, HfModelType(config));
    for (const auto& [name, map] : kHfFamilies) {
      if (type == name) return FamilyMapping{map, &config};
    }
    if (!type.empty()) return UnsupportedFamily(type);
    if (config.Has({"d_model"}) && config.Has({"n_layer"})) return OriginalFamily(config);
    return Error(Code::kUnsupported,
                 "%s has neither model_type, architectures, nor d_model with n_layer",
                 config.name().c_str());
  }
  if (checkpoint.params() && checkpoint.params()->Has({"dim"}) &&
      checkpoint.params()->Has({"n_layers"})) {
    return FamilyMapping{PlanCodestral, &*checkpoint.params()};
  }
  return Status(Code::kNotFound,
                "neither config.json nor params.json (dim, n_layers) lies beside the weights");
}

Result<CheckpointNames> FindNames(const Checkpoint& checkpoint) {
  const auto has = [&](const std::string& name) { return checkpoint.Find(name) != nullptr; };
  for (const char* outer : {"", "model.", "module.", "module.model."}) {
    for (const char* root : {"backbone.", ""}) {
      for (const char* embedding : {"embeddings", "embedding", "embed_tokens"}) {
        CheckpointNames names;
        names.root = std::string(outer) + root;
        names.embedding = names.root + embedding + ".weight";
        if (!has(names.embedding)) continue;
        for (const char* norm : {"norm_f", "final_layernorm", "norm"}) {
          const std::string name = names.root + norm + ".weight";
          if (names.final_norm.empty() || (has(name) && !has(names.final_norm)))
            names.final_norm = name;
        }
        const std::string model =
            names.root.substr(0, names.root.find_last_of('.', names.root.size() - 2) + 1);
        names.head = model + "lm_head.weight";
        if (!has(names.head)) names.head = "lm_head.weight";
        return names;
      }
    }
  }
  return Error(Code::kNotFound,
               "no embedding tensor: looked for backbone.embeddings.weight, embedding.weight and "
               "embed_tokens.weight, with and without backbone., model. and module.");
}

bool SameValues(const FloatView& a, const FloatView& b) {
  return a.values.size() == b.values.size() &&
         std::memcmp(a.values.data(), b.values.data(), a.values.size() * sizeof(float)) == 0;
}

// Whether the head is the embedding (ARCHITECTURES.md section 15.4).
Result<bool> HeadIsTied(const CheckpointNames& names, bool tied, PlanBuilder& b) {
  const SourceTensor* head = b.checkpoint().Find(names.head);
  if (head == nullptr) {
    if (tied) return true;
    return Error(Code::kNotFound,
                 "tensor %s is missing and the configuration does not tie it to the embedding",
                 names.head.c_str());
  }
  b.Use(names.head);
  if (!tied) return false;
  if (head->SameStorage(*b.checkpoint().Find(names.embedding))) return true;
  TensorLoader loader(b.checkpoint());
  ADDER_ASSIGN_OR_RETURN(const FloatView head_values, loader.Load(names.head));
  ADDER_ASSIGN_OR_RETURN(const FloatView embedding_values, loader.Load(names.embedding));
  if (SameValues(head_values, embedding_values)) return true;
  b.Warn(names.head +
         " differs from the embedding although the configuration ties them; it is kept as it is");
  return false;
}

Status PlanHead(const CheckpointNames& names, const ModelHead& head, uint32_t d_model,
                PlanBuilder& b) {
  ModelConfig& config = b.plan().config;
  const size_t rows = b.Dim(names.embedding, 2, 0);
  ADDER_RETURN_IF_ERROR(b.status());
  if (head.vocab_size < 1 || static_cast<uint64_t>(head.vocab_size) > rows) {
    return Error(Code::kCorruptFile, "vocab_size is %" PRId64 ", but %s has %zu rows",
                 head.vocab_size, names.embedding.c_str(), rows);
  }
  config.family = head.family;
  config.d_model = d_model;
  config.vocab_size = static_cast<uint32_t>(head.vocab_size);
  config.vocab_rows = static_cast<uint32_t>(rows);
  config.final_norm_eps = static_cast<float>(head.norm_eps);
  config.embedding_multiplier = static_cast<float>(head.embedding_multiplier);
  config.logits_multiplier = static_cast<float>(head.logits_multiplier);
  ADDER_ASSIGN_OR_RETURN(config.tied_head, HeadIsTied(names, head.tied, b));
  const Channels all_rows = Channels::Range(0, rows);
  const Channels all_cols = Channels::Range(0, d_model);
  b.MatrixWithoutBias("embedding", Role::kTable, names.embedding, rows, d_model, all_rows,
                      all_cols);
  if (!config.tied_head)
    b.Matrix("head", Role::kTable, names.head, rows, d_model, all_rows, all_cols);
  b.Array("final_norm", names.final_norm, d_model, all_cols);
  return b.status();
}

}  // namespace

Result<uint32_t> ModelWidth(const Config& config, const CheckpointNames& names,
                            PlanBuilder& builder) {
  const size_t width = builder.Dim(names.embedding, 2, 1);
  ADDER_RETURN_IF_ERROR(builder.status());
  ADDER_ASSIGN_OR_RETURN(const int64_t said, config.Int({"hidden_size", "d_model", "dim"},
                                                        static_cast<int64_t>(width)));
  if (said != static_cast<int64_t>(width)) {
    return Error(Code::kCorruptFile, "%s has %zu columns, %s says hidden_size %" PRId64,
                 names.embedding.c_str(), width, config.name().c_str(), said);
  }
  return static_cast<uint32_t>(width);
}

size_t LayersPresent(const CheckpointNames& names, const PlanBuilder& builder) {
  const TensorMap& tensors = builder.checkpoint().tensors();
  for (size_t layers = 0;; ++layers) {
    const std::string start = names.root + "layers." + std::to_string(layers) + ".";
    const auto it = tensors.lower_bound(start);
    if (it == tensors.end() || !it->first.starts_with(start)) return layers;
  }
}

Result<size_t> CountLayers(const Config& config, const CheckpointNames& names,
                           PlanBuilder& builder) {
  const size_t layers = LayersPresent(names, builder);
  const std::string prefix = names.root + "layers.";
  ADDER_ASSIGN_OR_RETURN(
      const int64_t said,
      config.Int({"num_hidden_layers", "n_layer", "n_layers"}, static_cast<int64_t>(layers)));
  if (said != static_cast<int64_t>(layers) || layers == 0) {
    return Error(Code::kCorruptFile, "the checkpoint has %zu layers under %s, %s says %" PRId64,
                 layers, prefix.c_str(), config.name().c_str(), said);
  }
  return layers;
}

Result<double> ReadEpsilon(const Config& config, const char* key, double fallback) {
  ADDER_ASSIGN_OR_RETURN(const double epsilon, config.Double({key}, fallback));
  if (epsilon >= 1e-30 && epsilon <= 1) return epsilon;
  return Error(Code::kCorruptFile, "%s: %s is %g, expected 1e-30 to 1", config.name().c_str(), key,
               epsilon);
}

Result<double> ReadMultiplier(const Config& config, const char* key) {
  ADDER_ASSIGN_OR_RETURN(const double value, config.Double({key}, 1.0));
  if (std::isfinite(value)) return value;
  return Error(Code::kCorruptFile, "%s: %s is %g, expected a finite number", config.name().c_str(),
               key, value);
}

Result<ModelHead> ReadHybridHead(const Config& config, const char* family, double norm_eps) {
  ModelHead head;
  head.family = family;
  head.norm_eps = norm_eps;
  ADDER_ASSIGN_OR_RETURN(head.vocab_size, config.Int({"vocab_size"}, std::nullopt));
  ADDER_ASSIGN_OR_RETURN(head.tied, config.Bool({"tie_word_embeddings", "tie_embeddings"}, false));
  return head;
}

Status CheckActivation(const Config& config) {
  ADDER_ASSIGN_OR_RETURN(const std::string act, config.String({"hidden_act"}, "silu"));
  if (act == "silu" || act == "swish") return {};
  return Error(Code::kUnsupported, "%s: hidden_act is \"%s\", only silu is supported",
               config.name().c_str(), act.c_str());
}

void CheckBiasFlag(const Config& config, std::string_view key, bool fallback, bool present,
                   PlanBuilder& builder) {
  const Result<bool> said = config.Bool({key}, fallback);
  if (!said.ok()) return builder.Fail(said.status());
  if (*said == present) return;
  builder.Warn(config.name() + ": " + std::string(key) + " is " + (*said ? "true" : "false") +
               ", but the bias is " + (present ? "there" : "not there") + "; the tensors decide");
}

Result<ModelPlan> PlanModel(const Checkpoint& checkpoint, const std::string& family) {
  ModelPlan plan;
  plan.warnings = checkpoint.warnings();
  PlanBuilder builder(checkpoint, &plan);
  ADDER_ASSIGN_OR_RETURN(const FamilyMapping mapping, DetectFamily(checkpoint, family));
  ADDER_ASSIGN_OR_RETURN(const CheckpointNames names, FindNames(checkpoint));
  ADDER_ASSIGN_OR_RETURN(const uint32_t d_model, ModelWidth(*mapping.config, names, builder));
  ADDER_ASSIGN_OR_RETURN(const ModelHead head, mapping.map(*mapping.config, names, builder));
  ADDER_RETURN_IF_ERROR(PlanHead(names, head, d_model, builder));
  if (const size_t skipped = builder.UseAll("mtp."); skipped > 0) {
    plan.warnings.push_back(std::to_string(skipped) +
                            " tensors for predicting several tokens at once (mtp.) are left out");
  }
  for (const std::string& name : builder.Unused()) {
    if (name.starts_with(names.root + "layers.")) {
      return Error(Code::kUnsupported, "tensor %s belongs to no %s layer that this build knows",
                   name.c_str(), head.family.c_str());
    }
    plan.warnings.push_back("tensor " + name + " was not used");
  }
  return plan;
}

}  // namespace adder
