#include "runtime/model_config.h"

#include <cinttypes>

#include "quant/qtypes.h"
#include "runtime/metadata_json.h"

namespace adder {
namespace {

constexpr uint32_t kMaxLayers = 1024;

void ReadTokens(MetadataReader& in, ModelConfig* config) {
  const auto valid = [&](const JsonValue& v) { return v.IsInt() && v.GetInt() >= 0; };
  if (const JsonValue* bos = in.Find("bos", false); bos != nullptr) {
    if (!valid(*bos)) return in.Fail("bos", "is no token id");
    config->bos = bos->GetInt();
  }
  const JsonValue* eos = in.Find("eos");
  if (eos == nullptr) return;
  if (!eos->IsArray()) return in.Fail("eos", "is no list");
  for (const JsonValue& id : eos->GetArray()) {
    if (!valid(id)) return in.Fail("eos", "contains something that is no token id");
    config->eos.push_back(id.GetInt());
  }
}

void ReadProvenance(MetadataReader& in, ModelConfig* config) {
  const JsonValue* facts = in.Find("provenance");
  if (facts == nullptr) return;
  if (!facts->IsObject()) return in.Fail("provenance", "is no object");
  for (const auto& [key, value] : facts->GetObject()) {
    if (!value.IsString()) return in.Fail("provenance", "has a value that is no string");
    config->provenance.emplace_back(key.GetString(), value.GetString());
  }
}

}  // namespace

Result<ModelConfig> ModelConfig::FromJson(std::string_view json) {
  rapidjson::Document document;
  document.Parse<rapidjson::kParseIterativeFlag | rapidjson::kParseValidateEncodingFlag>(
      json.data(), json.size());
  if (document.HasParseError() || !document.IsObject()) {
    return Error(Code::kCorruptFile, "model metadata: no JSON object (error at byte %zu)",
                 document.GetErrorOffset());
  }
  ModelConfig config;
  MetadataReader in(document, "");
  in.String("family", &config.family);
  in.String("type", &config.type);
  in.Uint("d_model", 1, kMaxDim, &config.d_model);
  in.Uint("vocab_size", 1, kMaxDim, &config.vocab_size);
  in.Uint("vocab_rows", 1, kMaxDim, &config.vocab_rows);
  in.Bool("tied_head", &config.tied_head);
  in.Float("final_norm_eps", 0, &config.final_norm_eps);
  in.Float("embedding_multiplier", 0, &config.embedding_multiplier, /*required=*/false);
  in.Float("logits_multiplier", 0, &config.logits_multiplier, /*required=*/false);
  ReadTokens(in, &config);
  in.String("chat_template", &config.chat_template, /*required=*/false);
  if (in.status().ok() && config.vocab_size > config.vocab_rows) {
    in.Fail("vocab_size", "is " + std::to_string(config.vocab_size) + ", more than vocab_rows " +
                              std::to_string(config.vocab_rows));
  }
  if (const JsonValue* layers = in.Find("layers"); layers != nullptr) {
    if (!layers->IsArray() || layers->Empty() || layers->Size() > kMaxLayers) {
      in.Fail("layers", "is not a list of 1 to " + std::to_string(kMaxLayers) + " layers");
    } else {
      for (const JsonValue& value : layers->GetArray()) {
        ADDER_ASSIGN_OR_RETURN(config.layers.emplace_back(),
                               ReadLayer(value, config.layers.size()));
      }
    }
  }
  ReadProvenance(in, &config);
  if (!in.status().ok()) return in.status();
  return config;
}

std::string ModelConfig::ToJson() const {
  rapidjson::StringBuffer buffer;
  MetadataOutput json(buffer);
  MetadataWriter out(json);
  json.StartObject();
  out.String("family", family);
  out.String("type", type);
  out.Uint("d_model", d_model);
  out.Uint("vocab_size", vocab_size);
  out.Uint("vocab_rows", vocab_rows);
  out.Bool("tied_head", tied_head);
  out.Float("final_norm_eps", final_norm_eps);
  if (embedding_multiplier != 1) out.Float("embedding_multiplier", embedding_multiplier);
  if (logits_multiplier != 1) out.Float("logits_multiplier", logits_multiplier);
  if (bos >= 0) out.Uint("bos", static_cast<uint32_t>(bos));
  json.Key("eos");
  json.StartArray();
  for (const int32_t id : eos) json.Int(id);
  json.EndArray();
  if (!chat_template.empty()) out.String("chat_template", chat_template);
  json.Key("layers");
  json.StartArray();
  for (const LayerConfig& layer : layers) WriteLayer(layer, out);
  json.EndArray();
  json.Key("provenance");
  json.StartObject();
  for (const auto& [key, value] : provenance) out.String(key.c_str(), value);
  json.EndObject();
  json.EndObject();
  return buffer.GetString();
}

}  // namespace adder
