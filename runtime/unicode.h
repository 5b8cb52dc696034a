// Unicode normalization forms and the character classes that tokenizers ask for, over utf8proc.
#pragma once

#include <string>
#include <string_view>

#include "runtime/status.h"

namespace adder {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Appends `text` (valid UTF-8) in `form`. Takes time linear in the text (up to the sorting of runs
// of combining marks, n log n).
Status AppendNormalized(std::string_view text, NormalForm form, std::string* out);

bool IsNumeric(char32_t c);  // general category N
bool IsPunctuation(
    char32_t c);  // general category P, or ASCII punctuation (which includes $+<=>^`|~)
bool IsWhiteSpace(char32_t c);  // property White_Space
bool IsWord(char32_t c);        // \w of Unicode: alphabetic, mark, digit, connector, joiner

}  // namespace adder
