#include "runtime/text_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "runtime/utf8.h"

namespace adder {
namespace {

TextStream Make(std::vector<std::string> stops, size_t max_piece_bytes = 16) {
  Result<TextStream> stream = TextStream::Create(std::move(stops), max_piece_bytes);
  EXPECT_TRUE(stream.ok()) << stream.status().message();
  return std::move(*stream);
}

// The definition, on the whole text.
std::string Expected(const std::string& bytes, const std::vector<std::string>& stops,
                     bool* stopped) {
  std::string text;
  AppendLossyUtf8(bytes, &text);
  size_t best_end = std::string::npos;
  size_t best_begin = text.size();
  for (const std::string& stop : stops) {
    const size_t begin = text.find(stop);  // the first occurrence also ends first
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (end < best_end || (end == best_end && begin < best_begin)) {
      best_end = end;
      best_begin = begin;
    }
  }
  *stopped = best_end != std::string::npos;
  return text.substr(0, best_begin);
}

// What must have been released after `bytes` when no stop string is complete: all but a partial
// character and the longest end that begins a stop string.
std::string ReleasedSoFar(const std::string& bytes, const std::vector<std::string>& stops) {
  size_t whole = 0;
  while (whole < bytes.size()) {
    const Utf8Char c = ReadUtf8(bytes, whole);
    if (c.kind == Utf8Char::Kind::kIncomplete) break;
    whole += c.length;
  }
  std::string text;
  AppendLossyUtf8(std::string_view(bytes).substr(0, whole), &text);
  size_t held = 0;
  for (const std::string& stop : stops) {
    for (size_t n = 1; n < stop.size(); ++n) {
      if (text.ends_with(stop.substr(0, n))) held = std::max(held, n);
    }
  }
  return text.substr(0, text.size() - held);
}

TEST(TextStream, HoldsBackTheBeginningOfACharacter) {
  TextStream stream = Make({});
  EXPECT_EQ(stream.Push("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.Push("\xA6"), "");
  EXPECT_EQ(stream.Push("\x99 b"), "\xF0\x9F\xA6\x99 b");
  EXPECT_EQ(stream.Push("\xE4\xB8"), "");
  EXPECT_EQ(stream.Flush(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.Flush(), "");
  EXPECT_EQ(stream.Push("x"), "");
}

TEST(TextStream, ReplacesMaximalSubparts) {
  TextStream stream = Make({});
  const std::string r(kReplacementCharacter);
  EXPECT_EQ(stream.Push("\xFF"), r);
  EXPECT_EQ(stream.Push("\xE2\x96"), "");
  EXPECT_EQ(stream.Push("a"), r + "a");  // two bytes, one maximal subpart
  EXPECT_EQ(stream.Push("\xED\xA0\x80"), r + r + r);
  EXPECT_EQ(stream.Push("\x80"), r);
  EXPECT_FALSE(stream.stopped());
}

TEST(TextStream, StopStringOverManyTokens) {
  TextStream stream = Make({"</s>", "User:"});
  EXPECT_EQ(stream.Push("Hi <"), "Hi ");
  EXPECT_EQ(stream.Push("/"), "");
  EXPECT_EQ(stream.Push("p> Us"), "</p> ");
  EXPECT_EQ(stream.Push("e U"), "Use ");
  EXPECT_EQ(stream.Push("ser"), "");
  EXPECT_FALSE(stream.stopped());
  EXPECT_EQ(stream.Push(": more"), "");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.Push("even more"), "");
  EXPECT_EQ(stream.Flush(), "");
  stream.Reset();
  EXPECT_FALSE(stream.stopped());
  EXPECT_EQ(stream.Push("User"), "");
  EXPECT_EQ(stream.Flush(), "User");
}

TEST(TextStream, OverlappingStopStrings) {
  TextStream shorter_first = Make({"abcd", "bc"});
  EXPECT_EQ(shorter_first.Push("xabcd"), "xa");
  EXPECT_TRUE(shorter_first.stopped());
  TextStream same_end = Make({"cd", "abcd"});
  EXPECT_EQ(same_end.Push("xabcd"), "x");
  EXPECT_TRUE(same_end.stopped());
  TextStream self = Make({"aab"});
  EXPECT_EQ(self.Push("aaa"), "a");
  EXPECT_EQ(self.Push("a"), "a");
  EXPECT_EQ(self.Push("b"), "");
  EXPECT_TRUE(self.stopped());
}

TEST(TextStream, MultibyteStopString) {
  TextStream stream = Make({"\xE2\x96\x81\xC3\xA9"});
  EXPECT_EQ(stream.Push("a\xE2"), "a");
  EXPECT_EQ(stream.Push("\x96\x81\xC3"), "");
  EXPECT_EQ(stream.Push("\xA8"), "\xE2\x96\x81\xC3\xA8");
  EXPECT_EQ(stream.Push("\xE2\x96\x81\xC3\xA9 b"), "");
  EXPECT_TRUE(stream.stopped());
}

TEST(TextStream, StopStringCompletedByTheFlush) {
  TextStream stream = Make({"a\xEF\xBF\xBD"});
  EXPECT_EQ(stream.Push("ba\xE2\x96"), "b");
  EXPECT_EQ(stream.Flush(), "");
  EXPECT_TRUE(stream.stopped());
}

TEST(TextStream, RefusesBadStopStrings) {
  EXPECT_EQ(TextStream::Create({"a", ""}, 16).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(TextStream::Create({"\xC3"}, 16).status().code(), Code::kInvalidArgument);
}

TEST(TextStream, AnyChunksEqualTheDefinition) {
  std::mt19937 generator(3);
  const auto below = [&](size_t n) { return static_cast<size_t>(generator()) % n; };
  // Units from which both texts and stop strings are drawn, so that near misses are common.
  const std::vector<std::string> units = {
      "a", "b", "a", "\xC3\xA9", "\xE2\x96\x81", "\xF0\x9F\xA6\x99", "\xEF\xBF\xBD"};
  const std::vector<std::string> broken = {"\xC3",         "\xE2\x96", "\xA9",
                                           "\xF0\x9F\xA6", "\xFF",     "\xED\xA0"};
  size_t stops_seen = 0;
  size_t longest_text = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes;
    for (size_t i = below(24); i > 0; --i) {
      bytes += below(6) == 0 ? broken[below(broken.size())] : units[below(units.size())];
    }
    std::vector<std::string> stops(below(4));
    for (std::string& stop : stops) {
      for (size_t i = 1 + below(4); i > 0; --i) stop += units[below(units.size())];
    }
    bool expect_stopped = false;
    const std::string expected = Expected(bytes, stops, &expect_stopped);

    TextStream stream = Make(stops, 5);
    std::string out;
    size_t at = 0;
    while (at < bytes.size()) {
      const size_t n = std::min(below(6), bytes.size() - at);
      const std::string_view piece = stream.Push(std::string_view(bytes).substr(at, n));
      ASSERT_EQ(ValidUtf8Prefix(piece), piece.size());
      out += piece;
      at += n;
      if (stream.stopped()) break;
      ASSERT_EQ(out, ReleasedSoFar(bytes.substr(0, at), stops));
      if (below(3) == 0) {  // another stream takes over
        std::string held;
        stream.AppendHeld(&held);
        stream = Make(stops, 5);
        ASSERT_EQ(stream.Push(held), "");
      }
    }
    out += stream.Flush();
    ASSERT_EQ(out, expected) << "round " << round;
    ASSERT_EQ(stream.stopped(), expect_stopped);
    stops_seen += expect_stopped;
    longest_text = std::max(longest_text, out.size());
  }
  EXPECT_GT(stops_seen, 1000u);
  EXPECT_GT(longest_text, 30u);
}

}  // namespace
}  // namespace adder
