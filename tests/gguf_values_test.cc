// Tensors as llama.cpp's quantizer wrote them, against an independent implementation of its
// formats.
#include <gtest/gtest.h>

#include <algorithm>

#include "converter/gguf.h"
#include "tests/golden_file.h"

namespace adder::test {
namespace {

constexpr char kOwn[] = ADDER_SOURCE_DIR "/tests/peer-gguf/";
constexpr char kShared[] = ADDER_SHARED_DIR "/peer-gguf/";
constexpr size_t kEnd = 512;  // reference values at each end of a large tensor

// Reads every tensor of `path` whole, and compares the elements that `reference` has.
void ExpectReferenceValues(const std::string& path, const std::string& reference,
                           std::vector<SourceType> expected_types) {
  const auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const auto gguf = ParseGguf(file->bytes(), path);
  ASSERT_TRUE(gguf.ok()) << gguf.status().message();
  for (const auto& [name, tensor] : gguf->tensors) {
    SCOPED_TRACE(name);
    std::erase(expected_types, tensor.type);
    const auto values = ReadF32(tensor, name);
    ASSERT_TRUE(values.ok()) << values.status().message();
    std::vector<float> ends = *values;
    if (ends.size() > 2 * kEnd) {
      ends.erase(ends.begin() + kEnd, ends.end() - kEnd);
    }
    const std::vector<float> expected = GoldenFloats(reference, name);
    ASSERT_EQ(ends.size(), expected.size());
    for (size_t i = 0; i < ends.size(); ++i) {
      ASSERT_EQ(ends[i], expected[i]) << SourceTypeName(tensor.type) << " element " << i;
    }
  }
  EXPECT_TRUE(expected_types.empty()) << SourceTypeName(expected_types.front()) << " is missing";
}

struct PeerFile {
  const char* name;
  const char* own;  // its file under tests/peer-gguf
  std::vector<SourceType> types;
};

const PeerFile kPeerFiles[] = {
    {"mamba-F16", "mamba-F16.gguf", {SourceType::kF32, SourceType::kF16}},
    {"mamba-Q8_0", "mamba-Q8_0.excerpt.gguf", {SourceType::kQ8_0}},
    {"mamba-Q4_0", "mamba-Q4_0.excerpt.gguf", {SourceType::kQ4_0, SourceType::kQ6_K}},
    {"mamba-Q4_1", "mamba-Q4_1.excerpt.gguf", {SourceType::kQ4_1}},
    {"mamba-Q5_0", "mamba-Q5_0.excerpt.gguf", {SourceType::kQ5_0}},
    {"mamba-Q5_1", "mamba-Q5_1.excerpt.gguf", {SourceType::kQ5_1}},
    {"mamba-Q4_K_M", "mamba-Q4_K_M.excerpt.gguf", {SourceType::kQ4_K, SourceType::kQ6_K}},
    {"mamba-Q5_K_M", "mamba-Q5_K_M.excerpt.gguf", {SourceType::kQ5_K}},
    {"mamba-Q6_K", "mamba-Q6_K.excerpt.gguf", {SourceType::kQ6_K}},
    {"mamba2-F16", "mamba2-F16.gguf", {SourceType::kF32, SourceType::kF16}},
    {"mamba2-Q4_K_M", "mamba2-Q4_K_M.gguf", {SourceType::kQ4_K, SourceType::kQ6_K}},
};

class GgufValues : public testing::TestWithParam<PeerFile> {};
INSTANTIATE_TEST_SUITE_P(Peer, GgufValues, testing::ValuesIn(kPeerFiles), [](const auto& test) {
  std::string name = test.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST_P(GgufValues, EqualTheReference) {
  const std::string folder = kOwn;
  ExpectReferenceValues(folder + GetParam().own,
                        folder + GetParam().name + ".dequantized.safetensors", GetParam().types);
}

// The whole files, of which the repository keeps excerpts.
TEST_P(GgufValues, OfTheWholeFileEqualTheReference) {
  const std::string path = std::string(kShared) + GetParam().name;
  if (!MappedFile::Open(path + ".gguf").ok()) GTEST_SKIP() << path << ".gguf is not there";
  ExpectReferenceValues(path + ".gguf", path + ".dequantized.safetensors", GetParam().types);
}

}  // namespace
}  // namespace adder::test
