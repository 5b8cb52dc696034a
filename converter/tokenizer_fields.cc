#include "converter/tokenizer_fields.h"

namespace adder {
namespace {

Status WrongType(const JsonValue* found, std::string_view key, const char* expected,
                 const std::string& where) {
  return Error(Code::kCorruptFile, "%s: \"%.*s\" is %s, expected %s", where.c_str(),
               static_cast<int>(key.size()), key.data(),
               found == nullptr ? "missing" : Describe(*found).c_str(), expected);
}

}  // namespace

std::string Describe(const JsonValue& value) {
  switch (value.GetType()) {
    case rapidjson::kNullType:
      return "null";
    case rapidjson::kFalseType:
      return "false";
    case rapidjson::kTrueType:
      return "true";
    case rapidjson::kObjectType:
      return "an object";
    case rapidjson::kArrayType:
      return "an array";
    case rapidjson::kStringType:
      return std::string("\"").append(JsonText(value).substr(0, 100)).append("\"");
    case rapidjson::kNumberType:
      break;
  }
  return value.IsInt64() ? std::to_string(value.GetInt64()) : std::to_string(value.GetDouble());
}

Status ExpectObject(const JsonValue& value, const std::string& where) {
  if (value.IsObject()) return {};
  return Error(Code::kCorruptFile, "%s: %s, expected an object", where.c_str(),
               Describe(value).c_str());
}

Result<const JsonValue*> FindMember(const JsonValue& object, std::string_view key,
                                    const std::string& where) {
  const JsonValue* found = nullptr;
  for (const auto& member : object.GetObject()) {
    if (JsonText(member.name) != key) continue;
    if (found != nullptr) {
      return Error(Code::kCorruptFile, "%s: \"%.*s\" is given twice", where.c_str(),
                   static_cast<int>(key.size()), key.data());
    }
    found = &member.value;
  }
  return found != nullptr && found->IsNull() ? nullptr : found;
}

Result<std::string_view> StringMember(const JsonValue& object, std::string_view key,
                                      const std::string& where) {
  ADDER_ASSIGN_OR_RETURN(const JsonValue* value, FindMember(object, key, where));
  if (value == nullptr || !value->IsString()) return WrongType(value, key, "a string", where);
  return JsonText(*value);
}

Result<const JsonValue*> ArrayMember(const JsonValue& object, std::string_view key,
                                     const std::string& where) {
  ADDER_ASSIGN_OR_RETURN(const JsonValue* value, FindMember(object, key, where));
  if (value == nullptr || !value->IsArray()) return WrongType(value, key, "an array", where);
  return value;
}

Result<const JsonValue*> ObjectMember(const JsonValue& object, std::string_view key,
                                      const std::string& where) {
  ADDER_ASSIGN_OR_RETURN(const JsonValue* value, FindMember(object, key, where));
  if (value == nullptr || !value->IsObject()) return WrongType(value, key, "an object", where);
  return value;
}

Result<uint32_t> IntMember(const JsonValue& object, std::string_view key,
                           const std::string& where) {
  ADDER_ASSIGN_OR_RETURN(const JsonValue* value, FindMember(object, key, where));
  if (value == nullptr || !value->IsUint()) {
    return WrongType(value, key, "an integer from 0 to 4294967295", where);
  }
  return value->GetUint();
}

Result<bool> BoolMember(const JsonValue& object, std::string_view key, bool fallback,
                        const std::string& where) {
  ADDER_ASSIGN_OR_RETURN(const JsonValue* value, FindMember(object, key, where));
  if (value == nullptr) return fallback;
  if (!value->IsBool()) return WrongType(value, key, "true or false", where);
  return value->GetBool();
}

Result<std::string_view> StringMemberOr(const JsonValue& object, std::string_view key,
                                        std::string_view fallback, const std::string& where) {
  ADDER_ASSIGN_OR_RETURN(const JsonValue* value, FindMember(object, key, where));
  if (value == nullptr) return fallback;
  if (!value->IsString()) return WrongType(value, key, "a string", where);
  return JsonText(*value);
}

}  // namespace adder
