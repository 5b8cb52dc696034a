#include "converter/gguf_tokenizer.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "converter/text.h"
#include "converter/tokenizer_fields.h"
#include "converter/tokenizer_pipeline.h"
#include "converter/tokenizer_section_writer.h"
#include "runtime/utf8.h"

namespace adder {
namespace {

// A piece of SentencePiece is split at every character to find its merges.
constexpr size_t kMaxScoredPiece = 256;             // bytes
constexpr std::string_view kMark = "\xE2\x96\x81";  // U+2581, the space of SentencePiece

// ---- What tokenizer.json would say around the model.

constexpr char kNoNormalizer[] = "";
constexpr char kNfc[] = R"({"type": "NFC"})";
constexpr char kSpaceMarks[] = R"({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})";
constexpr char kPrefixedSpaceMarks[] = R"({"type": "Sequence", "normalizers": [
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]})";

constexpr char kGpt2Words[] = R"({"type": "ByteLevel", "add_prefix_space": false})";
constexpr char kDigitsThenGpt2Words[] = R"({"type": "Sequence", "pretokenizers": [
    {"type": "Digits", "individual_digits": true},
    {"type": "ByteLevel", "add_prefix_space": false}]})";
constexpr char kFalconWords[] = R"({"type": "Sequence", "pretokenizers": [
    {"type": "Punctuation", "behavior": "Contiguous"},
    {"type": "ByteLevel", "add_prefix_space": false},
    {"type": "Digits", "individual_digits": false},
    {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated"}]})";
// Words of GPT-4, with numbers of up to 3 digits.
constexpr char kThreeDigitWords[] = R"({"type": "Sequence", "pretokenizers": [
    {"type": "Split", "behavior": "Isolated", "pattern": {"Regex":
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
    {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})";
// The same with single digits.
constexpr char kOneDigitWords[] = R"({"type": "Sequence", "pretokenizers": [
    {"type": "Split", "behavior": "Isolated", "pattern": {"Regex":
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
    {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})";

constexpr char kByteLevelDecoder[] = R"({"type": "ByteLevel"})";
constexpr char kSpaceMarkDecoder[] = R"({"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"}, {"type": "Fuse"}]})";
constexpr char kPrefixedSpaceMarkDecoder[] = R"({"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})";

struct PreTokenizer {
  const char* name;  // tokenizer.ggml.pre
  const char* normalizer;
  const char* words;
  bool ignore_merges = false;
  bool add_bos = false;  // where tokenizer.ggml.add_bos_token does not say
};
constexpr PreTokenizer kPreTokenizers[] = {
    {"gpt-2", kNoNormalizer, kGpt2Words},
    {"phi-2", kNoNormalizer, kGpt2Words},
    {"mpt", kNfc, kGpt2Words},   // GPT-NeoX
    {"olmo", kNfc, kGpt2Words},  // GPT-NeoX
    {"falcon", kNoNormalizer, kFalconWords},
    {"starcoder", kNoNormalizer, kDigitsThenGpt2Words},
    {"refact", kNoNormalizer, kDigitsThenGpt2Words},
    {"smollm", kNoNormalizer, kDigitsThenGpt2Words},
    {"llama-bpe", kNoNormalizer, kThreeDigitWords, true, true},
    {"llama3", kNoNormalizer, kThreeDigitWords, true, true},
    {"llama-v3", kNoNormalizer, kThreeDigitWords, true, true},
    {"falcon3", kNoNormalizer, kThreeDigitWords, true, true},
    {"falcon-h1", kNoNormalizer, kThreeDigitWords, true, true},
    {"dbrx", kNoNormalizer, kThreeDigitWords},
    {"smaug-bpe", kNoNormalizer, kThreeDigitWords},
    {"qwen2", kNfc, kOneDigitWords},
    {"deepseek-r1-qwen", kNfc, kOneDigitWords}};

// Passes one of the texts above on; an empty one stands for no component.
Status AddComponent(const char* json, Status (*add)(const JsonValue&, TokenizerParts*),
                    TokenizerParts* parts) {
  if (*json == '\0') return {};
  rapidjson::Document document;
  document.Parse(json);
  return add(document, parts);
}

// tokenizer.ggml.token_type.
enum TokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

class Compiler {
 public:
  explicit Compiler(const GgufMetadata& metadata) : metadata_(metadata) {}

  Result<std::vector<uint8_t>> Run() {
    ADDER_ASSIGN_OR_RETURN(const std::string_view model,
                           metadata_.String("tokenizer.ggml.model", "none"));
    if (model == "none" || model == "no_vocab") return std::vector<uint8_t>();
    if (model != "gpt2" && model != "llama") {
      return Error(Code::kUnsupported,
                   "%s: tokenizer.ggml.model \"%s\" is not supported, only gpt2 and llama",
                   metadata_.name().c_str(), Shown(model).c_str());
    }
    ADDER_RETURN_IF_ERROR(ReadPieces(model == "llama"));
    ADDER_RETURN_IF_ERROR(model == "llama" ? AddSentencePiece() : AddByteLevelBpe());
    Result<std::vector<uint8_t>> section = WriteTokenizerSection(std::move(parts_));
    if (!section.ok()) return Annotate(section.status(), metadata_.name());
    return section;
  }

 private:
  Status Fail(Code code, const std::string& what) const {
    return Status(code, metadata_.name() + ": " + what);
  }
  static std::string Quoted(std::string_view text) { return "\"" + Shown(text) + "\""; }

  // Pieces with their flags, and the added tokens: those which are looked for in the text as they
  // are.
  Status ReadPieces(bool space_marks) {
    ADDER_ASSIGN_OR_RETURN(tokens_, metadata_.Strings("tokenizer.ggml.tokens"));
    ADDER_ASSIGN_OR_RETURN(types_, metadata_.Ints("tokenizer.ggml.token_type"));
    if (tokens_.empty()) return Fail(Code::kCorruptFile, "tokenizer.ggml.tokens is empty");
    if (tokens_.size() > kMaxPieces) {
      return Fail(Code::kUnsupported, std::to_string(tokens_.size()) + " tokens, at most " +
                                          std::to_string(kMaxPieces));
    }
    if (types_.empty()) types_.assign(tokens_.size(), kNormal);
    if (types_.size() != tokens_.size()) {
      return Fail(Code::kCorruptFile, "tokenizer.ggml.token_type has " +
                                          std::to_string(types_.size()) + " elements for " +
                                          std::to_string(tokens_.size()) + " tokens");
    }
    parts_.pieces.resize(tokens_.size());
    for (uint32_t id = 0; id < tokens_.size(); ++id) {
      const int64_t type = types_[id];
      if (type < kNormal || type > kByte) {
        return Fail(Code::kCorruptFile, "token " + std::to_string(id) + " has type " +
                                            std::to_string(type) + ", expected 1 to 6");
      }
      if (type == kUnused) continue;  // fills a gap between ids
      const bool special = type == kControl || type == kUnknown;
      const bool added = special || type == kUserDefined;
      const unsigned flags = added ? kPieceAdded | (special ? kPieceSpecial : 0u) : kPieceInModel;
      parts_.pieces[id] = {tokens_[id], static_cast<uint8_t>(flags)};
      ids_.emplace(tokens_[id], id);
      if (!added || tokens_[id].empty()) continue;
      std::string content(tokens_[id]);
      if (space_marks && type == kUserDefined) content = WithSpaces(content);
      parts_.added.push_back({id, 0, std::move(content), false});
    }
    return {};
  }

  static std::string WithSpaces(std::string_view text) {
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const bool mark = text.substr(at).starts_with(kMark);
      out += mark ? ' ' : text[at];
      at += mark ? kMark.size() : 1;
    }
    return out;
  }

  uint32_t Find(std::string_view text) const {
    const auto found = ids_.find(text);
    return found == ids_.end() ? kNoToken : found->second;
  }

  // ---- Byte-level BPE: merges by rank.

  Status AddByteLevelBpe() {
    ADDER_ASSIGN_OR_RETURN(const std::string_view name,
                           metadata_.String("tokenizer.ggml.pre", "not there"));
    const auto* pre = std::find_if(std::begin(kPreTokenizers), std::end(kPreTokenizers),
                                   [&](const PreTokenizer& p) { return name == p.name; });
    if (pre == std::end(kPreTokenizers)) {
      std::string known;
      for (const PreTokenizer& p : kPreTokenizers) known += std::string(" ") + p.name;
      return Fail(Code::kUnsupported, "tokenizer.ggml.pre is " + Quoted(name) +
                                          ", which this build cannot split text as; known are" +
                                          known);
    }
    ADDER_RETURN_IF_ERROR(ReadMerges());
    ADDER_RETURN_IF_ERROR(AddComponent(pre->normalizer, AddNormalizer, &parts_));
    ADDER_RETURN_IF_ERROR(AddComponent(pre->words, AddPreTokenizer, &parts_));
    ADDER_RETURN_IF_ERROR(AddComponent(kByteLevelDecoder, SetDecoder, &parts_));
    if (pre->ignore_merges) parts_.flags |= kModelIgnoreMerges;
    return AddAffixes(pre->add_bos, std::nullopt, std::nullopt);
  }

  // "left right", in the order of their rank.
  Status ReadMerges() {
    ADDER_ASSIGN_OR_RETURN(const auto merges, metadata_.Strings("tokenizer.ggml.merges"));
    parts_.merges.reserve(merges.size());
    std::string joined;
    for (const std::string_view pair : merges) {
      const auto rank = static_cast<uint32_t>(parts_.merges.size());
      const std::string what = "merge " + std::to_string(rank) + " " + Quoted(pair);
      const size_t space = pair.find(' ');
      if (space == std::string_view::npos || space == 0 || space + 1 == pair.size() ||
          pair.find(' ', space + 1) != std::string_view::npos) {
        return Fail(Code::kCorruptFile, what + " is not two pieces");
      }
      joined.assign(pair.substr(0, space)).append(pair.substr(space + 1));
      const TokenizerParts::Merge merge{Find(pair.substr(0, space)), Find(pair.substr(space + 1)),
                                        rank, Find(joined)};
      for (const uint32_t id : {merge.left, merge.right, merge.merged}) {
        if (id == kNoToken) {
          return Fail(Code::kCorruptFile, what + " needs a piece that is not in the vocabulary");
        }
        // Some added tokens are pieces as well.
        parts_.pieces[id].flags = static_cast<uint8_t>(parts_.pieces[id].flags | kPieceInModel);
      }
      parts_.merges.push_back(merge);
    }
    return {};
  }

  // ---- SentencePiece: of all neighbours that make a piece, those of the highest score merge
  // first.

  Status AddSentencePiece() {
    ADDER_ASSIGN_OR_RETURN(const bool prefix,
                           metadata_.Bool("tokenizer.ggml.add_space_prefix", true));
    ADDER_RETURN_IF_ERROR(FindMerges());
    ADDER_RETURN_IF_ERROR(
        AddComponent(prefix ? kPrefixedSpaceMarks : kSpaceMarks, AddNormalizer, &parts_));
    ADDER_RETURN_IF_ERROR(
        AddComponent(prefix ? kPrefixedSpaceMarkDecoder : kSpaceMarkDecoder, SetDecoder, &parts_));
    parts_.flags |= kModelByteFallback | kModelFuseUnknown;
    ADDER_ASSIGN_OR_RETURN(const int64_t unknown,
                           metadata_.Int("tokenizer.ggml.unknown_token_id", 0));
    if (unknown >= 0 && static_cast<uint64_t>(unknown) < types_.size() &&
        types_[static_cast<size_t>(unknown)] == kUnknown) {
      parts_.unk_id = static_cast<uint32_t>(unknown);
    }
    return AddAffixes(true, 1, 2);
  }

  Status FindMerges() {
    ADDER_ASSIGN_OR_RETURN(const std::vector<float> scores,
                           metadata_.Floats("tokenizer.ggml.scores"));
    if (scores.size() != tokens_.size()) {
      return Fail(Code::kCorruptFile, "tokenizer.ggml.scores has " + std::to_string(scores.size()) +
                                          " elements for " + std::to_string(tokens_.size()) +
                                          " tokens");
    }
    std::vector<float> order;  // highest first; the place of a score is the rank of its merges
    for (uint32_t id = 0; id < scores.size(); ++id) {
      if (std::isnan(scores[id])) {
        return Fail(Code::kCorruptFile, "the score of token " + std::to_string(id) + " is NaN");
      }
      if (types_[id] == kNormal) order.push_back(scores[id]);
    }
    std::sort(order.begin(), order.end(), std::greater<>());
    order.erase(std::unique(order.begin(), order.end()), order.end());
    for (uint32_t id = 0; id < scores.size(); ++id) {
      if (types_[id] != kNormal) continue;
      const auto at = std::lower_bound(order.begin(), order.end(), scores[id], std::greater<>());
      ADDER_RETURN_IF_ERROR(AddMergesOf(id, static_cast<uint32_t>(at - order.begin())));
    }
    return {};
  }

  // Every way to make piece `id` of two others.
  Status AddMergesOf(uint32_t id, uint32_t rank) {
    const std::string_view text = tokens_[id];
    if (text.size() > kMaxScoredPiece) {
      return Fail(Code::kUnsupported, "token " + std::to_string(id) + " has " +
                                          std::to_string(text.size()) + " bytes, at most " +
                                          std::to_string(kMaxScoredPiece));
    }
    if (text.empty()) return {};
    for (size_t at = ReadUtf8(text, 0).length; at < text.size(); at += ReadUtf8(text, at).length) {
      const uint32_t left = Find(text.substr(0, at)), right = Find(text.substr(at));
      if (left == kNoToken || right == kNoToken) continue;
      if (types_[left] != kNormal || types_[right] != kNormal) continue;
      if (parts_.merges.size() == kMaxMerges) {
        return Fail(Code::kUnsupported, "more than " + std::to_string(kMaxMerges) +
                                            " ways to make a piece of two others");
      }
      parts_.merges.push_back({left, right, rank, id});
    }
    return {};
  }

  // ---- BOS in front and EOS behind, where the file wants them.

  Status AddAffixes(bool bos, std::optional<int64_t> bos_id, std::optional<int64_t> eos_id) {
    ADDER_RETURN_IF_ERROR(AddAffix("bos", bos, bos_id, &parts_.prefix));
    return AddAffix("eos", false, eos_id, &parts_.suffix);
  }

  Status AddAffix(const std::string& which, bool fallback, std::optional<int64_t> id_fallback,
                  std::vector<uint32_t>* affix) {
    ADDER_ASSIGN_OR_RETURN(const bool add,
                           metadata_.Bool("tokenizer.ggml.add_" + which + "_token", fallback));
    if (!add) return {};
    const std::string key = "tokenizer.ggml." + which + "_token_id";
    ADDER_ASSIGN_OR_RETURN(const int64_t id, metadata_.Int(key, id_fallback));
    if (id < 0 || static_cast<uint64_t>(id) >= parts_.pieces.size() ||
        parts_.pieces[static_cast<size_t>(id)].flags == 0) {
      return Fail(Code::kCorruptFile, key + " is " + std::to_string(id) + ", none of the " +
                                          std::to_string(parts_.pieces.size()) + " tokens");
    }
    affix->push_back(static_cast<uint32_t>(id));
    return {};
  }

  const GgufMetadata& metadata_;
  std::vector<std::string_view> tokens_;
  std::vector<int64_t> types_;
  std::unordered_map<std::string_view, uint32_t> ids_;  // of all pieces
  TokenizerParts parts_;
};

}  // namespace

Result<std::vector<uint8_t>> CompileGgufTokenizer(const GgufMetadata& metadata) {
  return Compiler(metadata).Run();
}

}  // namespace adder
