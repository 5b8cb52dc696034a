// Typed members of the objects in tokenizer.json. `where` is what errors call the object.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/rapidjson.h"
#include "runtime/status.h"

namespace adder {

using JsonValue = rapidjson::Value;

inline std::string_view JsonText(const JsonValue& value) {
  return {value.GetString(), value.GetStringLength()};
}

// A value as errors show it: its type, or a short scalar.
std::string Describe(const JsonValue& value);

// `value` as an object, or an error that names `where`.
Status ExpectObject(const JsonValue& value, const std::string& where);

// Member `key`; nullptr when absent or null. A key given twice is kCorruptFile.
Result<const JsonValue*> FindMember(const JsonValue& object, std::string_view key,
                                    const std::string& where);

// Required members.
Result<std::string_view> StringMember(const JsonValue& object, std::string_view key,
                                      const std::string& where);
Result<const JsonValue*> ArrayMember(const JsonValue& object, std::string_view key,
                                     const std::string& where);
Result<const JsonValue*> ObjectMember(const JsonValue& object, std::string_view key,
                                      const std::string& where);
Result<uint32_t> IntMember(const JsonValue& object, std::string_view key, const std::string& where);

// Optional members; null counts as absent.
Result<bool> BoolMember(const JsonValue& object, std::string_view key, bool fallback,
                        const std::string& where);
Result<std::string_view> StringMemberOr(const JsonValue& object, std::string_view key,
                                        std::string_view fallback, const std::string& where);

}  // namespace adder
