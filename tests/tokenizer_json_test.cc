// What the compiler of tokenizer.json accepts, and what it refuses by name.
#include "converter/tokenizer_json.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/tokenizer_test_data.h"

namespace adder {
namespace {

// A small BPE tokenizer; tests replace one part of it by another.
constexpr char kSmall[] = R"({
  "version": "1.0",
  "added_tokens": [
    {"id": 9, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false, "special": true}],
  "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
  "post_processor": null,
  "decoder": {"type": "ByteLevel"},
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false,
    "vocab": {"a": 0, "b": 1, "c": 2, "\u0120": 3, "ab": 4, "abc": 5, "\u0120a": 6, "1": 7, "2": 8},
    "merges": ["a b", "ab c", "\u0120 a"]}})";

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

constexpr char kPre[] = R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true})";
constexpr char kDecoder[] = R"("decoder": {"type": "ByteLevel"})";
constexpr char kNormalizer[] = R"("normalizer": null)";
constexpr char kPost[] = R"("post_processor": null)";
constexpr char kMerges[] = R"(["a b", "ab c", "\u0120 a"])";

struct Refused {
  const char* name;
  const char* from;
  const char* to;
  Code code;
  const char* message;  // part of it
};

const Refused kRefused[] = {
    {"model type", R"("type": "BPE")", R"("type": "Unigram")", Code::kUnsupported, "Unigram"},
    {"model type number", R"("type": "BPE")", R"("type": 3)", Code::kCorruptFile, "type"},
    {"no model", R"("model")", R"("modell")", Code::kCorruptFile, "\"model\" is missing"},
    {"no vocab", R"("vocab")", R"("vocabulary")", Code::kCorruptFile, "\"vocab\" is missing"},
    {"no merges", R"("merges")", R"("merge")", Code::kCorruptFile, "\"merges\" is missing"},
    {"model twice", R"("version": "1.0")", R"("model": {})", Code::kCorruptFile, "given twice"},
    {"dropout", R"("dropout": null)", R"("dropout": 0.1)", Code::kUnsupported, "dropout 0.1"},
    {"prefix", R"("dropout": null)", R"("continuing_subword_prefix": "##")", Code::kUnsupported,
     "continuing_subword_prefix"},
    {"suffix", R"("dropout": null)", R"("end_of_word_suffix": "</w>")", Code::kUnsupported,
     "end_of_word_suffix"},
    {"unk_token", R"("unk_token": null)", R"("unk_token": "<unk>")", Code::kCorruptFile, "<unk>"},
    {"fuse_unk", R"("fuse_unk": false)", R"("fuse_unk": 1)", Code::kCorruptFile, "fuse_unk"},
    {"id twice", R"("b": 1)", R"("b": 0)", Code::kCorruptFile, "have id 0"},
    {"piece twice", R"("b": 1)", R"("b": 1, "a": 10)", Code::kCorruptFile, "ids 0 and 10"},
    {"negative id", R"("b": 1)", R"("b": -1)", Code::kCorruptFile, "has id -1"},
    {"id is a string", R"("b": 1)", R"("b": "1")", Code::kCorruptFile, "has id \"1\""},
    {"far id", R"("b": 1)", R"("b": 4000000)", Code::kUnsupported, "id 4000000"},
    {"merge of an unknown piece", kMerges, R"(["a x"])", Code::kCorruptFile, "needs \"x\""},
    {"merge into an unknown piece", kMerges, R"(["b a"])", Code::kCorruptFile, "needs \"ba\""},
    {"merge of one", kMerges, R"(["ab"])", Code::kCorruptFile, "merge 0"},
    {"merge of three", kMerges, R"(["a b c"])", Code::kCorruptFile, "merge 0"},
    {"merge pair of three", kMerges, R"([["a", "b", "c"]])", Code::kCorruptFile, "merge 0"},
    {"merge of numbers", kMerges, R"([[1, 2]])", Code::kCorruptFile, "merge 0"},
    {"merges object", kMerges, "{}", Code::kCorruptFile, "\"merges\" is an object"},
    {"added without id", R"("id": 9)", R"("idx": 9)", Code::kCorruptFile, "\"id\" is missing"},
    {"added without content", R"("content": "<s>")", R"("contents": "<s>")", Code::kCorruptFile,
     "\"content\" is missing"},
    {"added takes an id", R"("id": 9)", R"("id": 0)", Code::kCorruptFile, "which is \"a\""},
    {"added has another id", R"("content": "<s>")", R"("content": "a")", Code::kCorruptFile,
     "ids 0 and 9"},
    {"added id twice", R"([
    {)",
     R"([{"id": 9, "content": "x"}, {)", Code::kCorruptFile, "id 9"},
    {"added flag", R"("lstrip": false)", R"("lstrip": "no")", Code::kCorruptFile, "lstrip"},
    {"normalizer", kNormalizer, R"("normalizer": {"type": "BertNormalizer"})", Code::kUnsupported,
     "BertNormalizer"},
    {"normalizer in a Sequence", kNormalizer,
     R"("normalizer": {"type": "Sequence", "normalizers": [{"type": "Nmt"}]})", Code::kUnsupported,
     "Nmt"},
    {"normalizer without type", kNormalizer, R"("normalizer": {})", Code::kCorruptFile, "type"},
    {"normalizer string", kNormalizer, R"("normalizer": "NFC")", Code::kCorruptFile, "normalizer"},
    {"Prepend without text", kNormalizer, R"("normalizer": {"type": "Prepend"})",
     Code::kCorruptFile, "prepend"},
    {"empty Replace", kNormalizer,
     R"("normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x"})",
     Code::kUnsupported, "empty pattern"},
    {"pre_tokenizer", kPre, R"({"type": "BertPreTokenizer"})", Code::kUnsupported,
     "BertPreTokenizer"},
    {"behavior", kPre, R"({"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Sometimes"})",
     Code::kUnsupported, "Sometimes"},
    {"no behavior", kPre, R"({"type": "Split", "pattern": {"Regex": "x"}})", Code::kCorruptFile,
     "behavior"},
    {"pattern", kPre, R"({"type": "Split", "pattern": "x", "behavior": "Isolated"})",
     Code::kCorruptFile, "pattern"},
    {"regex", kPre, R"({"type": "Split", "pattern": {"Regex": "(x"}, "behavior": "Isolated"})",
     Code::kUnsupported, "regular expression"},
    {"regex \\w", kPre,
     R"({"type": "Split", "pattern": {"Regex": "\\w+"}, "behavior": "Isolated"})",
     Code::kUnsupported, "\"\\w\""},
    {"regex anchor", kPre,
     R"({"type": "Split", "pattern": {"Regex": "x$"}, "behavior": "Isolated"})", Code::kUnsupported,
     "\"$\""},
    {"regex set in a set", kPre,
     R"({"type": "Split", "pattern": {"Regex": "[a[b]]"}, "behavior": "Isolated"})",
     Code::kUnsupported, "\"[b\""},
    {"regex possessive count", kPre,
     R"({"type": "Split", "pattern": {"Regex": "a{1,3}+"}, "behavior": "Isolated"})",
     Code::kUnsupported, "{1,3}+"},
    {"regex property", kPre,
     R"({"type": "Split", "pattern": {"Regex": "\\p{Nonsense}"}, "behavior": "Isolated"})",
     Code::kUnsupported, "Nonsense"},
    {"replacement", kPre, R"({"type": "Metaspace", "replacement": "__"})", Code::kCorruptFile,
     "__"},
    {"prepend_scheme", kPre,
     R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"})", Code::kUnsupported,
     "last"},
    {"post_processor", kPost, R"("post_processor": {"type": "BertProcessing"})", Code::kUnsupported,
     "BertProcessing"},
    {"template id", kPost,
     R"("post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>",
     "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
     "special_tokens": {"<s>": {"id": "<s>", "ids": [77]}}})",
     Code::kCorruptFile, "77"},
    {"template without text", kPost,
     R"("post_processor": {"type": "TemplateProcessing", "single": []})", Code::kUnsupported,
     "without the text"},
    {"template token", kPost,
     R"("post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<t>"}}],
     "special_tokens": {}})",
     Code::kCorruptFile, "<t>"},
    {"decoder", kDecoder, R"("decoder": {"type": "WordPiece"})", Code::kUnsupported, "WordPiece"},
    {"Strip alone", kDecoder,
     R"("decoder": {"type": "Strip", "content": " ", "start": 1, "stop": 0})", Code::kUnsupported,
     "Strip"},
    {"Strip at the end", kDecoder,
     R"("decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"},
     {"type": "Strip", "content": " ", "start": 0, "stop": 1}]})",
     Code::kUnsupported, "Strip"},
    {"decoder order", kDecoder,
     R"("decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]})",
     Code::kUnsupported, "ByteFallback"},
    {"not JSON", R"("version": "1.0",)", "version,", Code::kCorruptFile, "byte"},
    {"lone surrogate", R"("b": 1)", R"("\ud800": 1)", Code::kCorruptFile, "byte"},
};

TEST(TokenizerJson, RefusesByName) {
  ASSERT_TRUE(CompileTokenizer(kSmall).ok()) << CompileTokenizer(kSmall).status().message();
  for (const Refused& row : kRefused) {
    SCOPED_TRACE(row.name);
    const auto section = CompileTokenizer(Replaced(kSmall, row.from, row.to));
    ASSERT_FALSE(section.ok());
    EXPECT_EQ(section.status().code(), row.code) << section.status().message();
    EXPECT_NE(section.status().message().find(row.message), std::string::npos)
        << section.status().message();
  }
}

TEST(TokenizerJson, RefusesWhatIsNoObject) {
  for (const std::string json : {"", "[]", "3", "{}", "{", "nul", "{} {}"}) {
    EXPECT_EQ(CompileTokenizer(json).status().code(), Code::kCorruptFile) << json;
  }
  EXPECT_EQ(CompileTokenizer(std::string(1000000, '[')).status().code(), Code::kCorruptFile);
  std::string deep = R"({"type": "NFC"})";
  for (int i = 0; i < 12; ++i) {
    deep = std::string(R"({"type": "Sequence", "normalizers": [)").append(deep).append("]}");
  }
  const auto section =
      CompileTokenizer(Replaced(kSmall, kNormalizer, std::string("\"normalizer\": ").append(deep)));
  EXPECT_EQ(section.status().code(), Code::kUnsupported);
}

TEST(TokenizerJson, EveryTruncationIsAnError) {
  const std::string json = kSmall;
  for (size_t n = 0; n < json.size(); ++n) {
    EXPECT_FALSE(CompileTokenizer(json.substr(0, n)).ok()) << n;
  }
}

TEST(TokenizerJson, SameTextSameBytes) {
  for (const TokenizerCase& c : kTokenizerCases) {
    if (c.shared) continue;
    const std::string json = TokenizerJson(c);
    const auto first = CompileTokenizer(json);
    const auto second = CompileTokenizer(json);
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_EQ(*first, *second);
  }
  // The two ways to write merges, and white space, make no difference.
  const auto strings = CompileTokenizer(kSmall);
  const auto pairs =
      CompileTokenizer(Replaced(kSmall, kMerges, R"([["a","b"],  ["ab","c"], ["\u0120","a"]])"));
  const auto heading = CompileTokenizer(
      Replaced(kSmall, kMerges, R"(["#version: 0.2", "a b", "ab c", "\u0120 a"])"));
  ASSERT_TRUE(strings.ok() && pairs.ok() && heading.ok());
  EXPECT_EQ(*strings, *pairs);
  EXPECT_EQ(*strings, *heading);
}

std::vector<int32_t> Encode(const OwnedTokenizer& tokenizer, const std::string& text) {
  const auto ids = tokenizer->Encode(text);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? *ids : std::vector<int32_t>();
}

using Ids = std::vector<int32_t>;

TEST(TokenizerJson, AddedTokenFlags) {
  const auto with = [](const std::string& flags) {
    return MakeTokenizer(
        Replaced(kSmall, R"("single_word": false, "lstrip": false, "rstrip": false)", flags));
  };
  const OwnedTokenizer plain = with(R"("lstrip": false)");
  EXPECT_EQ(Encode(plain, "a <s> ab"), (Ids{0, 3, 9, 3, 4}));
  EXPECT_EQ(Encode(plain, "a<s>b<s><s>"), (Ids{0, 9, 1, 9, 9}));
  const OwnedTokenizer left = with(R"("lstrip": true)");
  EXPECT_EQ(Encode(left, "a <s> ab"), (Ids{0, 9, 3, 4}));
  const OwnedTokenizer right = with(R"("rstrip": true)");
  EXPECT_EQ(Encode(right, "a <s> \t\n ab"), (Ids{0, 3, 9, 4}));
  const OwnedTokenizer word = with(R"("single_word": true)");
  EXPECT_EQ(Encode(word, "a <s> b"), (Ids{0, 3, 9, 3, 1}));
  EXPECT_EQ(Encode(word, "a<s> "), (Ids{0, 3}));  // '<', 's', '>' have no piece here
}

TEST(TokenizerJson, NormalizedAddedTokensMeetNormalizedText) {
  std::string json =
      Replaced(kSmall, kNormalizer,
               R"("normalizer": {"type": "Replace", "pattern": {"String": "x"}, "content": "b"})");
  json = Replaced(json, R"("content": "<s>")", R"("content": "xx")");
  const OwnedTokenizer before = MakeTokenizer(json);
  EXPECT_EQ(Encode(before, "axxabb"), (Ids{0, 9, 4, 1}));
  const OwnedTokenizer after =
      MakeTokenizer(Replaced(json, R"("normalized": false)", R"("normalized": true)"));
  EXPECT_EQ(Encode(after, "axxabb"), (Ids{0, 9, 0, 9}));
}

TEST(TokenizerJson, SplitBehaviors) {
  const auto with = [](const std::string& behavior, const std::string& more) {
    return MakeTokenizer(
        Replaced(kSmall, kPre,
                 std::string(R"({"type": "Split", "pattern": {"String": "b"}, "behavior": ")")
                     .append(behavior)
                     .append("\"")
                     .append(more)
                     .append("}")));
  };
  EXPECT_EQ(Encode(with("Removed", ""), "abcab"), (Ids{0, 2, 0}));
  EXPECT_EQ(Encode(with("Isolated", ""), "abcab"), (Ids{0, 1, 2, 0, 1}));
  EXPECT_EQ(Encode(with("MergedWithPrevious", ""), "abcab"), (Ids{4, 2, 4}));
  EXPECT_EQ(Encode(with("MergedWithNext", ""), "abcab"), (Ids{0, 1, 2, 0, 1}));
  EXPECT_EQ(Encode(with("Removed", R"(, "invert": true)"), "abcab"), (Ids{1, 1}));
}

// Files made from SentencePiece models before Metaspace had a prepend_scheme.
TEST(TokenizerJson, PrependAndReplaceNormalizer) {
  std::string json =
      Replaced(kSmall, kNormalizer, R"("normalizer": {"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "\u0120"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "\u0120"}]})");
  json = Replaced(json, kPre, "null");
  json = Replaced(json, kDecoder, R"("decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "\u0120"}, "content": " "}, {"type": "ByteFallback"},
      {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})");
  const OwnedTokenizer tokenizer = MakeTokenizer(json);
  const Ids ids = Encode(tokenizer, "a abc  a");
  EXPECT_EQ(ids, (Ids{6, 3, 5, 3, 6}));
  EXPECT_EQ(*tokenizer->Decode(ids), "a abc  a");
}

TEST(TokenizerJson, MetaspaceDecoderAndNoDecoder) {
  const OwnedTokenizer meta = MakeTokenizer(
      Replaced(kSmall, kDecoder, R"("decoder": {"type": "Metaspace", "replacement": "\u0120"})"));
  EXPECT_EQ(*meta->Decode(Ids{6, 6, 3, 0}), "a a a");
  const OwnedTokenizer none = MakeTokenizer(Replaced(kSmall, kDecoder, R"("decoder": null)"));
  EXPECT_EQ(*none->Decode(Ids{0, 4, 9}), "a ab <s>");
  EXPECT_EQ(*none->Decode(Ids{9, 0, 4, 9}, true), "a ab");
}

TEST(TokenizerJson, ByteFallbackAndUnknownTokens) {
  std::string json = Replaced(kSmall, kPre, "null");
  json = Replaced(json, R"("unk_token": null)", R"("byte_fallback": true, "unk_token": "c")");
  json = Replaced(json, R"("1": 7)", R"("<0xC3>": 7)");
  json = Replaced(json, R"("2": 8)", R"("<0xA9>": 8)");
  json = Replaced(json, kDecoder, R"("decoder": {"type": "ByteFallback"})");
  const OwnedTokenizer tokenizer = MakeTokenizer(json);
  EXPECT_EQ(Encode(tokenizer, "a\xC3\xA9"), (Ids{0, 7, 8}));
  EXPECT_EQ(Encode(tokenizer, "axyb"), (Ids{0, 2, 2, 1}));
  EXPECT_EQ(*tokenizer->Decode(Ids{0, 7, 8, 1}),
            "a\xC3\xA9"
            "b");
  // A run of byte tokens that is no text: one U+FFFD each, as Hugging Face does.
  EXPECT_EQ(*tokenizer->Decode(Ids{0, 7, 8, 8}), "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  const OwnedTokenizer fused =
      MakeTokenizer(Replaced(json, R"("fuse_unk": false)", R"("fuse_unk": true)"));
  EXPECT_EQ(Encode(fused, "axyb"), (Ids{0, 2, 1}));
}

TEST(TokenizerJson, IgnoreMergesTakesWholeWords) {
  // No merge makes "a1".
  const std::string json = Replaced(kSmall, R"("2": 8)", R"("ba": 8)");
  EXPECT_EQ(Encode(MakeTokenizer(json), "ba"), (Ids{1, 0}));
  const OwnedTokenizer whole =
      MakeTokenizer(Replaced(json, R"("dropout": null)", R"("ignore_merges": true)"));
  EXPECT_EQ(Encode(whole, "ba"), (Ids{8}));
}

// U+180E is white space to PCRE2's \s and not to Oniguruma's.
TEST(TokenizerJson, WhiteSpaceIsThatOfOniguruma) {
  const OwnedTokenizer tokenizer = MakeTokenizer(Replaced(
      Replaced(kSmall, kPre,
               R"({"type": "Split", "pattern": {"Regex": "\\s"}, "behavior": "MergedWithNext"})"),
      kMerges, R"(["a b"])"));
  EXPECT_EQ(Encode(tokenizer,
                   "a\xC2\x85"
                   "b"),
            (Ids{0, 1}));
  EXPECT_EQ(Encode(tokenizer, "ab"), (Ids{4}));
  const OwnedTokenizer removed = MakeTokenizer(
      Replaced(kSmall, kPre,
               R"({"type": "Split", "pattern": {"Regex": "[\\s1]"}, "behavior": "Isolated"})"));
  EXPECT_EQ(Encode(removed, "a1b"), (Ids{0, 7, 1}));
  EXPECT_EQ(Encode(removed,
                   "a\xE1\xA0\x8E"
                   "b"),
            (Ids{4}));  // not split; the rest has no piece
}

}  // namespace
}  // namespace adder
