// GGUF files for tests, valid or not: header, metadata and tensors as they are told.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "converter/gguf.h"

namespace adder::test {

class GgufWriter {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;  // of the data; the metadata says nothing of it by itself

  template <typename T>
  static std::string Raw(T value) {
    std::string bytes(sizeof(T), '\0');
    std::memcpy(bytes.data(), &value, sizeof(T));
    return bytes;
  }
  static std::string Text(std::string_view text) { return Raw<uint64_t>(text.size()).append(text); }
  static std::string Type(GgufType type) { return Raw(static_cast<uint32_t>(type)); }

  // `value` are the bytes of a value of this type.
  GgufWriter& Value(std::string_view key, GgufType type, std::string_view value) {
    metadata_.append(Text(key)).append(Type(type)).append(value);
    ++values_;
    return *this;
  }
  GgufWriter& Add(std::string_view key, std::string_view text) {
    return Value(key, GgufType::kString, Text(text));
  }
  GgufWriter& Add(std::string_view key, const char* text) {
    return Add(key, std::string_view(text));
  }
  GgufWriter& Add(std::string_view key, uint32_t number) {
    return Value(key, GgufType::kU32, Raw(number));
  }
  GgufWriter& Add(std::string_view key, float number) {
    return Value(key, GgufType::kF32, Raw(number));
  }
  GgufWriter& Add(std::string_view key, bool flag) {
    return Value(key, GgufType::kBool, Raw(static_cast<uint8_t>(flag)));
  }
  GgufWriter& Add(std::string_view key, const std::vector<std::string>& texts) {
    std::string bytes;
    for (const std::string& text : texts) bytes += Text(text);
    return Array(key, GgufType::kString, texts.size(), bytes);
  }
  template <typename T>
  GgufWriter& Numbers(std::string_view key, GgufType type, const std::vector<T>& numbers) {
    std::string bytes;
    for (const T number : numbers) bytes += Raw(number);
    return Array(key, type, numbers.size(), bytes);
  }
  GgufWriter& Array(std::string_view key, GgufType type, uint64_t count, std::string_view bytes) {
    return Value(key, GgufType::kArray, Type(type).append(Raw(count)).append(bytes));
  }

  // `shape` as the format has it: what lies together comes first.
  GgufWriter& Tensor(std::string_view name, const std::vector<uint64_t>& shape, uint32_t type,
                     uint64_t offset) {
    tensors_.append(Text(name)).append(Raw(static_cast<uint32_t>(shape.size())));
    for (const uint64_t size : shape) tensors_ += Raw(size);
    tensors_.append(Raw(type)).append(Raw(offset));
    ++n_tensors_;
    return *this;
  }
  // The same with its data, behind what is there.
  GgufWriter& Tensor(std::string_view name, const std::vector<uint64_t>& shape, uint32_t type,
                     const std::vector<uint8_t>& data) {
    Pad(&data_);
    Tensor(name, shape, type, data_.size());
    data_.append(data.begin(), data.end());
    return *this;
  }
  GgufWriter& Data(std::string_view bytes) {
    data_.append(bytes);
    return *this;
  }

  std::vector<uint8_t> File() const { return File(n_tensors_, values_); }
  // With a header that says so.
  std::vector<uint8_t> File(uint64_t tensors, uint64_t values) const {
    std::string file = "GGUF" + Raw(version) + Raw(tensors) + Raw(values) + metadata_ + tensors_;
    if (n_tensors_ > 0) Pad(&file);
    file += data_;
    return {file.begin(), file.end()};
  }

 private:
  void Pad(std::string* bytes) const {
    bytes->resize((bytes->size() + alignment - 1) / alignment * alignment, '\0');
  }

  std::string metadata_, tensors_, data_;
  uint64_t values_ = 0, n_tensors_ = 0;
};

}  // namespace adder::test
