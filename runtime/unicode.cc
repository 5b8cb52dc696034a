#include "runtime/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "runtime/utf8.h"

namespace adder {
namespace {

utf8proc_category_t Category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

int CombiningClass(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

// Sorts each run of combining marks by class, keeping the order within a class.
// utf8proc_decompose does this too, in time quadratic in the length of a run.
void SortCombiningMarks(std::vector<utf8proc_int32_t>* text) {
  for (auto begin = text->begin(); begin != text->end();) {
    if (CombiningClass(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end =
        std::find_if(begin, text->end(), [](auto c) { return CombiningClass(c) == 0; });
    std::stable_sort(begin, end,
                     [](auto a, auto b) { return CombiningClass(a) < CombiningClass(b); });
    begin = end;
  }
}

}  // namespace

Status AppendNormalized(std::string_view text, NormalForm form, std::string* out) {
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  // Nothing below U+0300 changes under NFC, nor ASCII under any form.
  const auto first_byte_that_may_change =
      static_cast<uint8_t>(form == NormalForm::kNfc ? 0xCC : 0x80);
  if (std::all_of(text.begin(), text.end(),
                  [&](char c) { return static_cast<uint8_t>(c) < first_byte_that_may_change; })) {
    out->append(text);
    return {};
  }

  const int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0);
  std::vector<utf8proc_int32_t> chars;
  chars.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = ReadUtf8(text, at);
    at += c.length;
    utf8proc_int32_t parts[32];  // the longest decomposition has 18
    const utf8proc_ssize_t n =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.code_point), parts, 32,
                                static_cast<utf8proc_option_t>(options), nullptr);
    if (n < 0 || n > 32) {
      return Error(Code::kInternal, "utf8proc: U+%04X decomposes into %lld",
                   static_cast<unsigned>(c.code_point), static_cast<long long>(n));
    }
    chars.insert(chars.end(), parts, parts + n);
  }
  SortCombiningMarks(&chars);
  if (compose) {
    const utf8proc_ssize_t n = utf8proc_normalize_utf32(
        chars.data(), static_cast<utf8proc_ssize_t>(chars.size()),
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (n < 0) return Error(Code::kInternal, "utf8proc: %s", utf8proc_errmsg(n));
    chars.resize(static_cast<size_t>(n));
  }
  for (const utf8proc_int32_t c : chars) AppendUtf8(static_cast<char32_t>(c), out);
  return {};
}

bool IsNumeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const utf8proc_category_t category = Category(c);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool IsPunctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) ||
           (c >= 0x7B && c <= 0x7E);
  }
  const utf8proc_category_t category = Category(c);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool IsWhiteSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool IsWord(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
         category == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D ||
         // Symbols that are alphabetic: letters in circles and squares.
         (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

}  // namespace adder
