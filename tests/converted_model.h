// Converts a checkpoint into a temporary model file and opens it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "converter/convert.h"
#include "runtime/model.h"
#include "tests/temp_dir.h"

namespace adder::test {

inline std::string GoldenFolder(const std::string& name) {
  return std::string(ADDER_SOURCE_DIR) + "/tests/golden/" + name;
}
inline std::string StoryFolder() {
  return std::string(ADDER_SOURCE_DIR) + "/examples/models/stories-11m";
}

inline std::vector<uint8_t> ReadFileBytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

struct ConvertedFile {
  TempDir folder;
  std::string path;
  std::unique_ptr<Model> model;
};

inline std::unique_ptr<ConvertedFile> ConvertedModel(const std::string& source, WeightType type,
                                                     const ModelOptions& options = {}) {
  auto out = std::make_unique<ConvertedFile>();
  out->path = out->folder / "model.adder";
  ConvertOptions convert_options;
  convert_options.type = type;
  const auto report = Convert(source, out->path, convert_options);
  EXPECT_TRUE(report.ok()) << report.status().message();
  auto model = Model::Open(out->path, options);
  EXPECT_TRUE(model.ok()) << model.status().message();
  if (model.ok()) out->model = std::move(*model);
  return out;
}

}  // namespace adder::test
