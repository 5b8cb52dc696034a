// Finds added tokens (special tokens and such) in text.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/regex.h"
#include "runtime/tokenizer_section.h"

namespace adder {

struct AddedMatch {
  TextRange range;
  uint32_t id;
};

class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  // `tokens` are sorted by content, without duplicates, none empty; borrowed.
  explicit AddedTokenFinder(std::span<const AddedToken> tokens);

  // Replaces `matches` by the tokens in `text`: leftmost, then longest, from left to right.
  // Tokens whose id `skip` accepts are passed over, and with them the text that they cover.
  // A range includes the white space that the token strips.
  template <typename Skip>
  void FindAll(std::string_view text, Skip skip, std::vector<AddedMatch>* matches) const {
    matches->clear();
    if (tokens_.empty()) return;
    size_t done = 0;  // end of the last range
    for (size_t at = 0; at < text.size();) {
      const AddedToken* const token = LongestAt(text, at);
      if (token == nullptr) {
        ++at;
        continue;
      }
      const size_t begin = at;
      at += token->content.size();
      if (!skip(token->id)) AddMatch(*token, text, begin, &done, matches);
    }
  }

 private:
  const AddedToken* LongestAt(std::string_view text, size_t at) const;
  static void AddMatch(const AddedToken& token, std::string_view text, size_t begin, size_t* done,
                       std::vector<AddedMatch>* matches);

  std::span<const AddedToken> tokens_;
  std::array<uint32_t, 257> first_{};  // tokens that begin with byte b: first_[b] .. first_[b + 1]
};

}  // namespace adder
