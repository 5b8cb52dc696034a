// The steps of normalizers and pre-tokenizers: some rewrite a piece of text, some split it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/regex.h"
#include "runtime/status.h"
#include "runtime/tokenizer_section.h"

namespace adder {

class TextStep {
 public:
  // Borrows the strings of `record`.
  static Result<TextStep> Make(const TextStepRecord& record);

  bool is_split() const { return IsSplit(record_.kind); }

  // Steps that rewrite: replaces `out` by the rewritten `text` (valid UTF-8). `text_start`: this is
  // the start of the whole text. A result longer than `limit` is kUnsupported.
  Status Rewrite(std::string_view text, bool text_start, size_t limit, std::string* out) const;

  // Steps that split: replaces `pieces` by the pieces of `text`, in order, none of them empty.
  Status Split(std::string_view text, std::vector<TextRange>* pieces) const;

 private:
  explicit TextStep(const TextStepRecord& record) : record_(record) {}
  Status FindMatches(std::string_view text, std::vector<TextRange>* matches) const;

  TextStepRecord record_;
  std::optional<Regex> regex_;
};

Result<std::vector<TextStep>> MakeTextSteps(std::span<const TextStepRecord> records);

// Runs steps that rewrite, one after the other.
Result<std::string> RewriteAll(std::span<const TextStep> steps, std::string_view text,
                               bool text_start, size_t limit);

// How long a text of `bytes` may become on its way through the steps. NFKD alone makes up to 11
// times as much of it; only a hostile file wants more than this.
constexpr size_t RewriteLimit(size_t bytes) { return 32 * bytes + 65536; }

}  // namespace adder
