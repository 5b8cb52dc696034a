// JSON for scripts: indented, always valid. Text that is not UTF-8 (a path, say) has the bad bytes
// replaced, numbers that JSON cannot express are null.
#pragma once

#include <cmath>
#include <concepts>
#include <string>
#include <string_view>

#include "runtime/rapidjson.h"
#include "runtime/utf8.h"

namespace adder::cli {

class JsonWriter {
 public:
  JsonWriter() {
    writer_.SetIndent(' ', 2);
    writer_.SetFormatOptions(rapidjson::kFormatSingleLineArray);
  }

  void BeginObject() { writer_.StartObject(); }
  void EndObject() { writer_.EndObject(); }
  void BeginArray() { writer_.StartArray(); }
  void EndArray() { writer_.EndArray(); }
  void Key(std::string_view key) { writer_.Key(key.data(), Length(key)); }

  void Value(std::string_view text) {
    std::string valid;
    AppendLossyUtf8(text, &valid);
    writer_.String(valid.data(), Length(valid));
  }
  void Value(const char* text) { Value(std::string_view(text)); }
  void Value(const std::string& text) { Value(std::string_view(text)); }
  void Value(bool value) { writer_.Bool(value); }
  template <std::integral Integer>
  void Value(Integer value) {
    if constexpr (std::signed_integral<Integer>) {
      writer_.Int64(value);
    } else {
      writer_.Uint64(value);
    }
  }
  void Value(double value) {
    if (std::isfinite(value)) {
      writer_.Double(value);
    } else {
      writer_.Null();
    }
  }

  void Null() { writer_.Null(); }
  void Copy(const rapidjson::Value& value) { value.Accept(writer_); }

  template <typename T>
  void Member(std::string_view key, const T& value) {
    Key(key);
    Value(value);
  }
  template <typename List>
  void ListMember(std::string_view key, const List& values) {
    Key(key);
    BeginArray();
    for (const auto& value : values) Value(value);
    EndArray();
  }

  std::string Text() const { return std::string(buffer_.GetString(), buffer_.GetSize()) + "\n"; }

 private:
  static rapidjson::SizeType Length(std::string_view text) {
    return static_cast<rapidjson::SizeType>(text.size());
  }

  rapidjson::StringBuffer buffer_;
  rapidjson::PrettyWriter<rapidjson::StringBuffer> writer_{buffer_};
};

}  // namespace adder::cli
