// Tensors of a golden.safetensors, for tests.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "converter/safetensors.h"
#include "runtime/mapped_file.h"

namespace adder::test {

// All elements of tensor `name`, row-major.
inline std::vector<float> GoldenFloats(const std::string& path, const std::string& name) {
  const auto file = MappedFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status().message();
  if (!file.ok()) return {};
  std::vector<std::string> warnings;
  const auto tensors = ParseSafetensors(file->bytes(), path, &warnings);
  EXPECT_TRUE(tensors.ok()) << tensors.status().message();
  if (!tensors.ok()) return {};
  const auto it = tensors->find(name);
  EXPECT_NE(it, tensors->end()) << path << " has no " << name;
  if (it == tensors->end()) return {};
  auto values = ReadF32(it->second, name);
  EXPECT_TRUE(values.ok()) << values.status().message();
  return values.ok() ? std::move(*values) : std::vector<float>();
}

inline std::vector<int32_t> GoldenIds(const std::string& path, const std::string& name) {
  std::vector<int32_t> ids;
  for (const float id : GoldenFloats(path, name)) ids.push_back(static_cast<int32_t>(id));
  return ids;
}

}  // namespace adder::test
