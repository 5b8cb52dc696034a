#include "converter/tokenizer_section_writer.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <tuple>

#include "runtime/utf8.h"

namespace adder {
namespace {

class Writer {
 public:
  void Word(uint64_t value) {  // callers have checked that it fits
    for (int shift = 0; shift < 32; shift += 8) {
      bytes_.push_back(static_cast<uint8_t>(value >> shift));
    }
  }
  void Bytes(std::string_view text) { bytes_.insert(bytes_.end(), text.begin(), text.end()); }
  void Byte(uint8_t byte) { bytes_.push_back(byte); }
  std::vector<uint8_t> Take() { return std::move(bytes_); }

 private:
  std::vector<uint8_t> bytes_;
};

// Bytes of the strings of the section; piece bytes come first.
struct Blob {
  void Append(std::string_view text, Writer* writer) {  // and its {offset, bytes} to `writer`
    writer->Word(bytes.size());
    writer->Word(text.size());
    bytes += text;
  }
  std::string bytes;
};

Status TooMany(const char* what, uint64_t count, uint64_t most) {
  return Error(Code::kUnsupported, "tokenizer.json: %llu %s, at most %llu",
               static_cast<unsigned long long>(count), what, static_cast<unsigned long long>(most));
}

Status CheckSizes(const TokenizerParts& p) {
  if (p.pieces.empty()) return Error(Code::kCorruptFile, "tokenizer.json: no pieces");
  if (p.pieces.size() > kMaxPieces) return TooMany("ids", p.pieces.size(), kMaxPieces);
  if (p.merges.size() > kMaxMerges) return TooMany("merges", p.merges.size(), kMaxMerges);
  if (p.added.size() > kMaxAddedTokens) {
    return TooMany("added tokens", p.added.size(), kMaxAddedTokens);
  }
  for (const auto& added : p.added) {
    if (added.content.size() > kMaxAddedTokenBytes) {
      return TooMany("bytes of an added token", added.content.size(), kMaxAddedTokenBytes);
    }
  }
  for (const auto* steps : {&p.normalizer, &p.pre_tokenizer}) {
    if (steps->size() > kMaxTextSteps) return TooMany("steps", steps->size(), kMaxTextSteps);
    for (const auto& step : *steps) {
      const bool regex =
          step.kind == TextStepKind::kSplitRegex || step.kind == TextStepKind::kReplaceRegex;
      const size_t most = regex ? kMaxPatternBytes : kMaxReplacementBytes;
      if (step.a.size() > most) return TooMany("bytes of a pattern", step.a.size(), most);
      if (step.b.size() > kMaxReplacementBytes) {
        return TooMany("bytes of a replacement", step.b.size(), kMaxReplacementBytes);
      }
    }
  }
  for (const auto* ids : {&p.prefix, &p.suffix}) {
    if (ids->size() > kMaxAffixIds) {
      return TooMany("ids of the post-processor", ids->size(), kMaxAffixIds);
    }
  }
  for (const auto* text : {&p.replace_from, &p.replace_to, &p.strip}) {
    if (text->size() > kMaxReplacementBytes) {
      return TooMany("bytes of a decoder string", text->size(), kMaxReplacementBytes);
    }
  }
  uint64_t total = 0;
  for (const auto& piece : p.pieces) total += piece.text.size();
  // Leaves room for the other strings, all of which are bounded.
  constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max() / 2;
  return total > kMost ? TooMany("bytes of pieces", total, kMost) : Status();
}

void SortMerges(std::vector<TokenizerParts::Merge>* merges) {
  using Merge = TokenizerParts::Merge;
  std::sort(merges->begin(), merges->end(), [](const Merge& a, const Merge& b) {
    return std::tie(a.left, a.right, b.rank) < std::tie(b.left, b.right, a.rank);
  });
  const auto same = [](const Merge& a, const Merge& b) {
    return a.left == b.left && a.right == b.right;
  };
  merges->erase(std::unique(merges->begin(), merges->end(), same), merges->end());
}

void SortAdded(std::vector<TokenizerParts::Added>* added) {
  using Added = TokenizerParts::Added;
  std::sort(added->begin(), added->end(), [](const Added& a, const Added& b) {
    return std::tie(a.normalized, a.content, a.id) < std::tie(b.normalized, b.content, b.id);
  });
  const auto same = [](const Added& a, const Added& b) {
    return a.normalized == b.normalized && a.content == b.content;
  };
  added->erase(std::unique(added->begin(), added->end(), same), added->end());
}

// Ids of the pieces in use, by their bytes; an error when two of them are equal.
Result<std::vector<uint32_t>> SortIds(const std::vector<TokenizerParts::Piece>& pieces) {
  std::vector<uint32_t> ids;
  for (uint32_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].flags != 0) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end(),
            [&](uint32_t a, uint32_t b) { return pieces[a].text < pieces[b].text; });
  for (size_t i = 1; i < ids.size(); ++i) {
    const std::string_view text = pieces[ids[i]].text;
    if (pieces[ids[i - 1]].text == text) {
      return Error(Code::kCorruptFile, "tokenizer.json: token \"%.*s\" has ids %u and %u",
                   static_cast<int>(std::min<size_t>(text.size(), 200)), text.data(), ids[i - 1],
                   ids[i]);
    }
  }
  return ids;
}

}  // namespace

Result<std::vector<uint8_t>> WriteTokenizerSection(TokenizerParts parts) {
  ADDER_RETURN_IF_ERROR(CheckSizes(parts));
  ADDER_ASSIGN_OR_RETURN(const std::vector<uint32_t> sorted, SortIds(parts.pieces));
  SortMerges(&parts.merges);
  SortAdded(&parts.added);
  const auto find_in_model = [&](std::string_view text) {
    const auto at = std::lower_bound(
        sorted.begin(), sorted.end(), text,
        [&](uint32_t id, std::string_view value) { return parts.pieces[id].text < value; });
    const bool found = at != sorted.end() && parts.pieces[*at].text == text &&
                       (parts.pieces[*at].flags & kPieceInModel);
    return found ? *at : kNoToken;
  };

  Blob blob;
  Writer body;
  for (const auto& piece : parts.pieces) {
    body.Word(blob.bytes.size());
    blob.bytes += piece.text;
  }
  body.Word(blob.bytes.size());
  for (const uint32_t id : sorted) body.Word(id);

  size_t next = 0;
  for (uint32_t left = 0; left < parts.pieces.size(); ++left) {
    body.Word(next);
    while (next < parts.merges.size() && parts.merges[next].left == left) ++next;
  }
  body.Word(next);
  for (const auto& merge : parts.merges) {
    body.Word(merge.right);
    body.Word(merge.rank);
    body.Word(merge.merged);
  }

  for (uint32_t c = 0; c < kCharIds; ++c) {
    std::string text;
    AppendUtf8(c, &text);
    body.Word(find_in_model(text));
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    body.Word(find_in_model(text));
  }

  for (const auto& added : parts.added) {  // plain ones sort first
    body.Word(added.id);
    body.Word(added.flags);
    blob.Append(added.content, &body);
  }
  for (const auto* steps : {&parts.normalizer, &parts.pre_tokenizer}) {
    for (const auto& step : *steps) {
      body.Word(static_cast<uint32_t>(step.kind));
      body.Word(step.flags);
      blob.Append(step.a, &body);
      blob.Append(step.b, &body);
    }
  }
  for (const auto* ids : {&parts.prefix, &parts.suffix}) {
    for (const uint32_t id : *ids) body.Word(id);
  }
  for (const auto& piece : parts.pieces) body.Byte(piece.flags);

  Writer out;
  const auto n_normalized = std::count_if(parts.added.begin(), parts.added.end(),
                                          [](const auto& a) { return a.normalized; });
  const auto n_plain = parts.added.size() - static_cast<size_t>(n_normalized);
  for (const uint64_t word :
       {uint64_t{kTokenizerMagic}, uint64_t{kTokenizerVersion}, uint64_t{parts.flags},
        uint64_t{parts.pieces.size()}, uint64_t{sorted.size()}, uint64_t{parts.merges.size()},
        uint64_t{parts.unk_id}, uint64_t{n_plain}, uint64_t(n_normalized),
        uint64_t{parts.normalizer.size()}, uint64_t{parts.pre_tokenizer.size()},
        uint64_t{parts.prefix.size()}, uint64_t{parts.suffix.size()},
        static_cast<uint64_t>(parts.decoder), uint64_t{parts.decoder_flags}}) {
    out.Word(word);
  }
  for (const auto* text : {&parts.replace_from, &parts.replace_to, &parts.strip}) {
    blob.Append(*text, &out);
  }
  out.Word(blob.bytes.size());
  out.Word(0);
  out.Word(0);
  std::vector<uint8_t> bytes = out.Take();
  const std::vector<uint8_t> tables = body.Take();
  bytes.insert(bytes.end(), tables.begin(), tables.end());
  bytes.insert(bytes.end(), blob.bytes.begin(), blob.bytes.end());
  return bytes;
}

}  // namespace adder
