#include "runtime/tokenizer.h"

#include <cinttypes>
#include <utility>

#include "runtime/added_tokens.h"
#include "runtime/bpe.h"
#include "runtime/byte_chars.h"
#include "runtime/text_steps.h"
#include "runtime/tokenizer_section.h"
#include "runtime/utf8.h"

namespace adder {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;

// Value of a piece of the form <0xHH>, else -1.
int ByteOfPiece(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
  int value = 0;
  for (const char c : piece.substr(3, 2)) {
    int digit = 0;
    if (c >= '0' && c <= '9') {
      digit = c - '0';
    } else if (c >= 'A' && c <= 'F') {
      digit = c - 'A' + 10;
    } else if (c >= 'a' && c <= 'f') {
      digit = c - 'a' + 10;
    } else {
      return -1;
    }
    value = value * 16 + digit;
  }
  return value;
}

// Appends the bytes that `piece` spells in the byte-level alphabet, or the piece itself when one
// of its characters is outside the alphabet.
void AppendByteLevel(std::string_view piece, std::string* out) {
  const size_t before = out->size();
  for (size_t at = 0; at < piece.size();) {
    const Utf8Char c = ReadUtf8(piece, at);
    if (c.kind != Utf8Char::Kind::kValid || c.code_point >= kByteCharEnd ||
        kCharToByte[c.code_point] < 0) {
      out->resize(before);
      out->append(piece);
      return;
    }
    out->push_back(static_cast<char>(kCharToByte[c.code_point]));
    at += c.length;
  }
}

void AppendReplaced(std::string_view piece, std::string_view from, std::string_view to,
                    std::string* out) {
  while (!from.empty()) {
    const size_t found = piece.find(from);
    if (found == std::string_view::npos) break;
    out->append(piece.substr(0, found)).append(to);
    piece.remove_prefix(found + from.size());
  }
  out->append(piece);
}

}  // namespace

struct Tokenizer::Impl {
  TokenizerSection section;
  std::vector<TextStep> normalizer;
  std::vector<TextStep> pre_tokenizer;
  AddedTokenFinder plain;       // over section.added_plain
  AddedTokenFinder normalized;  // over section.added_normalized
  size_t max_piece_bytes = 0;

  bool Has(int32_t id) const {
    return id >= 0 && static_cast<uint32_t>(id) < section.n_pieces &&
           section.piece_flags[static_cast<uint32_t>(id)] != 0;
  }
  bool IsSpecial(uint32_t id) const { return (section.piece_flags[id] & kPieceSpecial) != 0; }
  Status CheckId(int32_t id) const {
    if (Has(id)) return {};
    return Error(Code::kInvalidArgument, "token id %" PRId32 ": none of the tokenizer's %u pieces",
                 id, section.n_pieces);
  }
  bool IsBytePiece(std::string_view piece) const {
    return section.decoder == DecoderKind::kPlain &&
           (section.decoder_flags & kDecoderByteFallback) && ByteOfPiece(piece) >= 0;
  }
  void AppendBytes(std::string_view piece, bool first, std::string* out) const;
  // An upper bound of what AppendBytes appends.
  size_t MaxPieceBytes() const {
    size_t longest = 0;
    for (uint32_t id = 0; id < section.n_pieces; ++id) {
      longest = std::max(longest, section.Piece(id).size());
    }
    const size_t from = section.replace_from.size();
    const size_t growth = from == 0 ? 1 : std::max<size_t>(1, section.replace_to.size() / from + 1);
    return longest * growth + 1;  // the space that joins pieces
  }
};

// The bytes of one piece as the decoder writes them; everything but the replacement of bytes that
// do not form characters.
void Tokenizer::Impl::AppendBytes(std::string_view piece, bool first, std::string* out) const {
  const size_t before = out->size();
  switch (section.decoder) {
    case DecoderKind::kSpaces:
      if (!first) out->push_back(' ');
      out->append(piece);
      return;
    case DecoderKind::kByteLevel:
      AppendByteLevel(piece, out);
      break;
    case DecoderKind::kPlain:
      if (IsBytePiece(piece)) {
        out->push_back(static_cast<char>(ByteOfPiece(piece)));
      } else {
        const bool drop = first && (section.decoder_flags & kDecoderFirstDrops);
        AppendReplaced(piece, section.replace_from, drop ? "" : section.replace_to, out);
      }
      break;
  }
  if (first && !section.strip.empty() &&
      std::string_view(*out).substr(before).starts_with(section.strip)) {
    out->erase(before, section.strip.size());
  }
}

namespace {

// One call of Encode: text -> parts between added tokens -> normalized -> words -> ids.
class Encoder {
 public:
  Encoder(const TokenizerSection& section, std::span<const TextStep> normalizer,
          std::span<const TextStep> pre_tokenizer, bool parse_special, size_t limit,
          std::vector<int32_t>* ids)
      : section_(section),
        normalizer_(normalizer),
        pre_tokenizer_(pre_tokenizer),
        parse_special_(parse_special),
        limit_(limit),
        ids_(ids),
        levels_(pre_tokenizer.size()) {}

  Status Run(const AddedTokenFinder& plain, const AddedTokenFinder& normalized,
             std::string_view text) {
    std::vector<AddedMatch> outer;
    return VisitGaps(plain, text, &outer, [&](std::string_view gap, bool text_start) -> Status {
      std::vector<AddedMatch> inner;
      if (normalizer_.empty()) {
        return EncodeGap(normalized, gap, text_start, &inner);
      }
      ADDER_ASSIGN_OR_RETURN(const std::string clean,
                             RewriteAll(normalizer_, gap, text_start, limit_));
      return EncodeGap(normalized, clean, text_start, &inner);
    });
  }

 private:
  struct Level {  // buffers of one pre-tokenizer step
    std::string text;
    std::vector<TextRange> pieces;
  };

  // Emits the added tokens in `text`, and calls visit(gap, gap starts the text) between them.
  template <typename Visit>
  Status VisitGaps(const AddedTokenFinder& finder, std::string_view text,
                   std::vector<AddedMatch>* matches, Visit visit) {
    const auto skip = [&](uint32_t id) {
      return !parse_special_ && (section_.piece_flags[id] & kPieceSpecial) != 0;
    };
    finder.FindAll(text, skip, matches);
    size_t at = 0;
    for (const AddedMatch& match : *matches) {
      if (match.range.begin > at) {
        ADDER_RETURN_IF_ERROR(visit(text.substr(at, match.range.begin - at), at == 0));
      }
      ids_->push_back(static_cast<int32_t>(match.id));
      at = match.range.end;
    }
    return at < text.size() ? visit(text.substr(at), at == 0) : Status();
  }

  Status EncodeGap(const AddedTokenFinder& normalized, std::string_view text, bool text_start,
                   std::vector<AddedMatch>* matches) {
    return VisitGaps(normalized, text, matches, [&](std::string_view gap, bool gap_start) {
      return PreTokenize(0, gap, text_start && gap_start);
    });
  }

  // Depth first: each piece goes through the remaining steps before the next one is looked at.
  Status PreTokenize(size_t step_index, std::string_view text, bool text_start) {
    if (text.empty()) return {};
    if (step_index == pre_tokenizer_.size()) {
      EncodeWord(section_, text, parse_special_, &scratch_, ids_);
      return {};
    }
    const TextStep& step = pre_tokenizer_[step_index];
    Level& level = levels_[step_index];
    if (!step.is_split()) {
      ADDER_RETURN_IF_ERROR(step.Rewrite(text, text_start, limit_, &level.text));
      return PreTokenize(step_index + 1, level.text, text_start);
    }
    ADDER_RETURN_IF_ERROR(step.Split(text, &level.pieces));
    for (const TextRange& piece : level.pieces) {
      ADDER_RETURN_IF_ERROR(PreTokenize(step_index + 1,
                                        text.substr(piece.begin, piece.end - piece.begin),
                                        text_start && piece.begin == 0));
    }
    return {};
  }

  const TokenizerSection& section_;
  std::span<const TextStep> normalizer_;
  std::span<const TextStep> pre_tokenizer_;
  const bool parse_special_;
  const size_t limit_;
  std::vector<int32_t>* const ids_;
  std::vector<Level> levels_;
  BpeScratch scratch_;
};

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::Parse(std::span<const uint8_t> bytes) {
  auto impl = std::make_unique<Impl>();
  ADDER_ASSIGN_OR_RETURN(impl->section, TokenizerSection::Read(bytes));
  ADDER_ASSIGN_OR_RETURN(impl->normalizer, MakeTextSteps(impl->section.normalizer));
  ADDER_ASSIGN_OR_RETURN(impl->pre_tokenizer, MakeTextSteps(impl->section.pre_tokenizer));
  impl->plain = AddedTokenFinder(impl->section.added_plain);
  impl->normalized = AddedTokenFinder(impl->section.added_normalized);
  impl->max_piece_bytes = impl->MaxPieceBytes();
  return Tokenizer(std::move(impl));
}

int32_t Tokenizer::size() const { return static_cast<int32_t>(impl_->section.n_pieces); }

bool Tokenizer::Contains(int32_t id) const { return impl_->Has(id); }

size_t Tokenizer::max_piece_bytes() const { return impl_->max_piece_bytes; }

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                               const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    return Error(Code::kInvalidArgument, "text of %zu bytes, at most %zu can be encoded at once",
                 text.size(), kMaxTextBytes);
  }
  const size_t valid = ValidUtf8Prefix(text);
  if (valid != text.size()) {
    return Error(Code::kInvalidArgument, "text is not UTF-8: byte 0x%02X at offset %zu",
                 static_cast<unsigned>(static_cast<uint8_t>(text[valid])), valid);
  }
  const TokenizerSection& section = impl_->section;
  std::vector<int32_t> ids;
  if (options.add_special) ids = section.prefix;
  Encoder encoder(section, impl_->normalizer, impl_->pre_tokenizer, options.parse_special,
                  RewriteLimit(text.size()), &ids);
  ADDER_RETURN_IF_ERROR(encoder.Run(impl_->plain, impl_->normalized, text));
  if (options.add_special) ids.insert(ids.end(), section.suffix.begin(), section.suffix.end());
  return ids;
}

Result<std::string> Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string out;
  std::string bytes;  // what has not been made valid yet
  bool first = true;
  size_t byte_pieces = 0;  // how many of them `bytes` holds, where they are judged together
  const auto flush = [&] {
    // A run of byte pieces that is no text becomes one U+FFFD per byte, valid parts included.
    if (ValidUtf8Prefix(bytes) == bytes.size()) {
      out += bytes;
    } else if (byte_pieces > 0) {
      for (size_t i = 0; i < byte_pieces; ++i) out += kReplacementCharacter;
    } else {
      AppendLossyUtf8(bytes, &out);
    }
    bytes.clear();
    byte_pieces = 0;
  };
  for (const int32_t id : ids) {
    ADDER_RETURN_IF_ERROR(impl_->CheckId(id));
    const auto index = static_cast<uint32_t>(id);
    if (skip_special && impl_->IsSpecial(index)) continue;
    const std::string_view piece = impl_->section.Piece(index);
    const bool is_byte = impl_->IsBytePiece(piece);
    if (is_byte != (byte_pieces > 0)) flush();
    impl_->AppendBytes(piece, first, &bytes);
    if (is_byte) ++byte_pieces;
    first = false;
  }
  flush();
  return out;
}

Status Tokenizer::AppendPiece(int32_t id, bool first, bool skip_special, std::string* out) const {
  ADDER_RETURN_IF_ERROR(impl_->CheckId(id));
  const auto index = static_cast<uint32_t>(id);
  if (skip_special && impl_->IsSpecial(index)) return {};
  impl_->AppendBytes(impl_->section.Piece(index), first, out);
  return {};
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return impl_->Has(id) && impl_->IsSpecial(static_cast<uint32_t>(id));
}

std::string_view Tokenizer::PieceText(int32_t id) const {
  return impl_->Has(id) ? impl_->section.Piece(static_cast<uint32_t>(id)) : std::string_view();
}

int32_t Tokenizer::FindPiece(std::string_view piece) const {
  const uint32_t id = impl_->section.FindPiece(piece);
  return id == kNoToken ? -1 : static_cast<int32_t>(id);
}

}  // namespace adder
