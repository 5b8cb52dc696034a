#include "converter/tokenizer_json.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "converter/tokenizer_fields.h"
#include "converter/tokenizer_pipeline.h"
#include "converter/tokenizer_section_writer.h"
#include "runtime/text_steps.h"

namespace adder {
namespace {

constexpr size_t kMaxFileBytes = size_t{256} << 20;
constexpr int kMaxDepth = 64;
// Ids may have gaps, but a small file does not make a large section.
constexpr uint32_t kMaxGaps = 65536;

constexpr char kFile[] = "tokenizer.json";
constexpr char kModel[] = "tokenizer.json: model";
constexpr char kAdded[] = "tokenizer.json: added_tokens";

std::string Quoted(std::string_view text) {
  return std::string("\"").append(text.substr(0, 200)).append("\"");
}

// The parser needs no stack, but code that walks the document should know a bound.
Status CheckDepth(std::string_view json) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) {
        return Error(Code::kCorruptFile, "tokenizer.json: nested deeper than %d at byte %zu",
                     kMaxDepth, i);
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return {};
}

class Compiler {
 public:
  Result<std::vector<uint8_t>> Run(const JsonValue& root) {
    ADDER_RETURN_IF_ERROR(ExpectObject(root, kFile));
    ADDER_ASSIGN_OR_RETURN(const JsonValue* model, ObjectMember(root, "model", kFile));
    ADDER_RETURN_IF_ERROR(CheckModel(*model));
    ADDER_ASSIGN_OR_RETURN(const JsonValue* added, FindMember(root, "added_tokens", kFile));
    if (added != nullptr && !added->IsArray()) {
      return Error(Code::kCorruptFile, "tokenizer.json: \"added_tokens\" is %s, expected an array",
                   Describe(*added).c_str());
    }
    ADDER_RETURN_IF_ERROR(ReadVocabulary(*model, added));
    ADDER_RETURN_IF_ERROR(ReadModelOptions(*model));
    ADDER_RETURN_IF_ERROR(ReadMerges(*model));

    const std::pair<const char*, Status (*)(const JsonValue&, TokenizerParts*)> components[] = {
        {"normalizer", AddNormalizer},
        {"pre_tokenizer", AddPreTokenizer},
        {"post_processor", AddPostProcessor},
        {"decoder", SetDecoder}};
    for (const auto& [key, read] : components) {
      ADDER_ASSIGN_OR_RETURN(const JsonValue* component, FindMember(root, key, kFile));
      if (component != nullptr) ADDER_RETURN_IF_ERROR(read(*component, &parts_));
    }
    if (added != nullptr) ADDER_RETURN_IF_ERROR(ReadAddedTokens(*added));
    return WriteTokenizerSection(std::move(parts_));
  }

 private:
  static Status CheckModel(const JsonValue& model) {
    ADDER_ASSIGN_OR_RETURN(const std::string_view type,
                           StringMemberOr(model, "type", "BPE", kModel));
    if (type != "BPE") {
      return Error(Code::kUnsupported, "%s: type \"%.*s\" is not supported, only BPE", kModel,
                   static_cast<int>(type.size()), type.data());
    }
    return {};
  }

  // Pieces of the BPE vocabulary, then those of the added tokens.
  Status ReadVocabulary(const JsonValue& model, const JsonValue* added) {
    ADDER_ASSIGN_OR_RETURN(const JsonValue* vocab, ObjectMember(model, "vocab", kModel));
    vocab_.reserve(vocab->MemberCount());
    uint64_t used = vocab->MemberCount();
    uint64_t size = 0;
    for (const auto& member : vocab->GetObject()) {
      if (!member.value.IsUint()) {
        return Error(Code::kCorruptFile, "%s: vocab: %s has id %s", kModel,
                     Quoted(JsonText(member.name)).c_str(), Describe(member.value).c_str());
      }
      size = std::max(size, uint64_t{member.value.GetUint()} + 1);
      vocab_.emplace_back(JsonText(member.name), member.value.GetUint());
    }
    if (added != nullptr) {
      used += added->Size();
      for (const JsonValue& token : added->GetArray()) {
        ADDER_RETURN_IF_ERROR(ExpectObject(token, kAdded));
        ADDER_ASSIGN_OR_RETURN(const uint32_t id, IntMember(token, "id", kAdded));
        size = std::max(size, uint64_t{id} + 1);
      }
    }
    if (size > used + kMaxGaps || size > kMaxPieces) {
      return Error(Code::kUnsupported, "tokenizer.json: id %llu with %llu tokens",
                   static_cast<unsigned long long>(size - 1),
                   static_cast<unsigned long long>(used));
    }
    parts_.pieces.resize(size);
    for (const auto& [text, id] : vocab_) {
      TokenizerParts::Piece& piece = parts_.pieces[id];
      if (piece.flags != 0) {
        return Error(Code::kCorruptFile, "%s: vocab: %s and %s have id %u", kModel,
                     Quoted(piece.text).c_str(), Quoted(text).c_str(), id);
      }
      piece = {text, kPieceInModel};
    }
    std::sort(vocab_.begin(), vocab_.end());
    for (size_t i = 1; i < vocab_.size(); ++i) {
      if (vocab_[i - 1].first == vocab_[i].first) {
        return Error(Code::kCorruptFile, "%s: vocab: %s has ids %u and %u", kModel,
                     Quoted(vocab_[i].first).c_str(), vocab_[i - 1].second, vocab_[i].second);
      }
    }
    return added == nullptr ? Status() : AddPieces(*added);
  }

  // An added token may be a piece of the vocabulary, if the two agree.
  Status AddPieces(const JsonValue& added) {
    for (const JsonValue& token : added.GetArray()) {
      ADDER_ASSIGN_OR_RETURN(const uint32_t id, IntMember(token, "id", kAdded));
      ADDER_ASSIGN_OR_RETURN(const std::string_view content,
                             StringMember(token, "content", kAdded));
      ADDER_ASSIGN_OR_RETURN(const bool special, BoolMember(token, "special", false, kAdded));
      TokenizerParts::Piece& piece = parts_.pieces[id];
      if (piece.flags & kPieceAdded) {
        return Error(Code::kCorruptFile, "%s: id %u is given to %s and %s", kAdded, id,
                     Quoted(piece.text).c_str(), Quoted(content).c_str());
      }
      if (piece.flags != 0 && piece.text != content) {
        return Error(Code::kCorruptFile, "%s: %s has id %u, which is %s in the vocabulary", kAdded,
                     Quoted(content).c_str(), id, Quoted(piece.text).c_str());
      }
      piece.text = content;
      piece.flags = static_cast<uint8_t>(piece.flags | kPieceAdded | (special ? kPieceSpecial : 0));
    }
    return {};
  }

  Status ReadModelOptions(const JsonValue& model) {
    ADDER_ASSIGN_OR_RETURN(const JsonValue* dropout, FindMember(model, "dropout", kModel));
    if (dropout != nullptr && !(dropout->IsNumber() && dropout->GetDouble() == 0)) {
      return Error(Code::kUnsupported, "%s: dropout %s is not supported", kModel,
                   Describe(*dropout).c_str());
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      ADDER_ASSIGN_OR_RETURN(const std::string_view affix, StringMemberOr(model, key, "", kModel));
      if (!affix.empty()) {
        return Error(Code::kUnsupported, "%s: %s %s is not supported", kModel, key,
                     Quoted(affix).c_str());
      }
    }
    const std::pair<const char*, uint32_t> flags[] = {{"byte_fallback", kModelByteFallback},
                                                      {"fuse_unk", kModelFuseUnknown},
                                                      {"ignore_merges", kModelIgnoreMerges}};
    for (const auto& [key, flag] : flags) {
      ADDER_ASSIGN_OR_RETURN(const bool set, BoolMember(model, key, false, kModel));
      if (set) parts_.flags |= flag;
    }
    ADDER_ASSIGN_OR_RETURN(const JsonValue* unk, FindMember(model, "unk_token", kModel));
    if (unk == nullptr) return {};
    ADDER_ASSIGN_OR_RETURN(const std::string_view text, StringMember(model, "unk_token", kModel));
    parts_.unk_id = Find(text);
    if (parts_.unk_id == kNoToken) {
      return Error(Code::kCorruptFile, "%s: unk_token %s is not in the vocabulary", kModel,
                   Quoted(text).c_str());
    }
    return {};
  }

  // Merges are "left right" or ["left", "right"]; their order is their rank.
  Status ReadMerges(const JsonValue& model) {
    ADDER_ASSIGN_OR_RETURN(const JsonValue* merges, ArrayMember(model, "merges", kModel));
    parts_.merges.reserve(merges->Size());
    std::string joined;
    for (const JsonValue& item : merges->GetArray()) {
      std::string_view left;
      std::string_view right;
      if (item.IsString()) {
        const std::string_view pair = JsonText(item);
        if (pair.starts_with("#version")) continue;  // a heading of old merge lists
        const size_t space = pair.find(' ');
        left = pair.substr(0, space);
        if (space != std::string_view::npos) right = pair.substr(space + 1);
        if (right.find(' ') != std::string_view::npos) right = {};
      } else if (item.IsArray() && item.Size() == 2 && item[0].IsString() && item[1].IsString()) {
        left = JsonText(item[0]);
        right = JsonText(item[1]);
      }
      const auto rank = static_cast<uint32_t>(parts_.merges.size());
      if (left.empty() || right.empty()) {
        return Error(Code::kCorruptFile, "%s: merge %u is %s, expected two pieces", kModel, rank,
                     Describe(item).c_str());
      }
      joined.assign(left).append(right);
      const TokenizerParts::Merge merge{Find(left), Find(right), rank, Find(joined)};
      for (const auto& [id, text] : {std::pair<uint32_t, std::string_view>{merge.left, left},
                                     {merge.right, right},
                                     {merge.merged, joined}}) {
        if (id == kNoToken) {
          return Error(Code::kCorruptFile, "%s: merge %u needs %s, which is not in the vocabulary",
                       kModel, rank, Quoted(text).c_str());
        }
      }
      parts_.merges.push_back(merge);
    }
    return {};
  }

  // What to look for in text. Normalized tokens meet normalized text, so they are normalized too.
  Status ReadAddedTokens(const JsonValue& added) {
    std::vector<TextStepRecord> records;
    for (const auto& step : parts_.normalizer) records.push_back(step.record());
    ADDER_ASSIGN_OR_RETURN(const std::vector<TextStep> normalizer, MakeTextSteps(records));
    const std::pair<const char*, uint32_t> flags[] = {{"single_word", kAddedSingleWord},
                                                      {"lstrip", kAddedStripLeft},
                                                      {"rstrip", kAddedStripRight}};
    for (const JsonValue& json : added.GetArray()) {
      TokenizerParts::Added token{};
      ADDER_ASSIGN_OR_RETURN(token.id, IntMember(json, "id", kAdded));
      ADDER_ASSIGN_OR_RETURN(token.content, StringMember(json, "content", kAdded));
      ADDER_ASSIGN_OR_RETURN(const bool special, BoolMember(json, "special", false, kAdded));
      ADDER_ASSIGN_OR_RETURN(token.normalized, BoolMember(json, "normalized", !special, kAdded));
      for (const auto& [key, flag] : flags) {
        ADDER_ASSIGN_OR_RETURN(const bool set, BoolMember(json, key, false, kAdded));
        if (set) token.flags |= flag;
      }
      if (token.normalized) {
        ADDER_ASSIGN_OR_RETURN(token.content, RewriteAll(normalizer, token.content, true,
                                                         RewriteLimit(token.content.size())));
      }
      if (!token.content.empty()) parts_.added.push_back(std::move(token));
    }
    return {};
  }

  uint32_t Find(std::string_view text) const {
    const auto at = std::lower_bound(
        vocab_.begin(), vocab_.end(), text,
        [](const auto& entry, std::string_view value) { return entry.first < value; });
    return at != vocab_.end() && at->first == text ? at->second : kNoToken;
  }

  std::vector<std::pair<std::string_view, uint32_t>> vocab_;  // of the model; sorted when read
  TokenizerParts parts_;
};

}  // namespace

Result<std::vector<uint8_t>> CompileTokenizer(std::string_view json) {
  if (json.size() > kMaxFileBytes) {
    return Error(Code::kUnsupported, "tokenizer.json: %zu bytes, at most %zu", json.size(),
                 kMaxFileBytes);
  }
  if (json.starts_with("\xEF\xBB\xBF")) json.remove_prefix(3);  // byte order mark
  ADDER_RETURN_IF_ERROR(CheckDepth(json));
  rapidjson::Document document;
  document.Parse<rapidjson::kParseIterativeFlag | rapidjson::kParseValidateEncodingFlag>(
      json.data(), json.size());
  if (document.HasParseError()) {
    return Error(Code::kCorruptFile, "tokenizer.json: byte %zu: %s", document.GetErrorOffset(),
                 rapidjson::GetParseError_En(document.GetParseError()));
  }
  return Compiler().Run(document);
}

}  // namespace adder
