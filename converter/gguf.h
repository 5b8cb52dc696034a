// The GGUF container, versions 2 and 3, little-endian: metadata by key, the list of tensors, the
// data.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "converter/checkpoint.h"
#include "runtime/status.h"

namespace adder {

// Numbers are those of the format.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12
};

// A value or an array of values, left where it lies in the file.
struct GgufValue {
  GgufType type;                  // of the value, or of every element; never kArray
  bool is_array = false;          // arrays of arrays are refused
  uint64_t count = 1;             // of elements
  const uint8_t* data = nullptr;  // checked to hold `count` of them
};

// Values by key. A key that is absent gives the fallback, or kNotFound where there is none; another
// type than asked for is kCorruptFile. Errors name the file, the key and what was found.
class GgufMetadata {
 public:
  GgufMetadata() = default;
  GgufMetadata(std::string name, std::map<std::string, GgufValue, std::less<>> values)
      : name_(std::move(name)), values_(std::move(values)) {}

  const std::string& name() const { return name_; }  // of the file
  const GgufValue* Find(std::string_view key) const;
  bool Has(std::string_view key) const { return Find(key) != nullptr; }

  Result<int64_t> Int(std::string_view key, std::optional<int64_t> fallback) const;
  // Of a float32 the shortest decimal number that is rounded to it, as it was before.
  Result<double> Double(std::string_view key, std::optional<double> fallback) const;
  Result<bool> Bool(std::string_view key, std::optional<bool> fallback) const;
  // Valid UTF-8.
  Result<std::string_view> String(std::string_view key,
                                  std::optional<std::string_view> fallback) const;
  // Arrays; absent: empty. Strings are valid UTF-8.
  Result<std::vector<std::string_view>> Strings(std::string_view key) const;
  Result<std::vector<int64_t>> Ints(std::string_view key) const;
  Result<std::vector<float>> Floats(std::string_view key) const;

 private:
  Status WrongType(std::string_view key, const GgufValue& value, const char* expected) const;
  // The value under `key`: nullptr when it is absent and has a fallback.
  Result<const GgufValue*> Get(std::string_view key, bool optional) const;
  Result<const GgufValue*> GetArray(std::string_view key) const;

  std::string name_;
  std::map<std::string, GgufValue, std::less<>> values_;
};

struct Gguf {
  GgufMetadata metadata;
  TensorMap tensors;  // shapes row-major: the last dimension is the one that lies together
};

// The whole file in memory; `name` is for messages. Everything is checked to lie inside `bytes`
// before it is used, and nothing is allocated for a size that the file only claims.
Result<Gguf> ParseGguf(std::span<const uint8_t> bytes, const std::string& name);

}  // namespace adder
