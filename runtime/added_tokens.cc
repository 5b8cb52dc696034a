#include "runtime/added_tokens.h"

#include <algorithm>

#include "runtime/unicode.h"
#include "runtime/utf8.h"

namespace adder {
namespace {

// Offset of the character that ends at `end`, which is above 0.
size_t PreviousChar(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

char32_t CharAt(std::string_view text, size_t at) { return ReadUtf8(text, at).code_point; }

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::span<const AddedToken> tokens) : tokens_(tokens) {
  for (const AddedToken& token : tokens) ++first_[static_cast<uint8_t>(token.content[0]) + 1u];
  for (size_t byte = 0; byte < 256; ++byte) first_[byte + 1] += first_[byte];
}

const AddedToken* AddedTokenFinder::LongestAt(std::string_view text, size_t at) const {
  const uint8_t lead = static_cast<uint8_t>(text[at]);
  const AddedToken* low = tokens_.data() + first_[lead];
  const AddedToken* high = tokens_.data() + first_[lead + 1u];
  const AddedToken* longest = nullptr;
  // Tokens [low, high) agree with the text in their first `length` bytes.
  for (size_t length = 1; low != high; ++length) {
    if (low->content.size() == length) longest = low++;
    if (low == high || at + length == text.size()) break;
    const auto next = static_cast<uint8_t>(text[at + length]);
    const auto byte = [length](const AddedToken& t) {
      return static_cast<uint8_t>(t.content[length]);
    };
    low = std::lower_bound(low, high, next,
                           [&](const AddedToken& t, uint8_t value) { return byte(t) < value; });
    high = std::upper_bound(low, high, next,
                            [&](uint8_t value, const AddedToken& t) { return value < byte(t); });
  }
  return longest;
}

void AddedTokenFinder::AddMatch(const AddedToken& token, std::string_view text, size_t begin,
                                size_t* done, std::vector<AddedMatch>* matches) {
  size_t end = begin + token.content.size();
  if (token.flags & kAddedSingleWord) {
    if (begin > 0 && IsWord(CharAt(text, PreviousChar(text, begin)))) return;
    if (end < text.size() && IsWord(CharAt(text, end))) return;
  }
  if (token.flags & kAddedStripLeft) {
    // Not into what the match before has taken.
    while (begin > *done && IsWhiteSpace(CharAt(text, PreviousChar(text, begin)))) {
      begin = PreviousChar(text, begin);
    }
  }
  if (token.flags & kAddedStripRight) {
    while (end < text.size() && IsWhiteSpace(CharAt(text, end))) end += ReadUtf8(text, end).length;
  }
  // A token that begins with white space may lie in what the match before has stripped.
  begin = std::max(begin, *done);
  end = std::max(end, begin);
  matches->push_back({{begin, end}, token.id});
  *done = end;
}

}  // namespace adder
