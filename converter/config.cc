// Config of converter/json.h: typed reads of configuration files.
#include <cmath>

#include "converter/json.h"

namespace adder {
namespace {

using Keys = std::initializer_list<std::string_view>;

struct Found {
  std::string_view key;
  const Json* value = nullptr;
};

const Json* FindSet(const Json& object, std::string_view key) {
  const Json* value = object.Find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

Found Search(const Json& root, Keys keys) {
  for (const std::string_view key : keys) {
    if (const Json* value = FindSet(root, key)) return {key, value};
  }
  const Json* nested = root.Find("text_config");
  if (nested == nullptr) return {};
  for (const std::string_view key : keys) {
    if (const Json* value = FindSet(*nested, key)) return {key, value};
  }
  return {};
}

Status Missing(const std::string& file, Keys keys) {
  std::string names;
  for (const std::string_view key : keys) {
    if (!names.empty()) names += " or ";
    names += key;
  }
  return Error(Code::kCorruptFile, "%s: %s is missing", file.c_str(), names.c_str());
}

Status Wrong(const std::string& file, std::string_view key, const Json& value,
             const char* expected) {
  return Error(Code::kCorruptFile, "%s: %s is %s, expected %s", file.c_str(),
               std::string(key).c_str(), value.Describe().c_str(), expected);
}

// Integers may be written as floats; -2^63 <= x < 2^63 keeps the conversion defined.
std::optional<int64_t> Integer(const Json& value) {
  if (value.type() == Json::Type::kInt) return value.AsInt();
  const double x = value.AsDouble();
  if (value.type() != Json::Type::kFloat || !(x >= -0x1p63 && x < 0x1p63) || std::trunc(x) != x) {
    return std::nullopt;
  }
  return static_cast<int64_t>(x);
}

}  // namespace

const Json* Config::Find(Keys keys) const { return Search(root_, keys).value; }

Result<int64_t> Config::Int(Keys keys, std::optional<int64_t> fallback) const {
  const auto [key, value] = Search(root_, keys);
  if (value == nullptr) return fallback ? Result<int64_t>(*fallback) : Missing(name_, keys);
  const auto integer = Integer(*value);
  return integer ? Result<int64_t>(*integer) : Wrong(name_, key, *value, "an integer");
}

Result<int64_t> Config::IntOrAuto(Keys keys, int64_t fallback) const {
  const auto [key, value] = Search(root_, keys);
  if (value == nullptr || value->AsString() == "auto") return fallback;
  const auto integer = Integer(*value);
  return integer ? Result<int64_t>(*integer) : Wrong(name_, key, *value, "an integer or \"auto\"");
}

Result<double> Config::Double(Keys keys, std::optional<double> fallback) const {
  const auto [key, value] = Search(root_, keys);
  if (value == nullptr) return fallback ? Result<double>(*fallback) : Missing(name_, keys);
  return value->is_number() ? Result<double>(value->AsDouble())
                            : Wrong(name_, key, *value, "a number");
}

Result<bool> Config::Bool(Keys keys, bool fallback) const {
  const auto [key, value] = Search(root_, keys);
  if (value == nullptr) return fallback;
  return value->type() == Json::Type::kBool ? Result<bool>(value->AsBool())
                                            : Wrong(name_, key, *value, "true or false");
}

Result<std::string> Config::String(Keys keys, std::optional<std::string> fallback) const {
  const auto [key, value] = Search(root_, keys);
  if (value == nullptr) {
    return fallback ? Result<std::string>(std::move(*fallback)) : Missing(name_, keys);
  }
  return value->is_string() ? Result<std::string>(value->AsString())
                            : Wrong(name_, key, *value, "a string");
}

Result<std::vector<int64_t>> Config::IntList(Keys keys) const {
  static constexpr char kExpected[] = "an integer or a list of integers";
  const auto [key, value] = Search(root_, keys);
  std::vector<int64_t> list;
  if (value == nullptr) return list;
  if (!value->is_array()) {
    const auto integer = Integer(*value);
    if (!integer) return Wrong(name_, key, *value, kExpected);
    list.push_back(*integer);
    return list;
  }
  for (const Json& item : value->items()) {
    const auto integer = Integer(item);
    if (!integer) {
      return Wrong(name_, std::string(key) + "[" + std::to_string(list.size()) + "]", item,
                   "an integer");
    }
    list.push_back(*integer);
  }
  return list;
}

Result<Config> Config::Object(std::string_view key) const {
  const std::string name = name_ + ": " + std::string(key);
  const Json* value = Find({key});
  if (value == nullptr) return Config(Json(), name);
  if (!value->is_object()) return Wrong(name_, key, *value, "an object");
  return Config(*value, name);
}

}  // namespace adder
