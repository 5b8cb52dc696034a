// Regular expressions of pre-tokenizers, over PCRE2 in UTF mode with Unicode properties.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "runtime/status.h"

namespace adder {

// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin;
  size_t end;
};

class Regex {
 public:
  // Patterns are PCRE2 syntax; one that PCRE2 refuses is kUnsupported with PCRE2's reason.
  static Result<Regex> Compile(std::string_view pattern);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Appends the successive matches in `text`, which must be valid UTF-8. A match that is empty and
  // touches the one before it is left out. Running into the match limit is kUnsupported.
  // Safe to call from several threads at once.
  Status FindAll(std::string_view text, std::vector<TextRange>* matches) const;

 private:
  struct Impl;
  explicit Regex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace adder
