// Settings of a GGUF file, and the config.json that is made of them.
#include "converter/gguf_family.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>

namespace adder {

void ConfigWriter::Add(const char* key, const std::vector<int64_t>& values) {
  Key(key).StartArray();
  for (const int64_t value : values) json_.Int64(value);
  json_.EndArray();
}

void ConfigWriter::Add(const char* key, const std::vector<const char*>& values) {
  Key(key).StartArray();
  for (const char* value : values) json_.String(value);
  json_.EndArray();
}

Result<Config> ConfigWriter::Finish(const std::string& name) {
  json_.EndObject();
  ADDER_ASSIGN_OR_RETURN(Json root, Json::Parse({buffer_.GetString(), buffer_.GetSize()}, name));
  return Config(std::move(root), name);
}

Result<double> GgufSettings::Number(std::string_view key, std::optional<double> fallback) const {
  ADDER_ASSIGN_OR_RETURN(const double value, gguf_.metadata.Double(Key(key), fallback));
  if (std::isfinite(value)) return value;
  return Error(Code::kCorruptFile, "%s: %s is %g, expected a finite number", name().c_str(),
               Key(key).c_str(), value);
}

Result<double> GgufSettings::NormEps() const {
  constexpr std::string_view kKey = "attention.layer_norm_rms_epsilon";
  ADDER_ASSIGN_OR_RETURN(const double eps, gguf_.metadata.Double(Key(kKey), std::nullopt));
  if (eps > 0 && eps <= 1) return eps;
  return Error(Code::kCorruptFile, "%s: %s is %g, expected up to 1", name().c_str(),
               Key(kKey).c_str(), eps);
}

Result<size_t> GgufSettings::Blocks() const {
  ADDER_ASSIGN_OR_RETURN(const int64_t blocks, Int("block_count", std::nullopt));
  if (blocks >= 1 && static_cast<uint64_t>(blocks) <= gguf_.tensors.size()) {
    return static_cast<size_t>(blocks);
  }
  return Error(Code::kCorruptFile, "%s: %s is %" PRId64 ", the file has %zu tensors",
               name().c_str(), Key("block_count").c_str(), blocks, gguf_.tensors.size());
}

Result<size_t> GgufSettings::Layers() const {
  ADDER_ASSIGN_OR_RETURN(const size_t blocks, Blocks());
  ADDER_ASSIGN_OR_RETURN(const int64_t further, Int("nextn_predict_layers", 0));
  if (further >= 0 && static_cast<uint64_t>(further) < blocks) {
    return blocks - static_cast<size_t>(further);
  }
  return Error(Code::kCorruptFile, "%s: %s is %" PRId64 ", there are %zu blocks (block_count)",
               name().c_str(), Key("nextn_predict_layers").c_str(), further, blocks);
}

Result<std::vector<int64_t>> GgufSettings::PerBlock(std::string_view key,
                                                    std::optional<int64_t> fallback) const {
  ADDER_ASSIGN_OR_RETURN(const size_t blocks, Blocks());
  const std::string full = Key(key);
  const GgufValue* value = gguf_.metadata.Find(full);
  std::vector<int64_t> values;
  if (value != nullptr && value->is_array) {
    ADDER_ASSIGN_OR_RETURN(values, gguf_.metadata.Ints(full));
    if (values.size() != blocks) {
      return Error(Code::kCorruptFile, "%s: %s has %zu elements for %zu blocks (block_count)",
                   name().c_str(), full.c_str(), values.size(), blocks);
    }
  } else {
    ADDER_ASSIGN_OR_RETURN(const int64_t all, gguf_.metadata.Int(full, fallback));
    values.assign(blocks, all);
  }
  const auto negative = std::find_if(values.begin(), values.end(), [](int64_t v) { return v < 0; });
  if (negative == values.end()) return values;
  return Error(Code::kCorruptFile, "%s: %s is %" PRId64 " in block %zu, expected 0 or more",
               name().c_str(), full.c_str(), *negative,
               static_cast<size_t>(negative - values.begin()));
}

bool GgufSettings::HasTensors(std::string_view rest) const {
  const std::string end = "." + std::string(rest);
  return std::any_of(gguf_.tensors.begin(), gguf_.tensors.end(), [&](const auto& tensor) {
    return tensor.first.starts_with("blk.") && tensor.first.ends_with(end);
  });
}

}  // namespace adder
