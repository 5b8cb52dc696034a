// The list of a hybrid's layers (ARCHITECTURES.md section 2).
#include "converter/layers.h"
#include "converter/text.h"

namespace adder {
namespace {

constexpr std::pair<const char*, LayerType> kNames[] = {{"mamba", LayerType::kSsm},
                                                        {"mamba2", LayerType::kSsm},
                                                        {"linear_attention", LayerType::kSsm},
                                                        {"M", LayerType::kSsm},
                                                        {"m", LayerType::kSsm},
                                                        {"attention", LayerType::kAttention},
                                                        {"full_attention", LayerType::kAttention},
                                                        {"*", LayerType::kAttention},
                                                        {"mlp", LayerType::kMlp},
                                                        {"-", LayerType::kMlp},
                                                        {"moe", LayerType::kMoe},
                                                        {"E", LayerType::kMoe},
                                                        {"hybrid", LayerType::kHybrid},
                                                        {"g", LayerType::kHybrid}};

std::optional<LayerType> TypeNamed(const std::string& name) {
  for (const auto& [known, type] : kNames) {
    if (name == known) return type;
  }
  return std::nullopt;
}

std::string AllNames() {
  std::string names;
  for (const auto& [name, type] : kNames) names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

}  // namespace

Result<std::vector<LayerType>> ReadLayerTypes(const Config& config, Keys keys) {
  std::vector<LayerType> types;
  for (const std::string_view key : keys) {
    const Json* list = config.Find({key});
    if (list == nullptr) continue;
    std::vector<std::string> entries;
    for (const Json& item : list->items()) entries.push_back(item.AsString());
    for (const char letter : list->AsString()) entries.emplace_back(1, letter);
    for (const std::string& entry : entries) {
      const std::optional<LayerType> type = TypeNamed(entry);
      if (!type) {
        return Error(Code::kUnsupported, "%s: %s[%zu] is \"%s\", expected one of %s",
                     config.name().c_str(), std::string(key).c_str(), types.size(),
                     Shown(entry).c_str(), AllNames().c_str());
      }
      types.push_back(*type);
    }
    if (types.empty()) {
      return Error(Code::kCorruptFile, "%s: %s is %s, expected a list of layers",
                   config.name().c_str(), std::string(key).c_str(), list->Describe().c_str());
    }
    break;
  }
  return types;
}

Result<std::vector<LayerType>> ResolveLayerTypes(const Config& config, Keys keys,
                                                 const std::vector<LayerType>& implied, bool said) {
  ADDER_ASSIGN_OR_RETURN(std::vector<LayerType> types, ReadLayerTypes(config, keys));
  if (types.empty()) return implied;
  if (types.size() != implied.size()) {
    return Error(Code::kCorruptFile, "%s lists %zu layers, the checkpoint has %zu",
                 config.name().c_str(), types.size(), implied.size());
  }
  for (size_t i = 0; said && i < types.size(); ++i) {
    if (types[i] != implied[i]) {
      return Error(Code::kCorruptFile,
                   "%s: the list of layers and its other keys differ in layer %zu",
                   config.name().c_str(), i);
    }
  }
  return types;
}

Status WrongLayerType(const Config& config, const char* family, size_t layer) {
  return Error(Code::kUnsupported, "%s: layer %zu is of a type that %s models do not have",
               config.name().c_str(), layer, family);
}

}  // namespace adder
