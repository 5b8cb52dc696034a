// Lays out the tokenizer section that runtime/tokenizer_section.h reads.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/status.h"
#include "runtime/tokenizer_section.h"

namespace adder {

struct TokenizerParts {
  struct Piece {
    std::string_view text;
    uint8_t flags = 0;  // kPieceInModel, ...; 0: no piece has this id
  };
  struct Merge {
    uint32_t left;
    uint32_t right;
    uint32_t rank;
    uint32_t merged;
  };
  struct Added {
    uint32_t id;
    uint32_t flags;
    std::string content;
    bool normalized;
  };
  struct Step {
    TextStepKind kind;
    uint32_t flags = 0;
    std::string a = {};
    std::string b = {};
    TextStepRecord record() const { return {kind, flags, a, b}; }
  };

  std::vector<Piece> pieces;  // by id
  std::vector<Merge> merges;  // any order; of equal pairs the last one counts
  uint32_t flags = 0;         // kModelByteFallback, ...
  uint32_t unk_id = kNoToken;
  std::vector<Added> added;  // any order; of equal contents the lowest id counts
  std::vector<Step> normalizer;
  std::vector<Step> pre_tokenizer;
  std::vector<uint32_t> prefix;
  std::vector<uint32_t> suffix;
  DecoderKind decoder = DecoderKind::kSpaces;
  uint32_t decoder_flags = 0;
  std::string replace_from;
  std::string replace_to;
  std::string strip;
};

// Two ids of one text are kCorruptFile; more than the format can hold is kUnsupported.
Result<std::vector<uint8_t>> WriteTokenizerSection(TokenizerParts parts);

}  // namespace adder
