// The tokenizer against what Hugging Face's tokenizers made of the same texts.
#include "runtime/tokenizer.h"

#include <gtest/gtest.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <limits>
#include <random>

#include "runtime/utf8.h"
#include "tests/tokenizer_test_data.h"

namespace adder {
namespace {

// Processor time, so that other programs on the machine do not count.
double Seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Bytes of the large texts: less where a sanitizer makes everything slow.
#if defined(__has_feature)
#define ADDER_TEST_HAS_FEATURE(x) __has_feature(x)
#else
#define ADDER_TEST_HAS_FEATURE(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || ADDER_TEST_HAS_FEATURE(address_sanitizer)
constexpr size_t kLarge = 200000;
#else
constexpr size_t kLarge = 1000000;
#endif

class EveryTokenizer : public testing::TestWithParam<TokenizerCase> {
 protected:
  void SetUp() override {
    json_ = TokenizerJson(GetParam());
    if (json_.empty() && GetParam().shared) {
      GTEST_SKIP() << GetParam().name << ": no " << TokenizerDirectory(GetParam())
                   << " or no xz program";
    }
    ASSERT_FALSE(json_.empty()) << GetParam().name;
    owned_ = MakeTokenizer(json_);
    ASSERT_NE(owned_.tokenizer, nullptr);
  }

  std::string json_;
  OwnedTokenizer owned_;
};

INSTANTIATE_TEST_SUITE_P(All, EveryTokenizer, testing::ValuesIn(kTokenizerCases),
                         [](const auto& param_info) {
                           std::string name = param_info.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

std::vector<int32_t> Ids(const rapidjson::Value& array) {
  std::vector<int32_t> ids;
  for (const auto& id : array.GetArray()) ids.push_back(id.GetInt());
  return ids;
}

std::string Text(const rapidjson::Value& value) {
  return {value.GetString(), value.GetStringLength()};
}

// The bytes of all pieces, put together as a stream does.
std::string JoinPieces(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                       bool skip_special) {
  std::string out;
  bool first = true;
  for (const int32_t id : ids) {
    EXPECT_TRUE(tokenizer.AppendPiece(id, first, skip_special, &out).ok());
    if (!skip_special || !tokenizer.IsSpecial(id)) first = false;
  }
  return out;
}

TEST_P(EveryTokenizer, AgreesWithHuggingFace) {
  const std::string path = TokenizerDirectory(GetParam()) + GetParam().name + ".golden.json";
  rapidjson::Document golden;
  const std::string text = ReadTextFile(path);
  golden.Parse(text.data(), text.size());
  ASSERT_FALSE(golden.HasParseError()) << path;
  ASSERT_GE(golden.Size(), 70u);
  for (const auto& row : golden.GetArray()) {
    const std::string input = Text(row["text"]);
    SCOPED_TRACE(input.substr(0, 200));
    for (const bool add_special : {false, true}) {
      const auto ids = owned_->Encode(input, {.add_special = add_special});
      ASSERT_TRUE(ids.ok()) << ids.status().message();
      EXPECT_EQ(*ids, Ids(row[add_special ? "ids_with_special" : "ids"]));
    }
    const std::vector<int32_t> ids = Ids(row["ids"]);
    for (const bool skip : {false, true}) {
      const auto decoded = owned_->Decode(ids, skip);
      ASSERT_TRUE(decoded.ok());
      EXPECT_EQ(*decoded, Text(row[skip ? "decoded_skip_special" : "decoded"]));
      const std::string joined = JoinPieces(*owned_.tokenizer, ids, skip);
      if (ValidUtf8Prefix(joined) == joined.size()) {
        EXPECT_EQ(joined, *decoded);
      }
    }
  }
}

TEST_P(EveryTokenizer, OpensInMilliseconds) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 5; ++i) {
    const double start = Seconds();
    ASSERT_TRUE(Tokenizer::Parse(owned_.section).ok());
    best = std::min(best, Seconds() - start);
  }
  std::printf("%s: %d pieces open in %.2f ms\n", GetParam().name, owned_->size(), best * 1e3);
  EXPECT_LT(best, 0.1);  // generous: sanitizers and busy machines
}

TEST_P(EveryTokenizer, PiecesAreFoundByTheirText) {
  int32_t found = 0;
  for (int32_t id = 0; id < owned_->size(); ++id) {
    const std::string_view piece = owned_->PieceText(id);
    if (piece.empty()) continue;
    ASSERT_EQ(owned_->FindPiece(piece), id) << piece;
    ++found;
  }
  EXPECT_GT(found, 1000);
  EXPECT_EQ(owned_->FindPiece("no such piece, surely"), -1);
  EXPECT_EQ(owned_->PieceText(-1), "");
  EXPECT_EQ(owned_->PieceText(owned_->size()), "");
  EXPECT_FALSE(owned_->IsSpecial(-1));
  EXPECT_FALSE(owned_->IsSpecial(owned_->size()));
}

TEST_P(EveryTokenizer, AnyTextComesBack) {
  std::mt19937 generator(7);
  const auto random = [&] { return static_cast<uint32_t>(generator()); };
  for (int round = 0; round < 200; ++round) {
    std::string text(1, 'x');  // Metaspace adds a space in front of the first word and strips one
    for (int i = 0; i < 40; ++i) {
      const uint32_t pick = random() % 10;
      char32_t c = pick < 4 ? 'a' + random() % 26 : pick < 6 ? ' ' : 0x20 + random() % 0x2000;
      if (pick == 9) c = 0x1F000 + random() % 0x400;
      AppendUtf8(c, &text);
    }
    const auto ids = owned_->Encode(text, {.add_special = false});
    ASSERT_TRUE(ids.ok());
    const auto decoded = owned_->Decode(*ids);
    ASSERT_TRUE(decoded.ok());
    if (std::string_view(GetParam().name) == "gpt-neox-20b") continue;  // NFC changes text
    ASSERT_EQ(*decoded, text);
  }
}

// Four times the text must not take much more than four times as long; quadratic time would take
// sixteen times as long. Both are long enough to lie outside of the caches.
TEST_P(EveryTokenizer, TimeIsLinear) {
#ifdef __GLIBC__
  // Memory of one run serves the next: otherwise the time is that of the system for new pages.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
  std::mt19937 random(11);
  const auto repeat = [](const std::string& unit, size_t bytes) {
    std::string text;
    while (text.size() < bytes) text += unit;
    return text;
  };
  std::string letters;
  for (int i = 0; i < static_cast<int>(kLarge); ++i)
    letters += static_cast<char>('a' + random() % 26);
  const auto marks = [&](size_t bytes) {  // combining marks in descending order of class
    return std::string("e").append(repeat("\xCC\x81\xCC\xA3", bytes));
  };
  const auto cut = [](const std::string& text, size_t bytes) { return text.substr(0, bytes); };
  struct Row {
    const char* name;
    std::string large, small;
  };
  const Row rows[] = {
      {"aaaa", repeat("a", kLarge), repeat("a", kLarge / 4)},
      {"random letters", letters, cut(letters, kLarge / 4)},
      {"spaces", repeat(" ", kLarge), repeat(" ", kLarge / 4)},
      {"spaces, x", repeat(" ", kLarge) + "x", repeat(" ", kLarge / 4) + "x"},
      {"newlines", repeat("\n", kLarge), repeat("\n", kLarge / 4)},
      {"punctuation", repeat("!?", kLarge), repeat("!?", kLarge / 4)},
      {"digits", repeat("7", kLarge), repeat("7", kLarge / 4)},
      {"marks", marks(kLarge), marks(kLarge / 4)},
      {"U+4E2D", repeat("\xE4\xB8\xAD", kLarge), repeat("\xE4\xB8\xAD", kLarge / 4)}};
  for (const Row& row : rows) {
    const auto seconds = [&](const std::string& text) {
      const double start = Seconds();
      const auto ids = owned_->Encode(text);
      const double took = Seconds() - start;
      EXPECT_TRUE(ids.ok()) << row.name << ": " << ids.status().message();
      return took;
    };
    double small = seconds(row.small);
    for (int i = 0; i < 2; ++i) small = std::min(small, seconds(row.small));
    // A busy machine's new memory can cost ten times the work: measure until one run is clear of
    // it. Quadratic time is never clear.
    double large = seconds(row.large);
    for (int i = 0; i < 30 && large >= 12 * small; ++i) large = std::min(large, seconds(row.large));
    std::printf("%s, %s: %zu bytes %.1f ms, %zu bytes %.1f ms\n", GetParam().name, row.name,
                kLarge / 4, small * 1e3, kLarge, large * 1e3);
    EXPECT_LT(large, 12 * small) << row.name;
  }
}

TEST_P(EveryTokenizer, InvalidUtf8NamesTheOffset) {
  const auto ids = owned_->Encode("abc \xE4\xB8 def");
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.status().code(), Code::kInvalidArgument);
  EXPECT_NE(ids.status().message().find("offset 4"), std::string::npos) << ids.status().message();
  EXPECT_FALSE(owned_->Encode("\xED\xA0\x80").ok());  // a surrogate
  EXPECT_FALSE(owned_->Encode("\xC0\x80").ok());      // overlong
  EXPECT_TRUE(owned_->Encode(std::string_view("a\0b", 3)).ok());
}

TEST_P(EveryTokenizer, UnknownIdsAreErrors) {
  std::string out;
  for (const int32_t id : {-1, owned_->size(), std::numeric_limits<int32_t>::min(),
                           std::numeric_limits<int32_t>::max()}) {
    EXPECT_EQ(owned_->AppendPiece(id, true, false, &out).code(), Code::kInvalidArgument);
    EXPECT_FALSE(owned_->Decode(std::vector<int32_t>{id}).ok());
  }
  EXPECT_EQ(out, "");
}

TEST_P(EveryTokenizer, AppendPieceKeepsTheBuffer) {
  std::string out;
  out.reserve(4096);
  const char* const data = out.data();
  for (int32_t id = 0; id < owned_->size(); ++id) {
    if (owned_->PieceText(id).empty()) continue;
    out.clear();
    ASSERT_TRUE(owned_->AppendPiece(id, id % 2 == 0, false, &out).ok());
    ASSERT_EQ(out.data(), data);
  }
}

TEST_P(EveryTokenizer, SpecialTokensAsPlainText) {
  for (int32_t id = 0; id < owned_->size(); ++id) {
    if (!owned_->IsSpecial(id)) continue;
    const std::string text = std::string("a").append(owned_->PieceText(id)).append("b");
    const auto parsed = owned_->Encode(text, {.add_special = false});
    const auto plain = owned_->Encode(text, {.add_special = false, .parse_special = false});
    ASSERT_TRUE(parsed.ok() && plain.ok());
    EXPECT_EQ(std::count(parsed->begin(), parsed->end(), id), 1) << text;
    EXPECT_EQ(std::count_if(plain->begin(), plain->end(),
                            [&](int32_t i) { return owned_->IsSpecial(i); }),
              0)
        << text;
    const auto decoded = owned_->Decode(*plain);
    ASSERT_TRUE(decoded.ok());
    EXPECT_EQ(*decoded, text);
  }
}

TEST(Tokenizer, ExampleModelAddsItsFirstToken) {
  const OwnedTokenizer owned =
      MakeTokenizer(ReadTextFile(ADDER_SOURCE_DIR "/examples/models/stories-11m/tokenizer.json"));
  ASSERT_NE(owned.tokenizer, nullptr);
  const std::string text = "Once upon a time, there was a caf\xC3\xA9.";
  const auto with = owned->Encode(text);
  const auto without = owned->Encode(text, {.add_special = false});
  ASSERT_TRUE(with.ok() && without.ok());
  ASSERT_EQ(with->size(), without->size() + 1);
  EXPECT_EQ(with->front(), 0);
  EXPECT_EQ(*owned->Decode(*with, true), text);
  EXPECT_EQ(*owned->Decode(*with, false), "<|endoftext|>" + text);
  EXPECT_EQ(*owned->Encode(""), std::vector<int32_t>{0});
}

}  // namespace
}  // namespace adder
