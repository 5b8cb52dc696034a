// Regular expressions of tokenizer.json (Oniguruma, Ruby syntax) as PCRE2 ones.
#pragma once

#include <string>
#include <string_view>

#include "runtime/status.h"

namespace adder {

// Gives a pattern that means under PCRE2 (UTF, Unicode properties) what `pattern` means under
// Oniguruma. The two differ in the white space of \s (U+180E), in \w, \h and \v, in anchors, in
// sets within sets, and in {n,m}+; what is not rewritten here and not the same in both is
// kUnsupported with the construct's name.
Result<std::string> TranslateRegex(std::string_view pattern);

}  // namespace adder
