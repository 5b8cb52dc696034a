// Damaged tokenizer sections: refused, or usable without reading outside them (run under ASan).
#include "runtime/tokenizer_section.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "converter/tokenizer_json.h"
#include "runtime/tokenizer.h"
#include "tests/tokenizer_test_data.h"

namespace adder {
namespace {

// Every kind of table is in use: steps, added tokens of both kinds, merges, affixes, strings.
constexpr char kJson[] = R"({
  "added_tokens": [
    {"id": 9, "content": "<s>", "normalized": false, "special": true, "lstrip": true},
    {"id": 10, "content": "<t>", "normalized": false, "single_word": true},
    {"id": 11, "content": "a1", "normalized": true, "rstrip": true}],
  "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"},
    {"type": "Replace", "pattern": {"Regex": "x+"}, "content": "b"}]},
  "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "Digits", "individual_digits": false},
    {"type": "Split", "pattern": {"Regex": "\\s+(?!\\S)|\\p{L}+"}, "behavior": "MergedWithNext"},
    {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": true}]},
  "post_processor": {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
    "special_tokens": {"<s>": {"ids": [9]}}},
  "decoder": {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
    {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
  "model": {"type": "BPE", "unk_token": "c", "byte_fallback": true, "ignore_merges": true,
    "vocab": {"a": 0, "b": 1, "c": 2, "\u2581": 3, "ab": 4, "abc": 5, "\u2581a": 6, "<0xC3>": 7,
              "<0xA9>": 8},
    "merges": ["a b", "ab c", "\u2581 a"]}})";

std::vector<uint8_t> Section() {
  const auto section = CompileTokenizer(kJson);
  EXPECT_TRUE(section.ok()) << section.status().message();
  return section.ok() ? *section : std::vector<uint8_t>();
}

// Whether the section parses; then everything is tried. The bytes lie in a block of exactly their
// size, so that ASan sees the first byte read outside.
bool Exercise(const std::vector<uint8_t>& bytes) {
  const std::unique_ptr<uint8_t[]> exact(new uint8_t[bytes.size()]);
  if (!bytes.empty()) std::memcpy(exact.get(), bytes.data(), bytes.size());
  const auto tokenizer = Tokenizer::Parse({exact.get(), bytes.size()});
  if (!tokenizer.ok()) {
    EXPECT_FALSE(tokenizer.status().message().empty());
    return false;
  }
  for (const bool parse_special : {false, true}) {
    const auto ids = tokenizer->Encode("abc a1 \xC3\xA9 <s> <t>\n xxab 12", {true, parse_special});
    if (!ids.ok()) continue;
    for (const int32_t id : *ids) EXPECT_TRUE(id >= 0 && id < tokenizer->size());
    const auto text = tokenizer->Decode(*ids);  // an id without a piece is an error
    EXPECT_TRUE(text.ok() || text.status().code() == Code::kInvalidArgument);
  }
  std::string out;
  for (int32_t id = 0; id < tokenizer->size() && id < 64; ++id) {
    (void)tokenizer->AppendPiece(id, true, false, &out).ok();
    EXPECT_LT(tokenizer->FindPiece(tokenizer->PieceText(id)), tokenizer->size());
  }
  return true;
}

TEST(TokenizerSection, TheWholeOneWorks) {
  const std::vector<uint8_t> section = Section();
  ASSERT_TRUE(Exercise(section));
  const auto tokenizer = Tokenizer::Parse(section);
  EXPECT_EQ(*tokenizer->Encode("abc"), (std::vector<int32_t>{9, 3, 5}));
}

TEST(TokenizerSection, EveryTruncationIsRefused) {
  std::vector<uint8_t> section = Section();
  std::vector<uint8_t> longer = section;
  longer.push_back(0);
  EXPECT_FALSE(Exercise(longer));
  while (!section.empty()) {
    section.pop_back();
    EXPECT_FALSE(Exercise(section)) << section.size();
  }
}

TEST(TokenizerSection, FlippedBytes) {
  const std::vector<uint8_t> section = Section();
  int refused = 0;
  int accepted = 0;
  for (size_t at = 0; at < section.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xFF}) {
      std::vector<uint8_t> damaged = section;
      damaged[at] = static_cast<uint8_t>(section[at] ^ flip);
      ++(Exercise(damaged) ? accepted : refused);
    }
  }
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    std::vector<uint8_t> damaged = section;
    for (int i = 0; i < 3; ++i) damaged[random() % section.size()] = static_cast<uint8_t>(random());
    ++(Exercise(damaged) ? accepted : refused);
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(accepted, 100);
}

struct Damage {
  const char* name;
  size_t word;  // of the header
  uint32_t value;
  Code code;
};

TEST(TokenizerSection, HeaderFields) {
  const Damage rows[] = {
      {"magic", 0, 1, Code::kCorruptFile},
      {"version", 1, 2, Code::kUnsupported},
      {"flags", 2, 8, Code::kCorruptFile},
      {"no pieces", 3, 0, Code::kCorruptFile},
      {"too many pieces", 3, kMaxPieces + 1, Code::kCorruptFile},
      {"all pieces", 3, 0xFFFFFFFF, Code::kCorruptFile},
      {"sorted beyond the pieces", 4, 13, Code::kCorruptFile},
      {"too many merges", 5, kMaxMerges + 1, Code::kCorruptFile},
      {"unknown token", 6, 12, Code::kCorruptFile},
      {"added", 7, kMaxAddedTokens + 1, Code::kCorruptFile},
      {"added normalized", 8, kMaxAddedTokens + 1, Code::kCorruptFile},
      {"normalizer steps", 9, kMaxTextSteps + 1, Code::kCorruptFile},
      {"pre-tokenizer steps", 10, kMaxTextSteps + 1, Code::kCorruptFile},
      {"prefix", 11, kMaxAffixIds + 1, Code::kCorruptFile},
      {"suffix", 12, kMaxAffixIds + 1, Code::kCorruptFile},
      {"decoder", 13, 3, Code::kUnsupported},
      {"decoder flags", 14, 4, Code::kCorruptFile},
      {"replacement offset", 15, 0xFFFFFFFF, Code::kCorruptFile},
      {"replacement bytes", 16, kMaxReplacementBytes + 1, Code::kCorruptFile},
      {"strip offset", 19, 0xFFFFFFFF, Code::kCorruptFile},
      {"blob", 21, 0xFFFFFFFF, Code::kCorruptFile},
      {"reserved", 22, 1, Code::kCorruptFile},
      {"reserved", 23, 1, Code::kCorruptFile},
  };
  const std::vector<uint8_t> section = Section();
  for (const Damage& row : rows) {
    std::vector<uint8_t> damaged = section;
    std::memcpy(damaged.data() + 4 * row.word, &row.value, 4);
    const auto parsed = Tokenizer::Parse(damaged);
    ASSERT_FALSE(parsed.ok()) << row.name;
    EXPECT_EQ(parsed.status().code(), row.code) << row.name << ": " << parsed.status().message();
  }
}

// Found by fuzz_tokenizer_section: a replacement that is no UTF-8 made text for PCRE2 that is none,
// and compiled patterns read beyond its end.
TEST(TokenizerSection, StringsAreUtf8) {
  const std::vector<uint8_t> section = Section();
  // The last U+2581 lies in a string of a step or of the decoder, behind all pieces.
  const std::string text(section.begin(), section.end());
  const size_t at = text.rfind("\xE2\x96\x81");
  ASSERT_NE(at, std::string::npos);
  std::vector<uint8_t> damaged = section;
  damaged[at + 2] = 'x';
  const auto parsed = Tokenizer::Parse(damaged);
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.status().message().find("UTF-8"), std::string::npos)
      << parsed.status().message();
}

}  // namespace
}  // namespace adder
