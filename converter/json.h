// JSON as checkpoints contain it, over RapidJSON: bare NaN and Infinity, {"__float__": "Infinity"}
// objects, a byte order mark; duplicate keys, comments and trailing commas are errors.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/status.h"

namespace adder {

// An immutable JSON value; copying shares the document. Object members keep their order.
class Json {
 public:
  enum class Type { kNull, kBool, kInt, kFloat, kString, kArray, kObject };

  Json() = default;  // null
  // `name` is what errors call the text ("config.json"). Nesting deeper than 64, more than 2^22
  // values, invalid UTF-8 and everything after the first value but white space are errors.
  static Result<Json> Parse(std::string_view text, const std::string& name);

  Type type() const { return type_; }
  bool is_null() const { return type() == Type::kNull; }
  bool is_string() const { return type() == Type::kString; }
  bool is_array() const { return type() == Type::kArray; }
  bool is_object() const { return type() == Type::kObject; }
  bool is_number() const { return type() == Type::kInt || type() == Type::kFloat; }

  // Of a value of another type: false, 0 or the empty string, array or object.
  bool AsBool() const { return type_ == Type::kBool && int_ != 0; }
  int64_t AsInt() const { return type_ == Type::kInt ? int_ : 0; }  // beyond int64: kFloat
  double AsDouble() const { return double_; }                       // of kInt and kFloat
  const std::string& AsString() const;
  const std::vector<Json>& items() const;                            // of kArray
  const std::vector<std::pair<std::string, Json>>& members() const;  // of kObject

  // Member `key` of an object, or nullptr. Linear in the number of members.
  const Json* Find(std::string_view key) const;

  // The value for a message: `12`, `"text"`, `true`, `an array of 3`.
  std::string Describe() const;

 private:
  friend class JsonBuilder;
  using Items = std::vector<Json>;
  using Members = std::vector<std::pair<std::string, Json>>;
  struct Payload;  // text, items or members

  Type type_ = Type::kNull;
  int64_t int_ = 0;  // of kInt and kBool
  double double_ = 0;
  std::shared_ptr<const Payload> payload_;  // of kString, kArray and kObject
};

// A model configuration, read by key with aliases; the first key present wins and a null value
// counts as absent. Every error names the file, the key, and the value found.
class Config {
 public:
  Config() = default;
  Config(Json root, std::string name) : root_(std::move(root)), name_(std::move(name)) {}

  const Json& root() const { return root_; }
  const std::string& name() const { return name_; }
  // Looks in the top level, then under "text_config".
  const Json* Find(std::initializer_list<std::string_view> keys) const;
  bool Has(std::initializer_list<std::string_view> keys) const { return Find(keys) != nullptr; }

  // Integers may be written as floats with no fraction (2.0).
  Result<int64_t> Int(std::initializer_list<std::string_view> keys,
                      std::optional<int64_t> fallback) const;
  // The string "auto" counts as absent here.
  Result<int64_t> IntOrAuto(std::initializer_list<std::string_view> keys, int64_t fallback) const;
  Result<double> Double(std::initializer_list<std::string_view> keys,
                        std::optional<double> fallback) const;
  Result<bool> Bool(std::initializer_list<std::string_view> keys, bool fallback) const;
  Result<std::string> String(std::initializer_list<std::string_view> keys,
                             std::optional<std::string> fallback) const;
  // An integer or a list of integers; absent or null gives an empty list.
  Result<std::vector<int64_t>> IntList(std::initializer_list<std::string_view> keys) const;
  // The object under `key` as a Config named "config.json: key"; an empty Config when absent.
  Result<Config> Object(std::string_view key) const;

 private:
  Json root_;
  std::string name_;
};

}  // namespace adder
