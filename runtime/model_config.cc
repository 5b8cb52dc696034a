#include "runtime/model_config.h"

#include <cinttypes>
#include <cmath>

#include "quant/qtypes.h"
#include "runtime/kernels.h"
#include "runtime/rapidjson.h"

namespace adder {
namespace {

using Value = rapidjson::Value;

constexpr uint32_t kMaxLayers = 1024;

// Reads members of one JSON object and keeps the first error.
class Reader {
 public:
  Reader(const Value& object, std::string where) : object_(object), where_(std::move(where)) {}

  const Value* Find(const char* key, bool required = true) {
    const auto it = object_.FindMember(key);
    if (it != object_.MemberEnd()) return &it->value;
    if (required) Fail(key, "is missing");
    return nullptr;
  }

  void Uint(const char* key, uint32_t min, uint64_t max, uint32_t* out) {
    const Value* value = Find(key);
    if (value == nullptr) return;
    if (!value->IsUint() || value->GetUint() < min || value->GetUint() > max) {
      Fail(key, "is not an integer of " + std::to_string(min) + " to " + std::to_string(max));
    } else {
      *out = value->GetUint();
    }
  }

  void Float(const char* key, double min, float* out, bool required = true) {
    const Value* value = Find(key, required);
    if (value == nullptr) return;
    const double number = value->IsNumber() ? value->GetDouble() : std::nan("");
    if (!(number >= min) || !std::isfinite(static_cast<float>(number))) {
      Fail(key, "is not a finite number >= " + std::to_string(min));
    } else {
      *out = static_cast<float>(number);
    }
  }

  void Bool(const char* key, bool* out) {
    const Value* value = Find(key);
    if (value == nullptr) return;
    if (!value->IsBool()) return Fail(key, "is not true or false");
    *out = value->GetBool();
  }

  void String(const char* key, std::string* out, bool required = true) {
    const Value* value = Find(key, required);
    if (value == nullptr) return;
    if (!value->IsString()) return Fail(key, "is not a string");
    out->assign(value->GetString(), value->GetStringLength());
  }

  void Fail(const std::string& key, const std::string& what) {
    if (status_.ok()) {
      status_ = Error(Code::kCorruptFile, "model metadata: %s%s %s", where_.c_str(), key.c_str(),
                      what.c_str());
    }
  }
  void Set(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  const Status& status() const { return status_; }

 private:
  const Value& object_;
  std::string where_;
  Status status_;
};

constexpr std::pair<Gating, const char*> kGatings[] = {{Gating::kGateThenNorm, "gate_then_norm"},
                                                       {Gating::kNormThenGate, "norm_then_gate"},
                                                       {Gating::kGateOnly, "gate_only"}};

Mamba1Config ReadMamba1(Reader& in) {
  Mamba1Config c;
  in.Uint("d_inner", 1, kMaxDim, &c.d_inner);
  in.Uint("d_state", 1, 1u << 16, &c.d_state);
  in.Uint("d_conv", 1, kMaxConv, &c.d_conv);
  in.Uint("dt_rank", 1, kMaxDim, &c.dt_rank);
  in.Float("bcdt_norm_eps", 0, &c.bcdt_norm_eps, /*required=*/false);
  return c;
}

Mamba2Config ReadMamba2(Reader& in) {
  Mamba2Config c;
  in.Uint("n_heads", 1, 1u << 16, &c.n_heads);
  in.Uint("head_dim", 1, 1u << 12, &c.head_dim);
  in.Uint("n_groups", 1, 1u << 16, &c.n_groups);
  in.Uint("d_state", 1, 1u << 16, &c.d_state);
  in.Uint("d_conv", 1, kMaxConv, &c.d_conv);
  in.Float("dt_min", 0, &c.dt_min, /*required=*/false);
  in.Float("dt_max", 0, &c.dt_max, /*required=*/false);
  if (!(c.dt_min <= c.dt_max)) in.Fail("dt_min", "is more than dt_max");
  std::string gating;
  in.String("gating", &gating);
  bool known = false;
  for (const auto& [value, name] : kGatings) {
    if (gating == name) {
      c.gating = value;
      known = true;
    }
  }
  if (!known) in.Fail("gating", "has the unknown value " + gating);
  in.Uint("norm_groups", 1, 1u << 16, &c.norm_groups);
  in.Float("gated_norm_eps", 0, &c.gated_norm_eps);
  if (in.status().ok() && (c.n_heads % c.n_groups != 0 || c.n_heads % c.norm_groups != 0)) {
    in.Fail("n_heads", "is " + std::to_string(c.n_heads) + ", no multiple of n_groups " +
                           std::to_string(c.n_groups) + " and norm_groups " +
                           std::to_string(c.norm_groups));
  }
  if (in.status().ok() && uint64_t{c.n_groups} * c.d_state > (1u << 20)) {
    in.Fail("n_groups", "times d_state is over 2^20");
  }
  return c;
}

Result<LayerConfig> ReadLayer(const Value& value, size_t index) {
  const std::string where = "layers[" + std::to_string(index) + "].";
  if (!value.IsObject())
    return Error(Code::kCorruptFile, "model metadata: %s is no object", where.c_str());
  Reader in(value, where);
  LayerConfig layer;
  std::string kind;
  in.String("block", &kind);
  in.Float("norm_eps", 0, &layer.norm_eps);
  if (!in.status().ok()) return in.status();
  if (kind == "mamba1") {
    layer.mixer = ReadMamba1(in);
  } else if (kind == "mamba2") {
    layer.mixer = ReadMamba2(in);
  } else {
    return Error(Code::kUnsupported,
                 "model metadata: %sblock is \"%s\", this build runs mamba1 and mamba2",
                 where.c_str(), kind.c_str());
  }
  if (!in.status().ok()) return in.status();
  return layer;
}

void ReadTokens(Reader& in, ModelConfig* config) {
  const auto valid = [&](const Value& v) { return v.IsInt() && v.GetInt() >= 0; };
  if (const Value* bos = in.Find("bos", false); bos != nullptr) {
    if (!valid(*bos)) return in.Fail("bos", "is no token id");
    config->bos = bos->GetInt();
  }
  const Value* eos = in.Find("eos");
  if (eos == nullptr) return;
  if (!eos->IsArray()) return in.Fail("eos", "is no list");
  for (const Value& id : eos->GetArray()) {
    if (!valid(id)) return in.Fail("eos", "contains something that is no token id");
    config->eos.push_back(id.GetInt());
  }
}

void ReadProvenance(Reader& in, ModelConfig* config) {
  const Value* facts = in.Find("provenance");
  if (facts == nullptr) return;
  if (!facts->IsObject()) return in.Fail("provenance", "is no object");
  for (const auto& [key, value] : facts->GetObject()) {
    if (!value.IsString()) return in.Fail("provenance", "has a value that is no string");
    config->provenance.emplace_back(key.GetString(), value.GetString());
  }
}

// The shortest decimal that reads back as the same float.
void WriteFloat(rapidjson::Writer<rapidjson::StringBuffer>& out, const char* key, float value) {
  char text[32];
  int length = 0;
  for (int digits = 6; digits <= 9; ++digits) {
    length = std::snprintf(text, sizeof(text), "%.*g", digits, static_cast<double>(value));
    if (std::strtof(text, nullptr) == value) break;
  }
  out.Key(key);
  out.RawValue(text, static_cast<size_t>(length), rapidjson::kNumberType);
}

struct LayerWriter {
  rapidjson::Writer<rapidjson::StringBuffer>& out;

  void Uint(const char* key, uint32_t value) {
    out.Key(key);
    out.Uint(value);
  }
  void operator()(const Mamba1Config& c) {
    Uint("d_inner", c.d_inner);
    Uint("d_state", c.d_state);
    Uint("d_conv", c.d_conv);
    Uint("dt_rank", c.dt_rank);
    if (c.bcdt_norm_eps > 0) WriteFloat(out, "bcdt_norm_eps", c.bcdt_norm_eps);
  }
  void operator()(const Mamba2Config& c) {
    Uint("n_heads", c.n_heads);
    Uint("head_dim", c.head_dim);
    Uint("n_groups", c.n_groups);
    Uint("d_state", c.d_state);
    Uint("d_conv", c.d_conv);
    if (c.dt_min > 0) WriteFloat(out, "dt_min", c.dt_min);
    if (std::isfinite(c.dt_max)) WriteFloat(out, "dt_max", c.dt_max);
    out.Key("gating");
    for (const auto& [value, name] : kGatings) {
      if (value == c.gating) out.String(name);
    }
    Uint("norm_groups", c.norm_groups);
    WriteFloat(out, "gated_norm_eps", c.gated_norm_eps);
  }
};

}  // namespace

const char* BlockKindName(const LayerConfig& layer) {
  static constexpr const char* kNames[] = {"mamba1", "mamba2"};
  return kNames[layer.mixer.index()];
}

Result<ModelConfig> ModelConfig::FromJson(std::string_view json) {
  rapidjson::Document document;
  document.Parse<rapidjson::kParseIterativeFlag | rapidjson::kParseValidateEncodingFlag>(
      json.data(), json.size());
  if (document.HasParseError() || !document.IsObject()) {
    return Error(Code::kCorruptFile, "model metadata: no JSON object (error at byte %zu)",
                 document.GetErrorOffset());
  }
  ModelConfig config;
  Reader in(document, "");
  in.String("family", &config.family);
  in.String("type", &config.type);
  in.Uint("d_model", 1, kMaxDim, &config.d_model);
  in.Uint("vocab_size", 1, kMaxDim, &config.vocab_size);
  in.Uint("vocab_rows", 1, kMaxDim, &config.vocab_rows);
  in.Bool("tied_head", &config.tied_head);
  in.Float("final_norm_eps", 0, &config.final_norm_eps);
  ReadTokens(in, &config);
  in.String("chat_template", &config.chat_template, /*required=*/false);
  if (in.status().ok() && config.vocab_size > config.vocab_rows) {
    in.Fail("vocab_size", "is " + std::to_string(config.vocab_size) + ", more than vocab_rows " +
                              std::to_string(config.vocab_rows));
  }
  if (const Value* layers = in.Find("layers"); layers != nullptr) {
    if (!layers->IsArray() || layers->Empty() || layers->Size() > kMaxLayers) {
      in.Fail("layers", "is not a list of 1 to " + std::to_string(kMaxLayers) + " layers");
    } else {
      for (const Value& value : layers->GetArray()) {
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
  rapidjson::Writer<rapidjson::StringBuffer> out(buffer);
  const auto string = [&](const char* key, const std::string& value) {
    out.Key(key);
    out.String(value.c_str(), static_cast<rapidjson::SizeType>(value.size()));
  };
  out.StartObject();
  string("family", family);
  string("type", type);
  LayerWriter layer_writer{out};
  layer_writer.Uint("d_model", d_model);
  layer_writer.Uint("vocab_size", vocab_size);
  layer_writer.Uint("vocab_rows", vocab_rows);
  out.Key("tied_head");
  out.Bool(tied_head);
  WriteFloat(out, "final_norm_eps", final_norm_eps);
  if (bos >= 0) layer_writer.Uint("bos", static_cast<uint32_t>(bos));
  out.Key("eos");
  out.StartArray();
  for (const int32_t id : eos) out.Int(id);
  out.EndArray();
  if (!chat_template.empty()) string("chat_template", chat_template);
  out.Key("layers");
  out.StartArray();
  for (const LayerConfig& layer : layers) {
    out.StartObject();
    string("block", BlockKindName(layer));
    WriteFloat(out, "norm_eps", layer.norm_eps);
    std::visit(layer_writer, layer.mixer);
    out.EndObject();
  }
  out.EndArray();
  out.Key("provenance");
  out.StartObject();
  for (const auto& [key, value] : provenance) string(key.c_str(), value);
  out.EndObject();
  out.EndObject();
  return buffer.GetString();
}

}  // namespace adder
