// The JSON of the metadata section: checked reading of members, and writing. For model_config.cc
// and layer_config.cc.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "runtime/model_config.h"
#include "runtime/rapidjson.h"
#include "runtime/status.h"

namespace adder {

using JsonValue = rapidjson::Value;
using MetadataOutput = rapidjson::Writer<rapidjson::StringBuffer>;

// Reads members of one JSON object and keeps the first error.
class MetadataReader {
 public:
  MetadataReader(const JsonValue& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  const JsonValue* Find(const char* key, bool required = true) {
    const auto it = object_.FindMember(key);
    if (it != object_.MemberEnd()) return &it->value;
    if (required) Fail(key, "is missing");
    return nullptr;
  }

  void Uint(const char* key, uint32_t min, uint64_t max, uint32_t* out) {
    const JsonValue* value = Find(key);
    if (value == nullptr) return;
    if (!value->IsUint() || value->GetUint() < min || value->GetUint() > max) {
      Fail(key, "is not an integer of " + std::to_string(min) + " to " + std::to_string(max));
    } else {
      *out = value->GetUint();
    }
  }

  void Float(const char* key, double min, float* out, bool required = true) {
    const JsonValue* value = Find(key, required);
    if (value == nullptr) return;
    const double number = value->IsNumber() ? value->GetDouble() : std::nan("");
    if (!(number >= min) || !std::isfinite(static_cast<float>(number))) {
      Fail(key, "is not a finite number >= " + std::to_string(min));
    } else {
      *out = static_cast<float>(number);
    }
  }

  void Bool(const char* key, bool* out, bool required = true) {
    const JsonValue* value = Find(key, required);
    if (value == nullptr) return;
    if (!value->IsBool()) return Fail(key, "is not true or false");
    *out = value->GetBool();
  }

  void String(const char* key, std::string* out, bool required = true) {
    const JsonValue* value = Find(key, required);
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
  // One of the names of `values`.
  template <typename Enum, size_t kCount>
  void Name(const char* key, const std::pair<Enum, const char*> (&values)[kCount], Enum* out) {
    std::string name;
    String(key, &name);
    for (const auto& [value, text] : values) {
      if (name == text) {
        *out = value;
        return;
      }
    }
    Fail(key, "has the unknown value \"" + name + "\"");
  }
  // Keeps an error that was found elsewhere.
  void Take(const Status& status) {
    if (status_.ok()) status_ = status;
  }
  const std::string& where() const { return where_; }
  const Status& status() const { return status_; }

 private:
  const JsonValue& object_;
  std::string where_;
  Status status_;
};

class MetadataWriter {
 public:
  explicit MetadataWriter(MetadataOutput& out) : out_(out) {}

  void Uint(const char* key, uint32_t value) {
    out_.Key(key);
    out_.Uint(value);
  }
  void Bool(const char* key, bool value) {
    out_.Key(key);
    out_.Bool(value);
  }
  void String(const char* key, const std::string& value) {
    out_.Key(key);
    out_.String(value.c_str(), static_cast<rapidjson::SizeType>(value.size()));
  }
  // As the shortest decimal that reads back as the same float.
  void Float(const char* key, float value) {
    char text[32];
    int length = 0;
    for (int digits = 6; digits <= 9; ++digits) {
      length = std::snprintf(text, sizeof(text), "%.*g", digits, static_cast<double>(value));
      if (std::strtof(text, nullptr) == value) break;
    }
    out_.Key(key);
    out_.RawValue(text, static_cast<size_t>(length), rapidjson::kNumberType);
  }
  template <typename Enum, size_t kCount>
  void Name(const char* key, const std::pair<Enum, const char*> (&values)[kCount], Enum value) {
    for (const auto& [known, name] : values) {
      if (known == value) String(key, name);
    }
  }
  MetadataOutput& out() { return out_; }

 private:
  MetadataOutput& out_;
};

// Layers of the plan (layer_config.cc).
Result<LayerConfig> ReadLayer(const JsonValue& value, size_t index);
void WriteLayer(const LayerConfig& layer, MetadataWriter& out);

}  // namespace adder
