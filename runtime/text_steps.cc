#include "runtime/text_steps.h"

#include <algorithm>

#include "runtime/byte_chars.h"
#include "runtime/unicode.h"
#include "runtime/utf8.h"

namespace adder {
namespace {

Status TooLong(size_t limit) {
  return Error(Code::kUnsupported, "tokenizer: the normalized text exceeds %zu bytes", limit);
}

void FindLiteral(std::string_view text, std::string_view literal, std::vector<TextRange>* matches) {
  for (size_t at = text.find(literal); at != std::string_view::npos;
       at = text.find(literal, at + literal.size())) {
    matches->push_back({at, at + literal.size()});
  }
}

template <typename Predicate>
void FindCharacters(std::string_view text, Predicate is_match, std::vector<TextRange>* matches) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = ReadUtf8(text, at);
    if (is_match(c.code_point)) matches->push_back({at, at + c.length});
    at += c.length;
  }
}

// Walks `text` as alternating gaps and matches: calls visit(range, is_match) on each, gaps only
// when they are not empty.
template <typename Visit>
void VisitParts(const std::vector<TextRange>& matches, size_t size, Visit visit) {
  size_t at = 0;
  for (const TextRange& match : matches) {
    if (match.begin > at) visit(TextRange{at, match.begin}, false);
    visit(match, true);
    at = match.end;
  }
  if (at < size) visit(TextRange{at, size}, false);
}

struct Part {
  TextRange range;
  bool is_match;
};

// Joins parts as `behavior` says. Only the last part decides, so that one pass is enough:
// a match joins the gap before it (kMergedWithPrevious) or the part before it if that is one of
// its own kind (kContiguous). kMergedWithNext is the mirror image.
std::vector<TextRange> JoinParts(const std::vector<Part>& parts, SplitBehavior behavior) {
  std::vector<TextRange> pieces;
  bool previous = false;
  if (behavior == SplitBehavior::kMergedWithNext) {
    for (size_t i = parts.size(); i-- > 0;) {
      const Part& part = parts[i];
      if (part.is_match && !previous && !pieces.empty()) {
        pieces.back().begin = part.range.begin;
      } else {
        pieces.push_back(part.range);
      }
      previous = part.is_match;
    }
    std::reverse(pieces.begin(), pieces.end());
    return pieces;
  }
  for (const Part& part : parts) {
    bool join = false;
    if (behavior == SplitBehavior::kMergedWithPrevious) join = part.is_match && !previous;
    if (behavior == SplitBehavior::kContiguous) join = part.is_match == previous;
    if (join && !pieces.empty()) {
      pieces.back().end = part.range.end;
    } else if (behavior != SplitBehavior::kRemoved || !part.is_match) {
      pieces.push_back(part.range);
    }
    previous = part.is_match;
  }
  return pieces;
}

}  // namespace

Result<TextStep> TextStep::Make(const TextStepRecord& record) {
  TextStep step(record);
  if (record.kind == TextStepKind::kSplitRegex || record.kind == TextStepKind::kReplaceRegex) {
    ADDER_ASSIGN_OR_RETURN(step.regex_, Regex::Compile(record.a));
  }
  return step;
}

Status TextStep::FindMatches(std::string_view text, std::vector<TextRange>* matches) const {
  switch (record_.kind) {
    case TextStepKind::kSplitRegex:
    case TextStepKind::kReplaceRegex:
      return regex_->FindAll(text, matches);
    case TextStepKind::kSplitPunctuation:
      FindCharacters(text, IsPunctuation, matches);
      return {};
    case TextStepKind::kSplitDigits:
      FindCharacters(text, IsNumeric, matches);
      return {};
    default:
      FindLiteral(text, record_.a, matches);
      return {};
  }
}

Status TextStep::Rewrite(std::string_view text, bool text_start, size_t limit,
                         std::string* out) const {
  out->clear();
  switch (record_.kind) {
    case TextStepKind::kNfc:
      ADDER_RETURN_IF_ERROR(AppendNormalized(text, NormalForm::kNfc, out));
      break;
    case TextStepKind::kNfd:
      ADDER_RETURN_IF_ERROR(AppendNormalized(text, NormalForm::kNfd, out));
      break;
    case TextStepKind::kNfkc:
      ADDER_RETURN_IF_ERROR(AppendNormalized(text, NormalForm::kNfkc, out));
      break;
    case TextStepKind::kNfkd:
      ADDER_RETURN_IF_ERROR(AppendNormalized(text, NormalForm::kNfkd, out));
      break;
    case TextStepKind::kPrepend:
      if (!text.empty()) out->append(record_.a);
      out->append(text);
      break;
    case TextStepKind::kEnsurePrefix:
      if (!text.starts_with(record_.a) && (text_start || !(record_.flags & kStepTextStart))) {
        out->append(record_.a);
      }
      out->append(text);
      break;
    case TextStepKind::kByteChars:
      out->reserve(text.size() + text.size() / 4);
      for (const char c : text) AppendUtf8(kByteToChar[static_cast<uint8_t>(c)], out);
      break;
    default: {
      std::vector<TextRange> matches;
      ADDER_RETURN_IF_ERROR(FindMatches(text, &matches));
      size_t at = 0;
      for (const TextRange& match : matches) {
        out->append(text.substr(at, match.begin - at)).append(record_.b);
        if (out->size() > limit) return TooLong(limit);
        at = match.end;
      }
      out->append(text.substr(at));
    }
  }
  return out->size() > limit ? TooLong(limit) : Status();
}

Status TextStep::Split(std::string_view text, std::vector<TextRange>* pieces) const {
  const auto behavior = static_cast<SplitBehavior>(record_.flags & kStepBehaviorMask);
  const bool invert = (record_.flags & kStepInvert) != 0;
  pieces->clear();
  std::vector<TextRange> matches;
  ADDER_RETURN_IF_ERROR(FindMatches(text, &matches));
  if (behavior == SplitBehavior::kIsolated) {  // the usual case needs no second list
    VisitParts(matches, text.size(), [&](TextRange range, bool) { pieces->push_back(range); });
  } else {
    std::vector<Part> parts;
    VisitParts(matches, text.size(), [&](TextRange range, bool is_match) {
      parts.push_back({range, is_match != invert});
    });
    *pieces = JoinParts(parts, behavior);
  }
  std::erase_if(*pieces, [](const TextRange& piece) { return piece.begin == piece.end; });
  return {};
}

Result<std::vector<TextStep>> MakeTextSteps(std::span<const TextStepRecord> records) {
  std::vector<TextStep> steps;
  for (const TextStepRecord& record : records) {
    ADDER_ASSIGN_OR_RETURN(TextStep step, TextStep::Make(record));
    steps.push_back(std::move(step));
  }
  return steps;
}

Result<std::string> RewriteAll(std::span<const TextStep> steps, std::string_view text,
                               bool text_start, size_t limit) {
  std::string current(text);
  std::string next;
  for (const TextStep& step : steps) {
    ADDER_RETURN_IF_ERROR(step.Rewrite(current, text_start, limit, &next));
    current.swap(next);
  }
  return current;
}

}  // namespace adder
