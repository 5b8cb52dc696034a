// Layout of the tokenizer section, shared by its writer (converter/tokenizer_section_writer.h) and
// its reader. FORMAT.md, section "Tokenizer", is normative; numbers here are pinned.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/status.h"

namespace adder {

inline constexpr uint32_t kTokenizerMagic = 0x4B4F5441;  // "ATOK"
inline constexpr uint32_t kTokenizerVersion = 1;
inline constexpr uint32_t kNoToken = 0xFFFFFFFF;
inline constexpr uint32_t kMaxPieces = 1u << 22;
inline constexpr uint32_t kMaxMerges = 1u << 24;
inline constexpr uint32_t kMaxAddedTokens = 1u << 16;
inline constexpr uint32_t kMaxAddedTokenBytes = 1024;  // keeps matching linear in the text
inline constexpr uint32_t kMaxTextSteps = 16;          // of the normalizer, of the pre-tokenizer
inline constexpr uint32_t kMaxPatternBytes = 4096;
inline constexpr uint32_t kMaxReplacementBytes = 256;
inline constexpr uint32_t kMaxAffixIds = 16;  // ids that the post-processor adds at one end
inline constexpr uint32_t kCharIds = 512;     // characters whose ids are tabulated: U+0000..U+01FF

// Header flags.
inline constexpr uint32_t kModelByteFallback = 1;  // unknown characters become <0xHH> tokens
inline constexpr uint32_t kModelFuseUnknown = 2;   // neighbouring unknown characters are one token
inline constexpr uint32_t kModelIgnoreMerges = 4;  // a word that is a piece is not split

// Flags of a piece.
inline constexpr uint8_t kPieceInModel = 1;  // part of the BPE vocabulary
inline constexpr uint8_t kPieceAdded = 2;    // an added token
inline constexpr uint8_t kPieceSpecial = 4;  // an added token that is special

// Flags of an added token.
inline constexpr uint32_t kAddedSingleWord = 1;  // only where no word character touches it
inline constexpr uint32_t kAddedStripLeft = 2;   // takes the white space before it
inline constexpr uint32_t kAddedStripRight = 4;  // takes the white space after it

enum class DecoderKind : uint32_t {
  kSpaces = 0,     // no decoder: pieces joined by spaces
  kByteLevel = 1,  // characters of byte_chars.h stand for bytes
  kPlain = 2,      // pieces as written, after the replacement below
};
inline constexpr uint32_t kDecoderByteFallback = 1;  // <0xHH> stands for a byte
inline constexpr uint32_t kDecoderFirstDrops = 2;    // in the first piece, `from` becomes nothing

// What a step of the normalizer or the pre-tokenizer does to a piece of text, with strings a, b.
enum class TextStepKind : uint32_t {
  kNfc = 1,
  kNfd = 2,
  kNfkc = 3,
  kNfkd = 4,
  kPrepend = 5,       // puts a in front
  kReplace = 6,       // every a becomes b
  kReplaceRegex = 7,  // every match of pattern a becomes b
  kEnsurePrefix =
      8,             // puts a in front unless it is there; kStepTextStart: at the text's start only
  kByteChars = 9,    // every byte becomes its character of byte_chars.h
  kSplitRegex = 10,  // splits at matches of pattern a
  kSplitLiteral = 11,      // splits at occurrences of a
  kSplitPunctuation = 12,  // splits at each punctuation character
  kSplitDigits = 13,       // splits at each numeric character
};

// Flags of a step: the low 3 bits of a split are its SplitBehavior.
inline constexpr uint32_t kStepBehaviorMask = 7;
inline constexpr uint32_t kStepInvert = 8;      // splits: what lies between the matches matches
inline constexpr uint32_t kStepTextStart = 16;  // kEnsurePrefix

enum class SplitBehavior : uint32_t {
  kRemoved = 0,   // matches are dropped
  kIsolated = 1,  // matches are pieces of their own
  kMergedWithPrevious = 2,
  kMergedWithNext = 3,
  kContiguous = 4,  // neighbouring matches are one piece
};

constexpr bool IsSplit(TextStepKind kind) { return kind >= TextStepKind::kSplitRegex; }

struct TextStepRecord {
  TextStepKind kind;
  uint32_t flags = 0;
  std::string_view a = {};
  std::string_view b = {};
};

struct AddedToken {
  uint32_t id;
  uint32_t flags;
  std::string_view content;  // what is looked for; of normalized tokens the normalized content
};

inline uint32_t LoadU32(const uint8_t* bytes) {
  uint32_t value;  // the format and every supported machine are little-endian
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// The section, checked and ready for use in place; views point into the bytes given to Read.
// Sizes of the large tables are those of the file, and nothing of them is copied.
struct TokenizerSection {
  static Result<TokenizerSection> Read(std::span<const uint8_t> bytes);

  // `id` must be below n_pieces.
  std::string_view Piece(uint32_t id) const {
    const uint32_t begin = LoadU32(piece_offsets + 4 * size_t{id});
    return blob.substr(begin, LoadU32(piece_offsets + 4 * size_t{id} + 4) - begin);
  }
  // kNoToken: none.
  uint32_t FindPiece(std::string_view piece) const;
  // The same among the pieces of the BPE vocabulary.
  uint32_t FindInModel(std::string_view piece) const {
    const uint32_t id = FindPiece(piece);
    return id != kNoToken && (piece_flags[id] & kPieceInModel) ? id : kNoToken;
  }

  uint32_t flags = 0;
  uint32_t n_pieces = 0;
  uint32_t n_sorted = 0;
  uint32_t n_merges = 0;
  uint32_t unk_id = kNoToken;
  const uint8_t* piece_offsets = nullptr;  // u32 [n_pieces + 1], into blob
  const uint8_t* sorted_ids = nullptr;     // u32 [n_sorted], by bytes of the piece
  const uint8_t* merge_offsets = nullptr;  // u32 [n_pieces + 1], into merges
  const uint8_t* merges = nullptr;         // {u32 right, rank, merged} [n_merges], by left, right
  const uint8_t* char_ids = nullptr;       // u32 [kCharIds]: BPE piece that is this character
  const uint8_t* byte_ids = nullptr;       // u32 [256]: BPE piece <0xHH>
  const uint8_t* piece_flags = nullptr;    // u8 [n_pieces]; 0: no piece has this id
  std::string_view blob;
  std::vector<AddedToken> added_plain;       // looked for before normalization; sorted by content
  std::vector<AddedToken> added_normalized;  // looked for after it
  std::vector<TextStepRecord> normalizer;
  std::vector<TextStepRecord> pre_tokenizer;
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
  DecoderKind decoder = DecoderKind::kSpaces;
  uint32_t decoder_flags = 0;
  std::string_view replace_from;  // decoder; empty: nothing is replaced
  std::string_view replace_to;
  std::string_view strip;  // decoder; dropped once from the start of the text
};

}  // namespace adder
