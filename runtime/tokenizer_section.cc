#include "runtime/tokenizer_section.h"

#include <algorithm>
#include <cinttypes>
#include <string>
#include <utility>

#include "runtime/utf8.h"

namespace adder {
namespace {

constexpr uint64_t kHeaderBytes = 96;

Status Corrupt(const char* what, uint64_t value, uint64_t bound) {
  return Error(Code::kCorruptFile, "tokenizer: %s %" PRIu64 ", allowed %" PRIu64, what, value,
               bound);
}

// Hands out the arrays of the section in file order.
class Cursor {
 public:
  explicit Cursor(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  const uint8_t* Take(uint64_t count, uint64_t item_bytes) {
    const uint64_t bytes = count * item_bytes;  // counts are bounded: no overflow
    if (bytes > bytes_.size() || at_ > bytes_.size() - bytes) {
      failed_ = true;
      return nullptr;
    }
    const uint8_t* const result = bytes_.data() + at_;
    at_ += bytes;
    return result;
  }
  bool failed() const { return failed_; }
  uint64_t at() const { return at_; }

 private:
  std::span<const uint8_t> bytes_;
  uint64_t at_ = 0;
  bool failed_ = false;
};

// A {offset, bytes} into the blob. Valid UTF-8, because text is searched for it and made of it, and
// PCRE2 is told that the text is valid.
Status ReadString(std::string_view blob, const uint8_t* record, uint32_t max_bytes,
                  const char* what, std::string_view* out) {
  const uint64_t offset = LoadU32(record);
  const uint64_t bytes = LoadU32(record + 4);
  if (bytes > max_bytes) return Corrupt(what, bytes, max_bytes);
  if (bytes > blob.size() || offset > blob.size() - bytes) {
    return Corrupt(what, offset + bytes, blob.size());
  }
  *out = blob.substr(offset, bytes);
  const size_t valid = ValidUtf8Prefix(*out);
  return valid == bytes ? Status() : Corrupt("string not UTF-8 after bytes", valid, bytes);
}

// u32 [n + 1], starting at 0 and not falling; the last one is at most `end`.
Status CheckOffsets(const uint8_t* offsets, uint64_t n, uint64_t end, const char* what) {
  uint32_t previous = LoadU32(offsets);
  if (previous != 0) return Corrupt(what, previous, 0);
  for (uint64_t i = 1; i <= n; ++i) {
    const uint32_t offset = LoadU32(offsets + 4 * i);
    if (offset < previous) return Corrupt(what, offset, previous);
    previous = offset;
  }
  return previous > end ? Corrupt(what, previous, end) : Status();
}

Status CheckIds(const uint8_t* ids, uint64_t count, uint32_t n, bool may_be_none,
                const char* what) {
  for (uint64_t i = 0; i < count; ++i) {
    const uint32_t id = LoadU32(ids + 4 * i);
    if (id >= n && !(may_be_none && id == kNoToken)) return Corrupt(what, id, n);
  }
  return {};
}

Status CheckMerges(const TokenizerSection& s) {
  ADDER_RETURN_IF_ERROR(CheckOffsets(s.merge_offsets, s.n_pieces, s.n_merges, "merge offset"));
  const uint32_t last = LoadU32(s.merge_offsets + 4 * size_t{s.n_pieces});
  if (last != s.n_merges) return Corrupt("last merge offset", last, s.n_merges);
  uint32_t begin = 0;
  for (uint64_t left = 0; left < s.n_pieces; ++left) {
    const uint32_t end = LoadU32(s.merge_offsets + 4 * left + 4);
    for (uint64_t i = begin; i < end; ++i) {
      const uint8_t* const merge = s.merges + 12 * i;
      const uint32_t right = LoadU32(merge);
      if (right >= s.n_pieces) return Corrupt("merge with id", right, s.n_pieces);
      if (LoadU32(merge + 8) >= s.n_pieces) {
        return Corrupt("merge into id", LoadU32(merge + 8), s.n_pieces);
      }
      if (i > begin && LoadU32(merge - 12) >= right) {
        return Corrupt("unsorted merges, id", LoadU32(merge - 12), right);
      }
    }
    begin = end;
  }
  return {};
}

Status ReadAdded(const TokenizerSection& s, const uint8_t* records, uint32_t count,
                 std::vector<AddedToken>* out) {
  for (uint32_t i = 0; i < count; ++i) {
    const uint8_t* const record = records + 16 * size_t{i};
    AddedToken token{LoadU32(record), LoadU32(record + 4), {}};
    if (token.id >= s.n_pieces) return Corrupt("added token id", token.id, s.n_pieces);
    if ((s.piece_flags[token.id] & kPieceAdded) == 0) {
      return Corrupt("added token: flags of the piece", s.piece_flags[token.id], kPieceAdded);
    }
    if (token.flags > 7) return Corrupt("added token flags", token.flags, 7);
    ADDER_RETURN_IF_ERROR(
        ReadString(s.blob, record + 8, kMaxAddedTokenBytes, "added token bytes", &token.content));
    if (token.content.empty()) return Corrupt("empty added token", token.id, s.n_pieces);
    if (!out->empty() && out->back().content >= token.content) {
      return Corrupt("unsorted added token", i, count);
    }
    out->push_back(token);
  }
  return {};
}

// Flags that a step of this kind may carry; UINT32_MAX for an unknown kind.
uint32_t AllowedStepFlags(TextStepKind kind) {
  switch (kind) {
    case TextStepKind::kNfc:
    case TextStepKind::kNfd:
    case TextStepKind::kNfkc:
    case TextStepKind::kNfkd:
    case TextStepKind::kPrepend:
    case TextStepKind::kReplace:
    case TextStepKind::kReplaceRegex:
    case TextStepKind::kByteChars:
      return 0;
    case TextStepKind::kEnsurePrefix:
      return kStepTextStart;
    case TextStepKind::kSplitRegex:
    case TextStepKind::kSplitLiteral:
    case TextStepKind::kSplitPunctuation:
    case TextStepKind::kSplitDigits:
      return kStepBehaviorMask | kStepInvert;
  }
  return UINT32_MAX;
}

Status ReadSteps(std::string_view blob, const uint8_t* records, uint32_t count, bool may_split,
                 std::vector<TextStepRecord>* out) {
  for (uint32_t i = 0; i < count; ++i) {
    const uint8_t* const record = records + 24 * size_t{i};
    TextStepRecord step{static_cast<TextStepKind>(LoadU32(record)), LoadU32(record + 4)};
    const uint32_t allowed = AllowedStepFlags(step.kind);
    if (allowed == UINT32_MAX || (!may_split && step.kind > TextStepKind::kReplaceRegex)) {
      return Error(Code::kUnsupported, "tokenizer: step %u of unknown kind %u", i, LoadU32(record));
    }
    if (step.flags & ~allowed) return Corrupt("step flags", step.flags, allowed);
    if ((allowed & kStepBehaviorMask) &&
        (step.flags & kStepBehaviorMask) > static_cast<uint32_t>(SplitBehavior::kContiguous)) {
      return Corrupt("split behavior", step.flags & kStepBehaviorMask, 4);
    }
    const bool regex =
        step.kind == TextStepKind::kSplitRegex || step.kind == TextStepKind::kReplaceRegex;
    ADDER_RETURN_IF_ERROR(ReadString(blob, record + 8,
                                     regex ? kMaxPatternBytes : kMaxReplacementBytes,
                                     "step string bytes", &step.a));
    ADDER_RETURN_IF_ERROR(
        ReadString(blob, record + 16, kMaxReplacementBytes, "step string bytes", &step.b));
    const bool needs_a =
        regex || step.kind == TextStepKind::kReplace || step.kind == TextStepKind::kSplitLiteral;
    if (needs_a && step.a.empty()) return Corrupt("step with an empty pattern", i, count);
    out->push_back(step);
  }
  return {};
}

}  // namespace

uint32_t TokenizerSection::FindPiece(std::string_view piece) const {
  uint32_t low = 0;
  uint32_t high = n_sorted;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    const uint32_t id = LoadU32(sorted_ids + 4 * size_t{middle});
    const int order = Piece(id).compare(piece);
    if (order == 0) return id;
    if (order < 0) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return kNoToken;
}

Result<TokenizerSection> TokenizerSection::Read(std::span<const uint8_t> bytes) {
  if (bytes.size() < kHeaderBytes) return Corrupt("header of bytes", bytes.size(), kHeaderBytes);
  const auto header = [&](size_t word) { return LoadU32(bytes.data() + 4 * word); };
  if (header(0) != kTokenizerMagic) return Corrupt("magic", header(0), kTokenizerMagic);
  if (header(1) != kTokenizerVersion) {
    return Error(Code::kUnsupported, "tokenizer: version %u, this build reads %u", header(1),
                 kTokenizerVersion);
  }
  TokenizerSection s;
  s.flags = header(2);
  s.n_pieces = header(3);
  s.n_sorted = header(4);
  s.n_merges = header(5);
  s.unk_id = header(6);
  const uint32_t n_plain = header(7);
  const uint32_t n_normalized = header(8);
  const uint32_t n_normalizer = header(9);
  const uint32_t n_pre = header(10);
  const uint32_t n_prefix = header(11);
  const uint32_t n_suffix = header(12);
  s.decoder = static_cast<DecoderKind>(header(13));
  s.decoder_flags = header(14);
  const uint32_t blob_bytes = header(21);

  if (s.flags > 7) return Corrupt("flags", s.flags, 7);
  if (s.n_pieces == 0 || s.n_pieces > kMaxPieces) return Corrupt("pieces", s.n_pieces, kMaxPieces);
  if (s.n_sorted > s.n_pieces) return Corrupt("sorted pieces", s.n_sorted, s.n_pieces);
  if (s.n_merges > kMaxMerges) return Corrupt("merges", s.n_merges, kMaxMerges);
  if (s.unk_id != kNoToken && s.unk_id >= s.n_pieces) {
    return Corrupt("unknown-token id", s.unk_id, s.n_pieces);
  }
  for (const uint32_t n : {n_plain, n_normalized}) {
    if (n > kMaxAddedTokens) return Corrupt("added tokens", n, kMaxAddedTokens);
  }
  for (const uint32_t n : {n_normalizer, n_pre}) {
    if (n > kMaxTextSteps) return Corrupt("text steps", n, kMaxTextSteps);
  }
  for (const uint32_t n : {n_prefix, n_suffix}) {
    if (n > kMaxAffixIds) return Corrupt("ids of the post-processor", n, kMaxAffixIds);
  }
  if (header(13) > 2) return Error(Code::kUnsupported, "tokenizer: decoder kind %u", header(13));
  if (s.decoder_flags > 3) return Corrupt("decoder flags", s.decoder_flags, 3);
  for (const size_t word : {size_t{22}, size_t{23}}) {
    if (header(word) != 0) return Corrupt("reserved word", header(word), 0);
  }

  Cursor cursor(bytes);
  cursor.Take(kHeaderBytes, 1);
  s.piece_offsets = cursor.Take(uint64_t{s.n_pieces} + 1, 4);
  s.sorted_ids = cursor.Take(s.n_sorted, 4);
  s.merge_offsets = cursor.Take(uint64_t{s.n_pieces} + 1, 4);
  s.merges = cursor.Take(s.n_merges, 12);
  s.char_ids = cursor.Take(kCharIds, 4);
  s.byte_ids = cursor.Take(256, 4);
  const uint8_t* const plain = cursor.Take(n_plain, 16);
  const uint8_t* const normalized = cursor.Take(n_normalized, 16);
  const uint8_t* const normalizer = cursor.Take(n_normalizer, 24);
  const uint8_t* const pre_tokenizer = cursor.Take(n_pre, 24);
  const uint8_t* const prefix = cursor.Take(n_prefix, 4);
  const uint8_t* const suffix = cursor.Take(n_suffix, 4);
  s.piece_flags = cursor.Take(s.n_pieces, 1);
  const uint8_t* const blob = cursor.Take(blob_bytes, 1);
  if (cursor.failed() || cursor.at() != bytes.size()) {
    return Error(Code::kCorruptFile,
                 "tokenizer: section of %zu bytes, its counts do not add up to that", bytes.size());
  }
  s.blob = std::string_view(reinterpret_cast<const char*>(blob), blob_bytes);

  ADDER_RETURN_IF_ERROR(CheckOffsets(s.piece_offsets, s.n_pieces, blob_bytes, "piece offset"));
  ADDER_RETURN_IF_ERROR(CheckIds(s.sorted_ids, s.n_sorted, s.n_pieces, false, "sorted id"));
  ADDER_RETURN_IF_ERROR(CheckMerges(s));
  ADDER_RETURN_IF_ERROR(CheckIds(s.char_ids, kCharIds, s.n_pieces, true, "character id"));
  ADDER_RETURN_IF_ERROR(CheckIds(s.byte_ids, 256, s.n_pieces, true, "byte id"));
  ADDER_RETURN_IF_ERROR(CheckIds(prefix, n_prefix, s.n_pieces, false, "post-processor id"));
  ADDER_RETURN_IF_ERROR(CheckIds(suffix, n_suffix, s.n_pieces, false, "post-processor id"));
  for (uint32_t i = 0; i < s.n_pieces; ++i) {
    if (s.piece_flags[i] > 7) return Corrupt("piece flags", s.piece_flags[i], 7);
  }
  ADDER_RETURN_IF_ERROR(ReadAdded(s, plain, n_plain, &s.added_plain));
  ADDER_RETURN_IF_ERROR(ReadAdded(s, normalized, n_normalized, &s.added_normalized));
  ADDER_RETURN_IF_ERROR(ReadSteps(s.blob, normalizer, n_normalizer, false, &s.normalizer));
  ADDER_RETURN_IF_ERROR(ReadSteps(s.blob, pre_tokenizer, n_pre, true, &s.pre_tokenizer));
  for (uint32_t i = 0; i < n_prefix; ++i) {
    s.prefix.push_back(static_cast<int32_t>(LoadU32(prefix + 4 * i)));
  }
  for (uint32_t i = 0; i < n_suffix; ++i) {
    s.suffix.push_back(static_cast<int32_t>(LoadU32(suffix + 4 * i)));
  }
  const uint8_t* const strings = bytes.data() + 60;
  for (auto [at, out] : {std::pair{0, &s.replace_from}, {8, &s.replace_to}, {16, &s.strip}}) {
    ADDER_RETURN_IF_ERROR(
        ReadString(s.blob, strings + at, kMaxReplacementBytes, "decoder string bytes", out));
  }
  return s;
}

}  // namespace adder
