// Tokenizers of the tests: where they lie, and how they become a Tokenizer.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "converter/tokenizer_fields.h"  // RapidJSON
#include "converter/tokenizer_json.h"
#include "runtime/tokenizer.h"

namespace adder {

// Empty when there is no such file.
inline std::string ReadTextFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Output of `xz -dc path`; empty when that fails.
inline std::string ReadXzFile(const std::string& path) {
  if (!std::ifstream(path)) return {};
  FILE* const pipe = popen(("xz -dc '" + path + "' 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return {};
  std::string text;
  std::vector<char> buffer(1 << 16);
  while (const size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) {
    text.append(buffer.data(), n);
  }
  return pclose(pipe) == 0 ? text : std::string();
}

struct TokenizerCase {
  const char* name;
  bool shared;  // outside the repository, compressed
};

inline constexpr TokenizerCase kTokenizerCases[] = {
    {"small-gpt2", false},  {"small-falcon", false}, {"small-granite", false},
    {"gpt-neox-20b", true}, {"llama3", true},        {"mistral-v3-codestral", true}};

inline std::string TokenizerDirectory(const TokenizerCase& c) {
  return c.shared ? ADDER_SHARED_DIR "/tokenizers/" : ADDER_SOURCE_DIR "/tests/data/tokenizers/";
}

// The JSON text; empty when it is not there.
inline std::string TokenizerJson(const TokenizerCase& c) {
  const std::string path = TokenizerDirectory(c) + c.name + ".json";
  return c.shared ? ReadXzFile(path + ".xz") : ReadTextFile(path);
}

// A tokenizer with the section that it borrows.
struct OwnedTokenizer {
  std::vector<uint8_t> section;
  std::unique_ptr<Tokenizer> tokenizer;
  const Tokenizer* operator->() const { return tokenizer.get(); }
};

// Reports a failure, and leaves `tokenizer` null, when the JSON does not compile.
inline OwnedTokenizer MakeTokenizer(const std::string& json) {
  OwnedTokenizer owned;
  Result<std::vector<uint8_t>> section = CompileTokenizer(json);
  if (!section.ok()) {
    ADD_FAILURE() << section.status().message();
    return owned;
  }
  owned.section = std::move(*section);
  Result<Tokenizer> parsed = Tokenizer::Parse(owned.section);
  if (!parsed.ok()) {
    ADD_FAILURE() << parsed.status().message();
    return owned;
  }
  owned.tokenizer = std::make_unique<Tokenizer>(std::move(*parsed));
  return owned;
}

}  // namespace adder
