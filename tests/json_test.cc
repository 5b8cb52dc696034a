#include "converter/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>

namespace adder {
namespace {

Json Parsed(std::string_view text) {
  const auto json = Json::Parse(text, "t.json");
  EXPECT_TRUE(json.ok()) << json.status().message();
  return json.ok() ? *json : Json();
}

Config Conf(std::string_view text) { return Config(Parsed(text), "config.json"); }

TEST(Json, ReadsEveryType) {
  const Json root =
      Parsed(R"( {"n": null, "t": true, "i": -7, "f": 2.5, "s": "a\u00e9\n\ud83d\ude00",
                               "a": [1, [2], {}], "o": {"k": "v"}} )");
  ASSERT_EQ(root.type(), Json::Type::kObject);
  EXPECT_EQ(root.members()[0].first, "n");
  EXPECT_TRUE(root.Find("n")->is_null());
  EXPECT_TRUE(root.Find("t")->AsBool());
  EXPECT_EQ(root.Find("i")->AsInt(), -7);
  EXPECT_EQ(root.Find("i")->AsDouble(), -7.0);
  EXPECT_EQ(root.Find("f")->AsDouble(), 2.5);
  EXPECT_EQ(root.Find("s")->AsString(), "a\xc3\xa9\n\xf0\x9f\x98\x80");
  ASSERT_EQ(root.Find("a")->items().size(), 3u);
  EXPECT_EQ(root.Find("a")->items()[1].items()[0].AsInt(), 2);
  EXPECT_TRUE(root.Find("a")->items()[2].is_object());
  EXPECT_EQ(root.Find("o")->Find("k")->AsString(), "v");
  EXPECT_EQ(root.Find("absent"), nullptr);
  // Reading a value as another type gives that type's nothing.
  EXPECT_EQ(root.Find("s")->AsInt(), 0);
  EXPECT_EQ(root.Find("i")->AsString(), "");
  EXPECT_TRUE(root.Find("i")->items().empty());
  EXPECT_FALSE(root.Find("i")->AsBool());
}

TEST(Json, ReadsIntegersToTheEdgesOf64Bits) {
  EXPECT_EQ(Parsed("9223372036854775807").AsInt(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(Parsed("-9223372036854775808").AsInt(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(Parsed("4294967296").AsInt(), int64_t{1} << 32);
  EXPECT_EQ(Parsed("9223372036854775808").type(), Json::Type::kFloat);
  EXPECT_EQ(Parsed("9223372036854775808").AsDouble(), 0x1p63);
  EXPECT_EQ(Parsed("2.0").type(), Json::Type::kFloat);
  EXPECT_EQ(Parsed("0.1").AsDouble(), 0.1);
  EXPECT_EQ(Parsed("1e308").AsDouble(), 1e308);
  EXPECT_EQ(Parsed("-1.5E+2").AsDouble(), -150.0);
  EXPECT_EQ(Parsed("5e-324").AsDouble(), 5e-324);
  EXPECT_EQ(Parsed("1e-400").AsDouble(), 0.0);
  EXPECT_EQ(Parsed("0." + std::string(400, '0') + "1").AsDouble(), 0.0);
  EXPECT_EQ(Parsed("-0").AsDouble(), 0.0);
}

TEST(Json, ReadsWhatConfigsWriteForInfinity) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(Parsed("Infinity").AsDouble(), inf);
  EXPECT_EQ(Parsed("-Infinity").AsDouble(), -inf);
  EXPECT_TRUE(std::isnan(Parsed("NaN").AsDouble()));
  EXPECT_EQ(Parsed(R"([0.0, {"__float__": "Infinity"}])").items()[1].AsDouble(), inf);
  EXPECT_EQ(Parsed(R"({"__float__": "-Infinity"})").AsDouble(), -inf);
  EXPECT_TRUE(std::isnan(Parsed(R"({"__float__": "NaN"})").AsDouble()));
  // Not exactly that form: an object as any other.
  EXPECT_TRUE(Parsed(R"({"__float__": "1.5"})").is_object());
  EXPECT_TRUE(Parsed(R"({"__float__": 3})").is_object());
  EXPECT_TRUE(Parsed(R"({"__float__": "NaN", "x": 1})").is_object());
}

// Found by fuzzing: RapidJSON's own conversion reads outside its tables for these.
TEST(Json, ReadsNumbersThatBreakRapidJson) {
  EXPECT_EQ(Parsed("0e308").AsDouble(), 0.0);
  EXPECT_EQ(Parsed("24" + std::string(200, '0') + "E44").AsDouble(), 24e244);
  EXPECT_EQ(Parsed("1" + std::string(100, '0') + "30" + std::string(11, '0') + "E00" +
                   std::string(300, '0') + "3")
                .AsDouble(),
            1e116);
}

TEST(Json, SkipsAByteOrderMark) {
  EXPECT_EQ(Parsed("\xef\xbb\xbf{\"a\": 1}").Find("a")->AsInt(), 1);
}

TEST(Json, RefusesWhatIsNotJson) {
  struct Row {
    const char* name;
    std::string text;
    const char* message;
  };
  const std::string deep(65, '[');
  const Row rows[] = {
      {"empty", "", "empty"},
      {"only a byte order mark", "\xef\xbb\xbf", "byte 3"},
      {"UTF-16", std::string("\xff\xfe{\0}\0", 6), "byte 0"},
      {"comment", "{} // x", "byte 3"},
      {"comment inside", "{/* x */}", "byte 1"},
      {"trailing comma in an object", R"({"a": 1,})", "Missing a name"},
      {"trailing comma in an array", "[1,]", "Invalid value"},
      {"two values", "{} {}", "must not be followed"},
      {"text behind a NUL", std::string("{}\0x", 4), "a NUL byte"},
      {"NUL inside", std::string("[\0]", 3), "byte 1"},
      {"unterminated string", "\"ab", "quotation"},
      {"unterminated array", "[1", "byte 2"},
      {"duplicate key", R"({"a": 1, "b": 2, "a": 3})", "\"a\" is given twice"},
      {"duplicate empty key", R"({"": 1, "": 3})", "\"\" is given twice"},
      {"duplicate key by escape", R"({"a": 1, "\u0061": 3})", "\"a\" is given twice"},
      {"65 levels", deep, "deeper than 64"},
      {"65 levels of objects",
       [] {
         std::string text;
         for (int i = 0; i < 65; ++i) text += "{\"a\":";
         return text;
       }(),
       "deeper than 64"},
      {"invalid UTF-8", "\"\xc3(\"", "encoding"},
      {"overlong UTF-8", "\"\xc0\xaf\"", "encoding"},
      {"raw surrogate", "\"\xed\xa0\x80\"", "encoding"},
      {"lone high surrogate", R"("\ud800")", "surrogate"},
      {"lone low surrogate", R"(["\udc00"])", "surrogate"},
      {"lone low surrogate in a key", R"({"\udfff": 1})", "surrogate"},
      {"control character in a string", "\"a\nb\"", "byte 2"},
      {"single quotes", "{'a': 1}", "byte 1"},
      {"Python literal", "[None]", "byte 2"},
      {"number beyond double", "1e400", "too big"},
      {"number just beyond double", "[2e308]", "a number beyond double"},
      {"integer beyond double", std::string(400, '9'), "too big"},
      {"Inf", "[Inf]", "a number that is not NaN"},
      {"-NaN", "[-NaN]", "a number that is not NaN"},
      {"leading plus", "+1", "byte 0"},
      {"leading zero", "[01]", "byte 2"},
  };
  for (const Row& row : rows) {
    const auto json = Json::Parse(row.text, "t.json");
    ASSERT_FALSE(json.ok()) << row.name;
    EXPECT_EQ(json.status().code(), Code::kCorruptFile) << row.name;
    EXPECT_TRUE(json.status().message().starts_with("t.json: ")) << json.status().message();
    EXPECT_NE(json.status().message().find(row.message), std::string::npos)
        << row.name << ": " << json.status().message();
  }
}

TEST(Json, TakesSixtyFourLevelsAndStopsMillionsEarly) {
  EXPECT_TRUE(Json::Parse(std::string(64, '[') + std::string(64, ']'), "t").ok());
  EXPECT_FALSE(Json::Parse(std::string(10'000'000, '['), "t").ok());
}

TEST(Json, StopsAtTheValueLimit) {
  std::string text = "[0";
  for (int i = 0; i < (1 << 22); ++i) text += ",0";
  const auto json = Json::Parse(text, "t.json");
  ASSERT_FALSE(json.ok());
  EXPECT_NE(json.status().message().find("more than 4194304 values"), std::string::npos);
}

TEST(Json, HostileKeysDoNotReachTheTerminal) {
  const auto json = Json::Parse(R"({"\u001b[31m": 1, "\u001b[31m": 2})", "t.json");
  ASSERT_FALSE(json.ok());
  EXPECT_NE(json.status().message().find("\\x1b[31m"), std::string::npos);
}

TEST(Json, EveryTruncationAndManyFlipsReturn) {
  const std::string text = R"({"a": [1, 2.5, -3e2, NaN, "x\u00e9"], "b": {"__float__": "NaN"}})";
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(Json::Parse(text.substr(0, size), "t").ok()) << size;
  }
  std::mt19937 random(1);
  for (int i = 0; i < 5000; ++i) {
    std::string flipped = text;
    flipped[random() % text.size()] = static_cast<char>(random());
    const auto json = Json::Parse(flipped, "t");
    EXPECT_EQ(json.ok(), json.status().message().empty());
  }
}

TEST(Config, FirstKeyPresentWinsAndNullIsAbsent) {
  const Config config = Conf(R"({"d_model": 8, "hidden_size": 16, "n": null,
                                 "text_config": {"n": 3, "hidden_size": 99, "deep": 4}})");
  EXPECT_EQ(*config.Int({"hidden_size", "d_model"}, {}), 16);
  EXPECT_EQ(*config.Int({"d_model", "hidden_size"}, {}), 8);
  EXPECT_EQ(*config.Int({"n"}, 5), 3);
  EXPECT_EQ(*config.Int({"deep"}, {}), 4);
  EXPECT_EQ(*config.Int({"absent"}, 5), 5);
  EXPECT_TRUE(config.Has({"deep"}));
  EXPECT_FALSE(config.Has({"absent"}));
  EXPECT_FALSE(Config().Has({"x"}));
}

TEST(Config, ReadsTypes) {
  const Config config = Conf(R"({"i": 2, "f": 2.0, "x": 1.5, "b": true, "s": "abc", "auto": "auto",
                                 "list": [1, 2.0], "object": {"k": 1}})");
  EXPECT_EQ(*config.Int({"f"}, {}), 2);
  EXPECT_EQ(*config.Double({"i"}, {}), 2.0);
  EXPECT_EQ(*config.Double({"x"}, {}), 1.5);
  EXPECT_EQ(*config.Double({"absent"}, 0.25), 0.25);
  EXPECT_TRUE(*config.Bool({"b"}, false));
  EXPECT_TRUE(*config.Bool({"absent"}, true));
  EXPECT_EQ(*config.String({"s"}, {}), "abc");
  EXPECT_EQ(*config.String({"absent"}, "d"), "d");
  EXPECT_EQ(*config.IntOrAuto({"auto"}, 48), 48);
  EXPECT_EQ(*config.IntOrAuto({"i"}, 48), 2);
  EXPECT_EQ(*config.IntList({"list"}), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(*config.IntList({"i"}), std::vector<int64_t>{2});
  EXPECT_TRUE(config.IntList({"absent"})->empty());
  EXPECT_EQ(*config.Object("object")->Int({"k"}, {}), 1);
  EXPECT_FALSE(config.Object("absent")->Has({"k"}));
}

TEST(Config, ErrorsNameFileKeyAndValue) {
  const Config config = Conf(R"({"x": 1.5, "s": "abc", "big": 1e300, "list": [1, "two"],
                                 "o": {"k": []}, "inf": Infinity})");
  const auto message = [](const auto& result) {
    EXPECT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), Code::kCorruptFile);
    return result.status().message();
  };
  EXPECT_EQ(message(config.Int({"x"}, {})), "config.json: x is 1.5, expected an integer");
  EXPECT_EQ(message(config.Int({"a", "b"}, {})), "config.json: a or b is missing");
  EXPECT_EQ(message(config.Int({"s"}, 1)), "config.json: s is \"abc\", expected an integer");
  EXPECT_EQ(message(config.Int({"inf"}, 1)), "config.json: inf is inf, expected an integer");
  EXPECT_EQ(message(config.Int({"big"}, 1)),
            "config.json: big is 1.0000000000000001e+300, expected an integer");
  EXPECT_EQ(message(config.IntOrAuto({"s"}, 1)),
            "config.json: s is \"abc\", expected an integer or \"auto\"");
  EXPECT_EQ(message(config.Double({"s"}, {})), "config.json: s is \"abc\", expected a number");
  EXPECT_EQ(message(config.Double({"a"}, {})), "config.json: a is missing");
  EXPECT_EQ(message(config.Bool({"x"}, true)), "config.json: x is 1.5, expected true or false");
  EXPECT_EQ(message(config.String({"x"}, {})), "config.json: x is 1.5, expected a string");
  EXPECT_EQ(message(config.IntList({"list"})),
            "config.json: list[1] is \"two\", expected an integer");
  EXPECT_EQ(message(config.IntList({"s"})),
            "config.json: s is \"abc\", expected an integer or a list of integers");
  EXPECT_EQ(message(config.Object("x")), "config.json: x is 1.5, expected an object");
  EXPECT_EQ(message(config.Object("o")->Int({"k"}, {})),
            "config.json: o: k is an array of 0, expected an integer");
}

}  // namespace
}  // namespace adder
