#include "converter/json.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <system_error>

#include "converter/text.h"
#include "runtime/rapidjson.h"

namespace adder {
namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxValues = size_t{1} << 22;

// {"__float__": "Infinity"} is how some writers spell what JSON cannot.
std::optional<double> SpecialFloat(std::string_view text) {
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  return std::nullopt;
}

// Of a number out of range: is it too small? RapidJSON has refused integer parts beyond double.
bool IsTiny(std::string_view text) {
  const size_t exponent = text.find_first_of("eE");
  return exponent == std::string_view::npos || text[exponent + 1] == '-';
}

// RapidJSON checks raw bytes, but turns the escape of a lone low surrogate into ED B0..BF xx, which
// is not UTF-8.
bool HasSurrogate(std::string_view text) {
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] == '\xed' && static_cast<unsigned char>(text[i + 1]) >= 0xa0) return true;
  }
  return false;
}

}  // namespace

struct Json::Payload {
  std::string text;
  Items items;
  Members members;
};

// The SAX handler. Finished values of every open container lie on one stack, so nesting costs no
// recursion; a false return stops the parser with `error` set.
class JsonBuilder {
 public:
  bool Null() { return Push(Json()); }
  bool Bool(bool value) { return Push(Scalar(Json::Type::kBool, value, 0)); }
  bool RawNumber(const char* text, rapidjson::SizeType length, bool) {
    const std::string_view view(text, length);
    if (const auto special = SpecialFloat(view)) return Double(*special);
    if (view.find_first_of("IN") != std::string_view::npos) {
      return Fail("a number that is not NaN, Infinity or -Infinity");
    }
    const char* const end = text + length;
    if (view.find_first_of(".eE") == std::string_view::npos) {
      int64_t value = 0;
      const auto [at, error] = std::from_chars(text, end, value);
      if (at == end && error == std::errc()) {
        return Push(Scalar(Json::Type::kInt, value, static_cast<double>(value)));
      }
    }
    double value = 0;
    const auto [at, error] = std::from_chars(text, end, value);
    if (error == std::errc::result_out_of_range && IsTiny(view)) return Double(0);
    if (at != end || error != std::errc()) return Fail("a number beyond double");
    return Double(value);
  }
  // Not called: numbers come raw.
  bool Int(int) { return Fail("number"); }
  bool Uint(unsigned) { return Fail("number"); }
  bool Int64(int64_t) { return Fail("number"); }
  bool Uint64(uint64_t) { return Fail("number"); }
  bool Double(double value) { return Push(Scalar(Json::Type::kFloat, 0, value)); }

  bool String(const char* text, rapidjson::SizeType length, bool) {
    std::string_view view(text, length);
    if (HasSurrogate(view)) return Fail("an escaped surrogate without its partner");
    return Push(Make(Json::Type::kString, {.text = std::string(view), .items = {}, .members = {}}));
  }
  bool Key(const char* text, rapidjson::SizeType length, bool) {
    keys_.emplace_back(text, length);
    return !HasSurrogate(keys_.back()) || Fail("an escaped surrogate without its partner");
  }
  bool StartObject() { return Open(); }
  bool StartArray() { return Open(); }
  bool EndArray(rapidjson::SizeType count) {
    --depth_;
    const auto first = values_.end() - static_cast<ptrdiff_t>(count);
    Json::Items items(std::make_move_iterator(first), std::make_move_iterator(values_.end()));
    values_.erase(first, values_.end());
    return Push(Make(Json::Type::kArray, {.text = {}, .items = std::move(items), .members = {}}));
  }
  bool EndObject(rapidjson::SizeType count) {
    --depth_;
    Json::Members members;
    members.reserve(count);
    const size_t first_key = keys_.size() - count, first_value = values_.size() - count;
    for (size_t i = 0; i < count; ++i) {
      members.emplace_back(std::move(keys_[first_key + i]), std::move(values_[first_value + i]));
    }
    keys_.resize(first_key);
    values_.resize(first_value);
    if (const std::string* twice = Duplicate(members)) {
      return Fail("the key \"" + Shown(*twice) + "\" is given twice in one object");
    }
    if (count == 1 && members[0].first == "__float__" && members[0].second.is_string()) {
      if (const auto value = SpecialFloat(members[0].second.AsString())) return Double(*value);
    }
    return Push(
        Make(Json::Type::kObject, {.text = {}, .items = {}, .members = std::move(members)}));
  }

  const std::string& error() const { return error_; }
  Json Take() { return std::move(values_.back()); }

 private:
  static Json Scalar(Json::Type type, int64_t integer, double number) {
    Json json;
    json.type_ = type;
    json.int_ = integer;
    json.double_ = number;
    return json;
  }
  static Json Make(Json::Type type, Json::Payload payload) {
    Json json;
    json.type_ = type;
    json.payload_ = std::make_shared<const Json::Payload>(std::move(payload));
    return json;
  }
  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }
  bool Push(Json value) {
    if (++count_ > kMaxValues) {
      return Fail("more than " + std::to_string(kMaxValues) + " values");
    }
    values_.push_back(std::move(value));
    return true;
  }
  bool Open() {
    return ++depth_ <= kMaxDepth ||
           Fail("nested deeper than " + std::to_string(kMaxDepth) + " levels");
  }
  static const std::string* Duplicate(const Json::Members& members) {
    std::vector<const std::string*> keys;
    keys.reserve(members.size());
    for (const auto& [key, value] : members) keys.push_back(&key);
    std::sort(keys.begin(), keys.end(), [](auto* a, auto* b) { return *a < *b; });
    const auto twice =
        std::adjacent_find(keys.begin(), keys.end(), [](auto* a, auto* b) { return *a == *b; });
    return twice == keys.end() ? nullptr : *twice;
  }

  std::vector<Json> values_;
  std::vector<std::string> keys_;  // of the open objects, outermost first
  size_t depth_ = 0;
  size_t count_ = 0;
  std::string error_;
};

Result<Json> Json::Parse(std::string_view text, const std::string& name) {
  static constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  const size_t start = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  const std::string_view body = text.substr(start);
  // Numbers come as text: RapidJSON 1.1's exact conversion reads beyond its table of powers for
  // long numbers (kParseFullPrecisionFlag), and its other one is inexact.
  constexpr unsigned kFlags =
      rapidjson::kParseIterativeFlag | rapidjson::kParseNumbersAsStringsFlag |
      rapidjson::kParseValidateEncodingFlag | rapidjson::kParseNanAndInfFlag;
  rapidjson::MemoryStream stream(body.data(), body.size());
  rapidjson::Reader reader;
  JsonBuilder builder;
  const rapidjson::ParseResult result = reader.Parse<kFlags>(stream, builder);
  if (result.IsError()) {
    const std::string reason =
        builder.error().empty() ? rapidjson::GetParseError_En(result.Code()) : builder.error();
    return Error(Code::kCorruptFile, "%s: not valid JSON at byte %zu: %s", name.c_str(),
                 start + result.Offset(), reason.c_str());
  }
  // RapidJSON takes a NUL for the end of the text.
  if (stream.Tell() != body.size()) {
    return Error(Code::kCorruptFile, "%s: not valid JSON at byte %zu: a NUL byte", name.c_str(),
                 start + stream.Tell());
  }
  return builder.Take();
}

const std::string& Json::AsString() const {
  static const std::string kEmpty;
  return payload_ == nullptr ? kEmpty : payload_->text;
}

const std::vector<Json>& Json::items() const {
  static const Items kEmpty;
  return payload_ == nullptr ? kEmpty : payload_->items;
}

const std::vector<std::pair<std::string, Json>>& Json::members() const {
  static const Members kEmpty;
  return payload_ == nullptr ? kEmpty : payload_->members;
}

const Json* Json::Find(std::string_view key) const {
  for (const auto& [name, value] : members()) {
    if (name == key) return &value;
  }
  return nullptr;
}

std::string Json::Describe() const {
  char number[32];
  switch (type()) {
    case Type::kNull:
      return "null";
    case Type::kBool:
      return AsBool() ? "true" : "false";
    case Type::kInt:
      return std::to_string(AsInt());
    case Type::kFloat:
      std::snprintf(number, sizeof(number), "%.17g", AsDouble());
      return number;
    case Type::kString:
      return "\"" + Shown(AsString()) + "\"";
    case Type::kArray:
      return "an array of " + std::to_string(items().size());
    case Type::kObject:
      return "an object of " + std::to_string(members().size());
  }
  return "";
}

}  // namespace adder
