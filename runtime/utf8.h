// UTF-8, one character at a time, with the replacement rule of the Unicode standard: each maximal
// subpart of an ill-formed sequence counts as one U+FFFD.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace adder {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

struct Utf8Char {
  enum class Kind : uint8_t {
    kValid,
    kInvalid,     // `length` bytes that no continuation can make valid
    kIncomplete,  // the text ends inside a character: `length` bytes up to its end
  };
  Kind kind;
  uint32_t length;
  char32_t code_point;  // of kValid
};

// Reads what begins at `offset`, which must be inside `text`.
Utf8Char ReadUtf8(std::string_view text, size_t offset);

// Offset of the first byte that is not part of valid UTF-8; text.size() when all of it is valid.
size_t ValidUtf8Prefix(std::string_view text);

// Appends the UTF-8 of `code_point`, a Unicode scalar value.
void AppendUtf8(char32_t code_point, std::string* out);

// Appends `bytes` with every ill-formed part replaced by U+FFFD.
void AppendLossyUtf8(std::string_view bytes, std::string* out);

}  // namespace adder
