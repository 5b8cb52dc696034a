#include "converter/tokenizer_pipeline.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "converter/regex_syntax.h"
#include "runtime/regex.h"
#include "runtime/utf8.h"

namespace adder {
namespace {

using Step = TokenizerParts::Step;

constexpr int kMaxNesting = 8;  // of Sequences

// What ByteLevel splits at when use_regex is set: the words of GPT-2.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Status Unsupported(const std::string& where, std::string_view what) {
  return Error(Code::kUnsupported, "%s: \"%.*s\" is not supported", where.c_str(),
               static_cast<int>(what.size()), what.data());
}

// Calls visit(component, its type, name for errors) on `json`, or on the members of the Sequence
// that it is, in order.
template <typename Visit>
Status VisitComponents(const JsonValue& json, const char* list_key, const std::string& where,
                       int depth, Visit visit) {
  ADDER_RETURN_IF_ERROR(ExpectObject(json, where));
  ADDER_ASSIGN_OR_RETURN(const std::string_view type, StringMember(json, "type", where));
  if (type != "Sequence") return visit(json, type, std::string(where).append(": ").append(type));
  if (depth == kMaxNesting) return Unsupported(where, "Sequences nested deeper than 8");
  ADDER_ASSIGN_OR_RETURN(const JsonValue* list, ArrayMember(json, list_key, where));
  for (const JsonValue& item : list->GetArray()) {
    ADDER_RETURN_IF_ERROR(VisitComponents(item, list_key, where, depth + 1, visit));
  }
  return {};
}

Result<std::string> CompilablePattern(std::string_view pattern, const std::string& where) {
  Result<std::string> translated = TranslateRegex(pattern);
  if (!translated.ok()) return Annotate(translated.status(), where);
  Result<Regex> compiled = Regex::Compile(*translated);
  if (!compiled.ok()) return Annotate(compiled.status(), where);
  return translated;
}

// {"String": text} or {"Regex": pattern}: sets step->a, and step->kind to the kind that fits.
Status SetPattern(const JsonValue& json, TextStepKind literal, TextStepKind regex,
                  const std::string& where, Step* step) {
  ADDER_ASSIGN_OR_RETURN(const JsonValue* pattern, ObjectMember(json, "pattern", where));
  ADDER_ASSIGN_OR_RETURN(const JsonValue* text, FindMember(*pattern, "String", where));
  const std::string inner = where + ": pattern";
  if (text != nullptr) {
    ADDER_ASSIGN_OR_RETURN(step->a, StringMember(*pattern, "String", inner));
    step->kind = literal;
  } else {
    ADDER_ASSIGN_OR_RETURN(const std::string_view found, StringMember(*pattern, "Regex", inner));
    ADDER_ASSIGN_OR_RETURN(step->a, CompilablePattern(found, inner));
    step->kind = regex;
  }
  return step->a.empty() ? Unsupported(where, "empty pattern") : Status();
}

Result<uint32_t> Behavior(const JsonValue& json, std::string_view fallback,
                          const std::string& where) {
  constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kNames = {
      {{"Removed", SplitBehavior::kRemoved},
       {"Isolated", SplitBehavior::kIsolated},
       {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
       {"MergedWithNext", SplitBehavior::kMergedWithNext},
       {"Contiguous", SplitBehavior::kContiguous}}};
  ADDER_ASSIGN_OR_RETURN(const std::string_view name,
                         fallback.empty() ? StringMember(json, "behavior", where)
                                          : StringMemberOr(json, "behavior", fallback, where));
  for (const auto& [known, behavior] : kNames) {
    if (name == known) return static_cast<uint32_t>(behavior);
  }
  return Unsupported(where + ": behavior", name);
}

// "replacement": one character.
Result<std::string> Replacement(const JsonValue& json, const std::string& where) {
  ADDER_ASSIGN_OR_RETURN(const std::string_view text, StringMember(json, "replacement", where));
  if (text.empty() || ReadUtf8(text, 0).length != text.size()) {
    return Error(Code::kCorruptFile, "%s: \"replacement\" is \"%.*s\", expected one character",
                 where.c_str(), static_cast<int>(text.size()), text.data());
  }
  return std::string(text);
}

// Older files say add_prefix_space instead of prepend_scheme.
Result<std::string_view> PrependScheme(const JsonValue& json, const std::string& where) {
  ADDER_ASSIGN_OR_RETURN(const bool prefix_space,
                         BoolMember(json, "add_prefix_space", true, where));
  ADDER_ASSIGN_OR_RETURN(
      const std::string_view scheme,
      StringMemberOr(json, "prepend_scheme", prefix_space ? "always" : "never", where));
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    return Unsupported(where + ": prepend_scheme", scheme);
  }
  if (!prefix_space && scheme != "never") {
    return Error(Code::kCorruptFile, "%s: add_prefix_space is false, prepend_scheme \"%.*s\"",
                 where.c_str(), static_cast<int>(scheme.size()), scheme.data());
  }
  return scheme;
}

Status AddByteLevel(const JsonValue& json, const std::string& where, std::vector<Step>* steps) {
  ADDER_ASSIGN_OR_RETURN(const bool prefix, BoolMember(json, "add_prefix_space", true, where));
  ADDER_ASSIGN_OR_RETURN(const bool use_regex, BoolMember(json, "use_regex", true, where));
  if (prefix) steps->push_back({TextStepKind::kEnsurePrefix, 0, " "});
  if (use_regex) {
    ADDER_ASSIGN_OR_RETURN(std::string pattern, CompilablePattern(kByteLevelPattern, where));
    steps->push_back({TextStepKind::kSplitRegex, static_cast<uint32_t>(SplitBehavior::kIsolated),
                      std::move(pattern)});
  }
  steps->push_back({TextStepKind::kByteChars});
  return {};
}

Status AddMetaspace(const JsonValue& json, const std::string& where, std::vector<Step>* steps) {
  ADDER_ASSIGN_OR_RETURN(const std::string mark, Replacement(json, where));
  ADDER_ASSIGN_OR_RETURN(const std::string_view scheme, PrependScheme(json, where));
  ADDER_ASSIGN_OR_RETURN(const bool split, BoolMember(json, "split", true, where));
  steps->push_back({TextStepKind::kReplace, 0, " ", mark});
  if (scheme != "never") {
    steps->push_back({TextStepKind::kEnsurePrefix, scheme == "first" ? kStepTextStart : 0, mark});
  }
  if (split) {
    steps->push_back(
        {TextStepKind::kSplitLiteral, static_cast<uint32_t>(SplitBehavior::kMergedWithNext), mark});
  }
  return {};
}

Status AddSplit(const JsonValue& json, const std::string& where, std::vector<Step>* steps) {
  Step step{TextStepKind::kSplitRegex};
  ADDER_RETURN_IF_ERROR(
      SetPattern(json, TextStepKind::kSplitLiteral, TextStepKind::kSplitRegex, where, &step));
  ADDER_ASSIGN_OR_RETURN(step.flags, Behavior(json, "", where));
  ADDER_ASSIGN_OR_RETURN(const bool invert, BoolMember(json, "invert", false, where));
  if (invert) step.flags |= kStepInvert;
  steps->push_back(std::move(step));
  return {};
}

// One end of the template: SpecialToken items, until the Sequence "A" or the end.
Status AddTemplate(const JsonValue& json, const std::string& where, TokenizerParts* parts) {
  ADDER_ASSIGN_OR_RETURN(const JsonValue* single, ArrayMember(json, "single", where));
  bool after_text = false;
  for (const JsonValue& item : single->GetArray()) {
    ADDER_RETURN_IF_ERROR(ExpectObject(item, where + ": single"));
    ADDER_ASSIGN_OR_RETURN(const JsonValue* sequence, FindMember(item, "Sequence", where));
    if (sequence != nullptr) {
      if (after_text) return Unsupported(where, "template with the text twice");
      after_text = true;
      continue;
    }
    ADDER_ASSIGN_OR_RETURN(const JsonValue* special, ObjectMember(item, "SpecialToken", where));
    ADDER_ASSIGN_OR_RETURN(const std::string_view name, StringMember(*special, "id", where));
    ADDER_ASSIGN_OR_RETURN(const JsonValue* tokens, ObjectMember(json, "special_tokens", where));
    ADDER_ASSIGN_OR_RETURN(const JsonValue* token, ObjectMember(*tokens, name, where));
    ADDER_ASSIGN_OR_RETURN(const JsonValue* ids, ArrayMember(*token, "ids", where));
    for (const JsonValue& id : ids->GetArray()) {
      if (!id.IsUint() || id.GetUint() >= parts->pieces.size() ||
          parts->pieces[id.GetUint()].flags == 0) {
        return Error(Code::kCorruptFile, "%s: \"%.*s\" has id %s, none of the %zu pieces",
                     where.c_str(), static_cast<int>(name.size()), name.data(),
                     Describe(id).c_str(), parts->pieces.size());
      }
      (after_text ? parts->suffix : parts->prefix).push_back(id.GetUint());
    }
  }
  return after_text ? Status() : Unsupported(where, "template without the text");
}

}  // namespace

Status AddNormalizer(const JsonValue& json, TokenizerParts* parts) {
  std::vector<Step>& steps = parts->normalizer;
  return VisitComponents(
      json, "normalizers", "tokenizer.json: normalizer", 0,
      [&](const JsonValue& item, std::string_view type, const std::string& where) -> Status {
        if (type == "NFC") {
          steps.push_back({TextStepKind::kNfc});
        } else if (type == "NFD") {
          steps.push_back({TextStepKind::kNfd});
        } else if (type == "NFKC") {
          steps.push_back({TextStepKind::kNfkc});
        } else if (type == "NFKD") {
          steps.push_back({TextStepKind::kNfkd});
        } else if (type == "Prepend") {
          Step step{TextStepKind::kPrepend};
          ADDER_ASSIGN_OR_RETURN(step.a, StringMember(item, "prepend", where));
          steps.push_back(std::move(step));
        } else if (type == "Replace") {
          Step step{TextStepKind::kReplace};
          ADDER_RETURN_IF_ERROR(
              SetPattern(item, TextStepKind::kReplace, TextStepKind::kReplaceRegex, where, &step));
          ADDER_ASSIGN_OR_RETURN(step.b, StringMember(item, "content", where));
          steps.push_back(std::move(step));
        } else {
          return Unsupported("tokenizer.json: normalizer", type);
        }
        return {};
      });
}

Status AddPreTokenizer(const JsonValue& json, TokenizerParts* parts) {
  std::vector<Step>& steps = parts->pre_tokenizer;
  return VisitComponents(
      json, "pretokenizers", "tokenizer.json: pre_tokenizer", 0,
      [&](const JsonValue& item, std::string_view type, const std::string& where) -> Status {
        if (type == "ByteLevel") return AddByteLevel(item, where, &steps);
        if (type == "Metaspace") return AddMetaspace(item, where, &steps);
        if (type == "Split") return AddSplit(item, where, &steps);
        if (type == "Punctuation") {
          Step step{TextStepKind::kSplitPunctuation};
          ADDER_ASSIGN_OR_RETURN(step.flags, Behavior(item, "Isolated", where));
          steps.push_back(std::move(step));
          return {};
        }
        if (type == "Digits") {
          ADDER_ASSIGN_OR_RETURN(const bool each,
                                 BoolMember(item, "individual_digits", false, where));
          steps.push_back({TextStepKind::kSplitDigits,
                           static_cast<uint32_t>(each ? SplitBehavior::kIsolated
                                                      : SplitBehavior::kContiguous)});
          return {};
        }
        return Unsupported("tokenizer.json: pre_tokenizer", type);
      });
}

Status AddPostProcessor(const JsonValue& json, TokenizerParts* parts) {
  bool any = false;
  return VisitComponents(
      json, "processors", "tokenizer.json: post_processor", 0,
      [&](const JsonValue& item, std::string_view type, const std::string& where) -> Status {
        if (type == "ByteLevel") return {};  // changes offsets only
        if (type != "TemplateProcessing") {
          return Unsupported("tokenizer.json: post_processor", type);
        }
        if (any) return Unsupported(where, "a second template");
        any = true;
        return AddTemplate(item, where, parts);
      });
}

Status SetDecoder(const JsonValue& json, TokenizerParts* parts) {
  // Components must come in the order of these ranks; ByteLevel and Metaspace stand alone.
  enum Rank { kStart, kReplace, kByteFallback, kFuse, kStrip, kAlone };
  int reached = kStart;
  const std::string name = "tokenizer.json: decoder";
  parts->decoder = DecoderKind::kPlain;
  return VisitComponents(
      json, "decoders", name, 0,
      [&](const JsonValue& item, std::string_view type, const std::string& where) -> Status {
        const auto advance = [&](int rank) -> Status {
          if (reached < rank && (rank != kAlone || reached == kStart)) {
            reached = rank;
            return {};
          }
          return Unsupported(where, "a component at this place of a Sequence");
        };
        if (type == "ByteLevel") {
          parts->decoder = DecoderKind::kByteLevel;
          return advance(kAlone);
        }
        if (type == "Metaspace") {
          ADDER_ASSIGN_OR_RETURN(parts->replace_from, Replacement(item, where));
          ADDER_ASSIGN_OR_RETURN(const std::string_view scheme, PrependScheme(item, where));
          parts->replace_to.assign(1, ' ');
          if (scheme != "never") parts->decoder_flags |= kDecoderFirstDrops;
          return advance(kAlone);
        }
        if (type == "Replace") {
          Step step{TextStepKind::kReplace};
          ADDER_RETURN_IF_ERROR(
              SetPattern(item, TextStepKind::kReplace, TextStepKind::kReplaceRegex, where, &step));
          if (step.kind != TextStepKind::kReplace) return Unsupported(where, "Regex");
          parts->replace_from = step.a;
          ADDER_ASSIGN_OR_RETURN(parts->replace_to, StringMember(item, "content", where));
          return advance(kReplace);
        }
        if (type == "ByteFallback") {
          parts->decoder_flags |= kDecoderByteFallback;
          return advance(kByteFallback);
        }
        if (type == "Fuse") return advance(kFuse);
        if (type == "Strip") {
          // A stream of tokens cannot take back text, and must know its first piece at once.
          ADDER_ASSIGN_OR_RETURN(const uint32_t start, IntMember(item, "start", where));
          ADDER_ASSIGN_OR_RETURN(const uint32_t stop, IntMember(item, "stop", where));
          ADDER_ASSIGN_OR_RETURN(const std::string_view content,
                                 StringMember(item, "content", where));
          if (content.empty() || ReadUtf8(content, 0).length != content.size()) {
            return Error(Code::kCorruptFile, "%s: \"content\" is \"%.*s\", expected one character",
                         where.c_str(), static_cast<int>(content.size()), content.data());
          }
          if (reached != kFuse || start > 1 || stop != 0) {
            return Unsupported(where, "anything but start 0 or 1, stop 0, after Fuse");
          }
          if (start == 1) parts->strip = content;
          return advance(kStrip);
        }
        return Unsupported(name, type);
      });
}

}  // namespace adder
