#include "runtime/bpe.h"

#include <algorithm>

#include "runtime/utf8.h"

namespace adder {
namespace {

using Symbol = BpeScratch::Symbol;
using Merge = BpeScratch::Merge;

// Order of a heap whose top is the merge to apply next.
bool ComesLater(const Merge& a, const Merge& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
}

// {right, rank, merged} of the pair, or nullptr.
const uint8_t* FindMerge(const TokenizerSection& s, uint32_t left, uint32_t right) {
  uint32_t low = LoadU32(s.merge_offsets + 4 * size_t{left});
  uint32_t high = LoadU32(s.merge_offsets + 4 * size_t{left} + 4);
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    const uint8_t* const merge = s.merges + 12 * size_t{middle};
    const uint32_t found = LoadU32(merge);
    if (found == right) return merge;
    if (found < right) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return nullptr;
}

// Splits the word into characters, bytes (byte fallback) and unknown tokens.
void AddSymbols(const TokenizerSection& s, std::string_view word, std::vector<Symbol>* symbols) {
  const auto add = [&](uint32_t id) {
    const auto at = static_cast<int32_t>(symbols->size());
    symbols->push_back({id, at - 1, at + 1, true});
  };
  symbols->reserve(word.size());
  bool unknown_pending = false;
  for (size_t at = 0; at < word.size();) {
    const Utf8Char c = ReadUtf8(word, at);
    const std::string_view text = word.substr(at, c.length);
    at += c.length;
    const uint32_t id = c.code_point < kCharIds ? LoadU32(s.char_ids + 4 * size_t{c.code_point})
                                                : s.FindInModel(text);
    if (id != kNoToken) {
      if (unknown_pending) add(s.unk_id);
      unknown_pending = false;
      add(id);
      continue;
    }
    if (s.flags & kModelByteFallback) {
      const auto byte_id = [&](char byte) {
        return LoadU32(s.byte_ids + 4 * size_t{static_cast<uint8_t>(byte)});
      };
      if (std::none_of(text.begin(), text.end(),
                       [&](char byte) { return byte_id(byte) == kNoToken; })) {
        // As in Hugging Face's tokenizers, a pending unknown token stays pending here.
        for (const char byte : text) add(byte_id(byte));
        continue;
      }
    }
    if (s.unk_id == kNoToken) continue;  // characters without a token vanish
    if (unknown_pending && !(s.flags & kModelFuseUnknown)) add(s.unk_id);
    unknown_pending = true;
  }
  if (unknown_pending) add(s.unk_id);
  if (!symbols->empty()) symbols->back().next = -1;
}

}  // namespace

void EncodeWord(const TokenizerSection& s, std::string_view word, bool allow_special,
                BpeScratch* scratch, std::vector<int32_t>* ids) {
  if (s.flags & kModelIgnoreMerges) {
    const uint32_t id = s.FindInModel(word);
    if (id != kNoToken && (allow_special || !(s.piece_flags[id] & kPieceSpecial))) {
      ids->push_back(static_cast<int32_t>(id));
      return;
    }
  }
  std::vector<Symbol>& symbols = scratch->symbols;
  std::vector<Merge>& heap = scratch->heap;
  symbols.clear();
  heap.clear();
  AddSymbols(s, word, &symbols);

  const auto find = [&](int32_t left, int32_t right) {
    return FindMerge(s, symbols[static_cast<size_t>(left)].id,
                     symbols[static_cast<size_t>(right)].id);
  };
  const auto candidate = [](const uint8_t* merge, int32_t left) {
    return Merge{LoadU32(merge + 4), left, LoadU32(merge + 8)};
  };
  const auto push = [&](int32_t left, int32_t right) {
    if (const uint8_t* const merge = find(left, right)) {
      heap.push_back(candidate(merge, left));
      std::push_heap(heap.begin(), heap.end(), ComesLater);
    }
  };
  for (int32_t i = 0; i + 1 < static_cast<int32_t>(symbols.size()); ++i) {
    if (const uint8_t* const merge = find(i, i + 1)) heap.push_back(candidate(merge, i));
  }
  std::make_heap(heap.begin(), heap.end(), ComesLater);

  while (!heap.empty()) {
    const Merge merge = heap.front();
    std::pop_heap(heap.begin(), heap.end(), ComesLater);
    heap.pop_back();
    Symbol& left = symbols[static_cast<size_t>(merge.left)];
    if (!left.alive || left.next < 0) continue;
    // Stale unless the two symbols now there still join into the same piece.
    const uint8_t* const current = find(merge.left, left.next);
    if (current == nullptr || LoadU32(current + 8) != merge.merged) continue;

    Symbol& right = symbols[static_cast<size_t>(left.next)];
    right.alive = false;
    left.id = merge.merged;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = merge.left;
    if (left.previous >= 0) push(left.previous, merge.left);
    if (left.next >= 0) push(merge.left, left.next);
  }
  for (const Symbol& symbol : symbols) {
    if (symbol.alive) ids->push_back(static_cast<int32_t>(symbol.id));
  }
}

}  // namespace adder
