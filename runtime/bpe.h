// Byte pair encoding of one word over the merges of a tokenizer section.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/tokenizer_section.h"

namespace adder {

// Working memory of EncodeWord, kept from word to word.
struct BpeScratch {
  struct Symbol {
    uint32_t id;
    int32_t previous;  // -1: none
    int32_t next;      // -1: none
    bool alive;
  };
  struct Merge {  // a pair that can be joined
    uint32_t rank;
    int32_t left;  // position of its left symbol
    uint32_t merged;
  };
  std::vector<Symbol> symbols;
  std::vector<Merge> heap;
};

// Appends the ids of `word` (valid UTF-8, below 2^31 bytes) to `ids`. Always applies the merge of
// lowest rank, the leftmost one among equals, by a heap of candidates over a linked list:
// n log n for a word of n characters, whatever they are. `allow_special`: a whole word may be
// looked up as a special piece where the model ignores merges.
void EncodeWord(const TokenizerSection& section, std::string_view word, bool allow_special,
                BpeScratch* scratch, std::vector<int32_t>* ids);

}  // namespace adder
