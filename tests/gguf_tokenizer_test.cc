// Tokenizers as GGUF metadata has them, against what Hugging Face's tokenizers made of the same
// texts.
#include "converter/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "converter/tokenizer_fields.h"
#include "tests/gguf_writer.h"
#include "tests/tokenizer_test_data.h"

namespace adder::test {
namespace {

// What llama.cpp's converter makes of a tokenizer.json.
struct Vocabulary {
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;
};

Vocabulary ReadVocabulary(const std::string& json) {
  rapidjson::Document parsed;
  parsed.Parse(json.data(), json.size());
  const JsonValue& document = parsed;  // clang finds comparing its other iterators ambiguous
  Vocabulary out;
  std::map<uint32_t, std::pair<std::string, int32_t>> by_id;
  for (const auto& piece : document["model"]["vocab"].GetObject()) {
    by_id[piece.value.GetUint()] = {std::string(JsonText(piece.name)), 1};
  }
  for (const auto& token : document["added_tokens"].GetArray()) {
    by_id[token["id"].GetUint()] = {std::string(JsonText(token["content"])),
                                    token["special"].GetBool() ? 3 : 4};
  }
  for (const auto& [id, piece] : by_id) {
    while (out.tokens.size() < id) {  // a gap between ids
      out.tokens.push_back("[PAD" + std::to_string(out.tokens.size()) + "]");
      out.types.push_back(5);
    }
    out.tokens.push_back(piece.first);
    out.types.push_back(piece.second);
  }
  for (const auto& merge : document["model"]["merges"].GetArray()) {
    out.merges.push_back(merge.IsString() ? std::string(JsonText(merge))
                                          : std::string(JsonText(merge[0])) + " " +
                                                std::string(JsonText(merge[1])));
  }
  return out;
}

OwnedTokenizer Compile(const GgufWriter& file) {
  OwnedTokenizer owned;
  const auto bytes = file.File();
  const auto gguf = ParseGguf(bytes, "w.gguf");
  EXPECT_TRUE(gguf.ok()) << gguf.status().message();
  auto section = CompileGgufTokenizer(gguf->metadata);
  if (!section.ok()) {
    ADD_FAILURE() << section.status().message();
    return owned;
  }
  owned.section = std::move(*section);
  auto parsed = Tokenizer::Parse(owned.section);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  if (parsed.ok()) owned.tokenizer = std::make_unique<Tokenizer>(std::move(*parsed));
  return owned;
}

std::string Refusal(const GgufWriter& file) {
  const auto bytes = file.File();
  const auto gguf = ParseGguf(bytes, "w.gguf");
  if (!gguf.ok()) return gguf.status().message();
  const auto section = CompileGgufTokenizer(gguf->metadata);
  return section.ok() ? "accepted" : section.status().message();
}

struct PreCase {
  size_t tokenizer;  // of kTokenizerCases
  const char* pre;
};
constexpr PreCase kPreCases[] = {{0, "gpt-2"}, {1, "falcon"}, {2, "refact"},
                                 {3, "mpt"},   {3, "olmo"},   {4, "llama-bpe"}};

class ByteLevelBpe : public testing::TestWithParam<PreCase> {};
INSTANTIATE_TEST_SUITE_P(Pre, ByteLevelBpe, testing::ValuesIn(kPreCases), [](const auto& test) {
  std::string name = test.param.pre;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST_P(ByteLevelBpe, AgreesWithTokenizerJson) {
  const TokenizerCase& c = kTokenizerCases[GetParam().tokenizer];
  const std::string json = TokenizerJson(c);
  if (json.empty() && c.shared) GTEST_SKIP() << c.name << " is not there";
  const OwnedTokenizer expected = MakeTokenizer(json);
  const Vocabulary vocabulary = ReadVocabulary(json);
  GgufWriter file;
  file.Add("tokenizer.ggml.model", "gpt2").Add("tokenizer.ggml.pre", GetParam().pre);
  file.Add("tokenizer.ggml.tokens", vocabulary.tokens);
  file.Add("tokenizer.ggml.merges", vocabulary.merges);
  file.Numbers("tokenizer.ggml.token_type", GgufType::kI32, vocabulary.types);
  file.Add("tokenizer.ggml.add_bos_token", false);
  const OwnedTokenizer tokenizer = Compile(file);
  ASSERT_TRUE(tokenizer.tokenizer != nullptr && expected.tokenizer != nullptr);
  ASSERT_EQ(tokenizer->size(), expected->size());
  for (int32_t id = 0; id < expected->size(); ++id) {
    ASSERT_EQ(tokenizer->PieceText(id), expected->PieceText(id)) << id;
    ASSERT_EQ(tokenizer->Contains(id), expected->Contains(id)) << id;
    ASSERT_EQ(tokenizer->IsSpecial(id), expected->IsSpecial(id)) << id;
  }
  rapidjson::Document golden;
  const std::string text = ReadTextFile(TokenizerDirectory(c) + c.name + ".golden.json");
  golden.Parse(text.data(), text.size());
  ASSERT_GE(golden.Size(), 70u);
  for (const auto& row : golden.GetArray()) {
    const std::string input(JsonText(row["text"]));
    SCOPED_TRACE(input.substr(0, 200));
    const auto ids = tokenizer->Encode(input);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(*ids, *expected->Encode(input, {.add_special = false}));
    EXPECT_EQ(*tokenizer->Decode(*ids), std::string(JsonText(row["decoded"])));
  }
}

// Codestral's SentencePiece, with scores in the order of its merges: the merges follow from them.
// llama.cpp splits text for both in the same way.
TEST(GgufTokenizer, FalconH1IsSplitAsLlama3) {
  const auto section = [](const char* pre) {
    GgufWriter file;
    file.Add("tokenizer.ggml.model", "gpt2").Add("tokenizer.ggml.pre", pre);
    file.Add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "1", "ab", "<s>"});
    file.Add("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
    file.Add("tokenizer.ggml.bos_token_id", uint32_t{4});
    const auto bytes = file.File();
    return *CompileGgufTokenizer(ParseGguf(bytes, "w.gguf")->metadata);
  };
  EXPECT_EQ(section("falcon-h1"), section("llama-bpe"));
  EXPECT_NE(section("falcon-h1"), section("falcon"));
}

TEST(SentencePiece, AgreesWithTokenizerJson) {
  const TokenizerCase& c = kTokenizerCases[5];
  const std::string json = TokenizerJson(c);
  if (json.empty()) GTEST_SKIP() << c.name << " is not there";
  const OwnedTokenizer expected = MakeTokenizer(json);
  Vocabulary vocabulary = ReadVocabulary(json);
  std::vector<float> scores(vocabulary.tokens.size(), 0);
  for (size_t i = 0; i < scores.size(); ++i) {
    int32_t& type = vocabulary.types[i];
    const std::string& token = vocabulary.tokens[i];
    if (type == 1 && token.size() == 6 && token.starts_with("<0x")) type = 6;
    if (token == "<unk>") type = 2;
  }
  std::map<std::string, size_t> rank;  // of the first merge that makes a piece
  for (size_t i = 0; i < vocabulary.merges.size(); ++i) {
    std::string piece = vocabulary.merges[i];
    piece.erase(piece.find(' '), 1);
    rank.emplace(piece, i);
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    const auto found = rank.find(vocabulary.tokens[i]);
    scores[i] = -static_cast<float>(found == rank.end() ? rank.size() * 3 : found->second);
  }
  GgufWriter file;
  file.Add("tokenizer.ggml.model", "llama").Add("tokenizer.ggml.tokens", vocabulary.tokens);
  file.Numbers("tokenizer.ggml.token_type", GgufType::kI32, vocabulary.types);
  file.Numbers("tokenizer.ggml.scores", GgufType::kF32, scores);
  const OwnedTokenizer tokenizer = Compile(file);
  ASSERT_TRUE(tokenizer.tokenizer != nullptr && expected.tokenizer != nullptr);
  rapidjson::Document golden;
  const std::string text = ReadTextFile(TokenizerDirectory(c) + c.name + ".golden.json");
  golden.Parse(text.data(), text.size());
  ASSERT_GE(golden.Size(), 70u);
  size_t compared = 0;
  for (const auto& row : golden.GetArray()) {
    const std::string input(JsonText(row["text"]));
    // tokenizer.json puts no mark in front of a space or behind a special token; SentencePiece and
    // llama.cpp do.
    if (input.starts_with(" ") || input.starts_with("\xE2\x96\x81")) continue;
    const auto expected_ids = expected->Encode(input);
    ASSERT_TRUE(expected_ids.ok());
    const auto is_added = [&](int32_t id) {
      const int32_t type = vocabulary.types[static_cast<size_t>(id)];
      return type == 3 || type == 4;
    };
    if (std::any_of(expected_ids->begin() + 1, expected_ids->end(), is_added)) continue;
    SCOPED_TRACE(input.substr(0, 200));
    const auto ids = tokenizer->Encode(input);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(*ids, *expected_ids);  // with BOS
    EXPECT_EQ(*tokenizer->Decode(*ids), *expected->Decode(*ids));
    ++compared;
  }
  EXPECT_GE(compared, 50u);
}

GgufWriter SmallSentencePiece() {
  GgufWriter file;
  file.Add("tokenizer.ggml.model", "llama");
  file.Add("tokenizer.ggml.tokens",
           std::vector<std::string>{"<unk>", "<s>", "</s>", "a", "b", "\xE2\x96\x81", "ab", "ba",
                                    "\xE2\x96\x81"
                                    "a",
                                    "aba", "\xE2\x96\x81\xE2\x96\x81", "<0x0A>"});
  file.Numbers<int32_t>("tokenizer.ggml.token_type", GgufType::kI32,
                        {2, 3, 3, 1, 1, 1, 1, 1, 1, 1, 4, 6});
  file.Numbers<float>("tokenizer.ggml.scores", GgufType::kF32,
                      {0, 0, 0, -9, -9, -9, -2, -1, -3, -2, 0, 0});
  return file;
}

// Highest score first, leftmost among equals, whatever pair makes the piece.
TEST(SentencePiece, MergesByScore) {
  const OwnedTokenizer tokenizer = Compile(SmallSentencePiece());
  ASSERT_NE(tokenizer.tokenizer, nullptr);
  const auto ids = [&](const char* text) { return *tokenizer->Encode(text); };
  EXPECT_EQ(ids("aba"), (std::vector<int32_t>{1, 5, 9}));  // a ba (-1), then aba
  EXPECT_EQ(ids("aab"), (std::vector<int32_t>{1, 8, 6}));  // ab (-2), then _a (-3)
  EXPECT_EQ(ids("b"), (std::vector<int32_t>{1, 5, 4}));
  EXPECT_EQ(ids("a  b"), (std::vector<int32_t>{1, 8, 10, 5, 4}));  // spaces as a token of their own
  EXPECT_EQ(ids("b\n"), (std::vector<int32_t>{1, 5, 4, 11}));
  EXPECT_EQ(ids("x"), (std::vector<int32_t>{1, 5, 0}));
  EXPECT_EQ(ids(""), std::vector<int32_t>{1});
  EXPECT_EQ(ids("a</s>a"), (std::vector<int32_t>{1, 8, 2, 8}));
  EXPECT_EQ(*tokenizer->Decode(ids("a b\n"), true), "a b\n");
}

TEST(SentencePiece, PutsAroundATextWhatTheFileWants) {
  GgufWriter file = SmallSentencePiece();
  file.Add("tokenizer.ggml.add_space_prefix", false).Add("tokenizer.ggml.add_bos_token", false);
  file.Add("tokenizer.ggml.add_eos_token", true);
  const OwnedTokenizer tokenizer = Compile(file);
  ASSERT_NE(tokenizer.tokenizer, nullptr);
  EXPECT_EQ(*tokenizer->Encode("aba"), (std::vector<int32_t>{9, 2}));
  EXPECT_EQ(*tokenizer->Decode(std::vector<int32_t>{8}), " a");
}

TEST(GgufTokenizer, Refuses) {
  const auto bpe = [](const std::vector<std::string>& merges) {
    GgufWriter file;
    file.Add("tokenizer.ggml.model", "gpt2").Add("tokenizer.ggml.pre", "gpt-2");
    file.Add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "ab"});
    return file.Add("tokenizer.ggml.merges", merges);
  };
  GgufWriter no_pre, other_pre;
  no_pre.Add("tokenizer.ggml.model", "gpt2");
  no_pre.Add("tokenizer.ggml.tokens", std::vector<std::string>{"a"});
  other_pre = no_pre;
  other_pre.Add("tokenizer.ggml.pre", "chameleon");
  GgufWriter twice = GgufWriter().Add("tokenizer.ggml.model", "gpt2");
  twice.Add("tokenizer.ggml.pre", "gpt-2");
  twice.Add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "a"});
  const auto spm = [](const std::string& token, int32_t type, float score) {
    GgufWriter file;
    file.Add("tokenizer.ggml.model", "llama");
    file.Add("tokenizer.ggml.tokens", std::vector<std::string>{token});
    file.Numbers<int32_t>("tokenizer.ggml.token_type", GgufType::kI32, {type});
    return file.Numbers<float>("tokenizer.ggml.scores", GgufType::kF32, {score});
  };
  struct Row {
    GgufWriter file;
    const char* message;
  };
  const Row rows[] = {
      {GgufWriter().Add("tokenizer.ggml.model", "t5"),
       "w.gguf: tokenizer.ggml.model \"t5\" is not supported, only gpt2 and llama"},
      {GgufWriter().Add("tokenizer.ggml.model", "gpt2"), "w.gguf: tokenizer.ggml.tokens is empty"},
      {no_pre, "w.gguf: tokenizer.ggml.pre is \"not there\", which this build cannot split"},
      {other_pre, "w.gguf: tokenizer.ggml.pre is \"chameleon\", which this build cannot split"},
      {twice, "token \"a\" has ids 0 and 1"},
      {bpe({"a b"}), "accepted"},
      {bpe({"ab"}), "w.gguf: merge 0 \"ab\" is not two pieces"},
      {bpe({"a b", "a b c"}), "w.gguf: merge 1 \"a b c\" is not two pieces"},
      {bpe({" b"}), "w.gguf: merge 0 \" b\" is not two pieces"},
      {bpe({"b a"}), "w.gguf: merge 0 \"b a\" needs a piece that is not in the vocabulary"},
      {bpe({}).Numbers<int32_t>("tokenizer.ggml.token_type", GgufType::kI32, {1}),
       "w.gguf: tokenizer.ggml.token_type has 1 elements for 3 tokens"},
      {bpe({}).Numbers<int32_t>("tokenizer.ggml.token_type", GgufType::kI32, {1, 1, 7}),
       "w.gguf: token 2 has type 7, expected 1 to 6"},
      {bpe({}).Add("tokenizer.ggml.add_bos_token", true),
       "w.gguf: no metadata tokenizer.ggml.bos_token_id"},
      {bpe({}).Add("tokenizer.ggml.add_bos_token", true).Add("tokenizer.ggml.bos_token_id", 3u),
       "w.gguf: tokenizer.ggml.bos_token_id is 3, none of the 3 tokens"},
      {spm("a", 1, NAN), "w.gguf: the score of token 0 is NaN"},
      {spm(std::string(257, 'a'), 1, 0), "w.gguf: token 0 has 257 bytes, at most 256"},
      {spm("a", 1, 0), "w.gguf: tokenizer.ggml.bos_token_id is 1, none of the 1 tokens"},
  };
  for (const Row& row : rows) {
    const std::string message = Refusal(row.file);
    EXPECT_NE(message.find(row.message), std::string::npos) << message << " for " << row.message;
  }
}

TEST(GgufTokenizer, MayBeAbsent) {
  for (const GgufWriter& file :
       {GgufWriter(), GgufWriter().Add("tokenizer.ggml.model", "no_vocab")}) {
    const auto bytes = file.File();
    const auto gguf = ParseGguf(bytes, "w.gguf");
    ASSERT_TRUE(gguf.ok());
    const auto section = CompileGgufTokenizer(gguf->metadata);
    ASSERT_TRUE(section.ok());
    EXPECT_TRUE(section->empty());
  }
}

}  // namespace
}  // namespace adder::test
