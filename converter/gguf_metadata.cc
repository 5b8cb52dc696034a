// Typed access to the metadata of a GGUF file.
#include <bit>
#include <charconv>
#include <cinttypes>

#include "converter/gguf.h"
#include "converter/little_endian.h"
#include "converter/text.h"
#include "runtime/utf8.h"

namespace adder {
namespace {

const char* TypeName(GgufType type) {
  static constexpr const char* kNames[] = {"UINT8",  "INT8",    "UINT16", "INT16",  "UINT32",
                                           "INT32",  "FLOAT32", "BOOL",   "STRING", "ARRAY",
                                           "UINT64", "INT64",   "FLOAT64"};
  return kNames[static_cast<uint32_t>(type)];
}

// Element `i`; false for types that are no integers and for what int64 cannot hold.
bool LoadInt(const GgufValue& value, uint64_t i, int64_t* out) {
  const auto at = [&](size_t bytes) { return value.data + i * bytes; };
  switch (value.type) {
    case GgufType::kU8:
      *out = *at(1);
      return true;
    case GgufType::kI8:
      *out = static_cast<int8_t>(*at(1));
      return true;
    case GgufType::kU16:
      *out = LoadLittle<uint16_t>(at(2));
      return true;
    case GgufType::kI16:
      *out = static_cast<int16_t>(LoadLittle<uint16_t>(at(2)));
      return true;
    case GgufType::kU32:
      *out = LoadLittle<uint32_t>(at(4));
      return true;
    case GgufType::kI32:
      *out = static_cast<int32_t>(LoadLittle<uint32_t>(at(4)));
      return true;
    case GgufType::kU64:
    case GgufType::kI64:
      *out = static_cast<int64_t>(LoadLittle<uint64_t>(at(8)));
      return value.type == GgufType::kI64 || *out >= 0;
    default:
      return false;
  }
}

// Settings were decimal numbers before they became float32: the shortest one that becomes `value`.
double Decimal(float value) {
  char text[32];
  const auto printed = std::to_chars(text, text + sizeof(text), value);
  double decimal = static_cast<double>(value);
  std::from_chars(text, printed.ptr, decimal);
  return decimal;
}

// The string at `*data`, which is moved behind it.
std::string_view NextString(const uint8_t** data) {
  const auto length = static_cast<size_t>(LoadLittle<uint64_t>(*data));
  const std::string_view text(reinterpret_cast<const char*>(*data + 8), length);
  *data += 8 + length;
  return text;
}

}  // namespace

const GgufValue* GgufMetadata::Find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

Status GgufMetadata::WrongType(std::string_view key, const GgufValue& value,
                               const char* expected) const {
  return Error(Code::kCorruptFile, "%s: %s is %s%s, expected %s", name_.c_str(), Shown(key).c_str(),
               value.is_array ? "an array of " : "", TypeName(value.type), expected);
}

Result<const GgufValue*> GgufMetadata::Get(std::string_view key, bool optional) const {
  const GgufValue* value = Find(key);
  if (value == nullptr && !optional) {
    return Error(Code::kNotFound, "%s: no metadata %s", name_.c_str(), Shown(key).c_str());
  }
  return value;
}

Result<const GgufValue*> GgufMetadata::GetArray(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value != nullptr && !value->is_array) return WrongType(key, *value, "an array");
  return value;
}

Result<int64_t> GgufMetadata::Int(std::string_view key, std::optional<int64_t> fallback) const {
  ADDER_ASSIGN_OR_RETURN(const GgufValue* value, Get(key, fallback.has_value()));
  if (value == nullptr) return *fallback;
  int64_t number = 0;
  if (!value->is_array && LoadInt(*value, 0, &number)) return number;
  return WrongType(key, *value, "an integer below 2^63");
}

Result<double> GgufMetadata::Double(std::string_view key, std::optional<double> fallback) const {
  ADDER_ASSIGN_OR_RETURN(const GgufValue* value, Get(key, fallback.has_value()));
  if (value == nullptr) return *fallback;
  if (!value->is_array && value->type == GgufType::kF32) {
    return Decimal(std::bit_cast<float>(LoadLittle<uint32_t>(value->data)));
  }
  if (!value->is_array && value->type == GgufType::kF64) {
    return std::bit_cast<double>(LoadLittle<uint64_t>(value->data));
  }
  return WrongType(key, *value, "a floating-point number");
}

Result<bool> GgufMetadata::Bool(std::string_view key, std::optional<bool> fallback) const {
  ADDER_ASSIGN_OR_RETURN(const GgufValue* value, Get(key, fallback.has_value()));
  if (value == nullptr) return *fallback;
  if (value->is_array || value->type != GgufType::kBool) return WrongType(key, *value, "a BOOL");
  return value->data[0] != 0;
}

Result<std::string_view> GgufMetadata::String(std::string_view key,
                                              std::optional<std::string_view> fallback) const {
  ADDER_ASSIGN_OR_RETURN(const GgufValue* value, Get(key, fallback.has_value()));
  if (value == nullptr) return *fallback;
  if (value->is_array || value->type != GgufType::kString) {
    return WrongType(key, *value, "a STRING");
  }
  const uint8_t* data = value->data;
  const std::string_view text = NextString(&data);
  if (ValidUtf8Prefix(text) != text.size()) {
    return Error(Code::kCorruptFile, "%s: %s is not valid UTF-8 at byte %zu of %zu", name_.c_str(),
                 Shown(key).c_str(), ValidUtf8Prefix(text), text.size());
  }
  return text;
}

Result<std::vector<std::string_view>> GgufMetadata::Strings(std::string_view key) const {
  ADDER_ASSIGN_OR_RETURN(const GgufValue* value, GetArray(key));
  std::vector<std::string_view> out;
  if (value == nullptr) return out;
  if (value->type != GgufType::kString) return WrongType(key, *value, "an array of STRING");
  out.reserve(static_cast<size_t>(value->count));
  const uint8_t* data = value->data;
  for (uint64_t i = 0; i < value->count; ++i) {
    out.push_back(NextString(&data));
    if (ValidUtf8Prefix(out.back()) != out.back().size()) {
      return Error(Code::kCorruptFile, "%s: %s: element %" PRIu64 " is not valid UTF-8",
                   name_.c_str(), Shown(key).c_str(), i);
    }
  }
  return out;
}

Result<std::vector<int64_t>> GgufMetadata::Ints(std::string_view key) const {
  ADDER_ASSIGN_OR_RETURN(const GgufValue* value, GetArray(key));
  std::vector<int64_t> out;
  if (value == nullptr) return out;
  out.resize(static_cast<size_t>(value->count));
  for (size_t i = 0; i < out.size(); ++i) {
    if (!LoadInt(*value, i, &out[i])) return WrongType(key, *value, "an array of integers");
  }
  return out;
}

Result<std::vector<float>> GgufMetadata::Floats(std::string_view key) const {
  ADDER_ASSIGN_OR_RETURN(const GgufValue* value, GetArray(key));
  std::vector<float> out;
  if (value == nullptr) return out;
  if (value->type != GgufType::kF32) return WrongType(key, *value, "an array of FLOAT32");
  out.resize(static_cast<size_t>(value->count));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = std::bit_cast<float>(LoadLittle<uint32_t>(value->data + 4 * i));
  }
  return out;
}

}  // namespace adder
