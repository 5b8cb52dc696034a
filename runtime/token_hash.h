// What tells one text from another without keeping its tokens.
#pragma once

#include <cstdint>

namespace adder {

// 128 bits that depend on all tokens so far and their order: h := XXH3-128(h, token), from zeros.
// Not a defence against texts made to collide.
struct TokenHash {
  uint64_t low = 0, high = 0;

  void Add(int32_t token);
  bool operator==(const TokenHash&) const = default;
};

}  // namespace adder
