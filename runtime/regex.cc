#include "runtime/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string>

#include "runtime/utf8.h"

namespace adder {
namespace {

// Backtracking steps of one search. Patterns in use need a few per byte of a word, so that this is
// reached by words of many megabytes, or by a pattern that is out of hand.
constexpr uint32_t kMatchLimit = 50'000'000;
constexpr uint32_t kHeapLimitKiB = 64 * 1024;  // of the interpreter's backtracking frames

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};

std::string ErrorText(int code) {
  PCRE2_UCHAR text[160] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return std::string(reinterpret_cast<const char*>(text));
}

}  // namespace

struct Regex::Impl {
  std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>> code;
  std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>> limits;
};

Regex::Regex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::Compile(std::string_view pattern) {
  std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context_free>> context(
      pcre2_compile_context_create(nullptr));
  auto impl = std::make_unique<Impl>();
  impl->limits.reset(pcre2_match_context_create(nullptr));
  if (!context || !impl->limits) return Error(Code::kOutOfMemory, "no memory for PCRE2 contexts");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);  // do not depend on how PCRE2 was built
  pcre2_set_match_limit(impl->limits.get(), kMatchLimit);
  pcre2_set_heap_limit(impl->limits.get(), kHeapLimitKiB);

  int code = 0;
  PCRE2_SIZE offset = 0;
  impl->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset,
                                 context.get()));
  if (!impl->code) {
    return Error(Code::kUnsupported, "regular expression \"%.*s\": %s at byte %zu",
                 static_cast<int>(pattern.size()), pattern.data(), ErrorText(code).c_str(), offset);
  }
  // Where the system forbids generated code this fails, and pcre2_match interprets the pattern.
  pcre2_jit_compile(impl->code.get(), PCRE2_JIT_COMPLETE);
  return Regex(std::move(impl));
}

Status Regex::FindAll(std::string_view text, std::vector<TextRange>* matches) const {
  std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>> data(
      pcre2_match_data_create(1, nullptr));
  if (!data) return Error(Code::kOutOfMemory, "no memory for PCRE2 match data");
  const PCRE2_SIZE* const match = pcre2_get_ovector_pointer(data.get());

  size_t at = 0;            // where the next search begins
  size_t previous_end = 0;  // end of the last match
  bool any_before = false;
  while (at <= text.size()) {
    const auto search = [&](uint32_t options) {
      return pcre2_match(impl_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                         at, PCRE2_NO_UTF_CHECK | options, data.get(), impl_->limits.get());
    };
    int found = search(0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = search(PCRE2_NO_JIT);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      return Error(Code::kUnsupported, "regular expression at byte %zu of %zu: %s", at, text.size(),
                   ErrorText(found).c_str());
    }
    const TextRange range{match[0], match[1]};
    if (range.begin < at || range.end < range.begin || range.end > text.size()) {
      return Error(Code::kUnsupported, "regular expression moves backwards at byte %zu", at);
    }
    if (range.begin == range.end && any_before && range.begin == previous_end) {
      // Nothing new here: look on from the next character.
      at += at < text.size() ? ReadUtf8(text, at).length : 1;
      continue;
    }
    matches->push_back(range);
    any_before = true;
    previous_end = range.end;
    at = range.end;
  }
  return {};
}

}  // namespace adder
