// Safetensors files for tests: tensors by name to the bytes of a file.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace adder::test {

struct RawTensor {
  std::string dtype;  // "F32", "BF16" ...
  std::vector<uint64_t> shape;
  std::vector<uint8_t> bytes;
};

// Tests run on little-endian hosts.
template <typename T>
std::vector<uint8_t> BytesOf(const std::vector<T>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

inline RawTensor FloatTensor(std::vector<uint64_t> shape, const std::vector<float>& values) {
  return {"F32", std::move(shape), BytesOf(values)};
}

// The length, `header` as it is, `data` as it is.
inline std::vector<uint8_t> SafetensorsFile(std::string_view header,
                                            const std::vector<uint8_t>& data) {
  std::vector<uint8_t> file = BytesOf(std::vector<uint64_t>{header.size()});
  file.insert(file.end(), header.begin(), header.end());
  file.insert(file.end(), data.begin(), data.end());
  return file;
}

// A valid file. Names must not need JSON escapes.
inline std::vector<uint8_t> SafetensorsFile(const std::map<std::string, RawTensor>& tensors) {
  std::string header = "{\"__metadata__\":{\"format\":\"pt\"}";
  std::vector<uint8_t> data;
  for (const auto& [name, tensor] : tensors) {
    std::string shape;
    for (const uint64_t size : tensor.shape) {
      shape += (shape.empty() ? "" : ",") + std::to_string(size);
    }
    const size_t begin = data.size();
    data.insert(data.end(), tensor.bytes.begin(), tensor.bytes.end());
    header += ",\"" + name + "\":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[" + shape +
              "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(data.size()) +
              "]}";
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return SafetensorsFile(header, data);
}

}  // namespace adder::test
