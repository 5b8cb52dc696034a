#include "runtime/token_hash.h"

#include <xxhash.h>

#include <bit>
#include <cstring>

namespace adder {

static_assert(std::endian::native == std::endian::little, "numbers are hashed as they lie");

void TokenHash::Add(int32_t token) {
  uint8_t bytes[2 * sizeof(uint64_t) + sizeof(int32_t)];
  std::memcpy(bytes, &low, sizeof(low));
  std::memcpy(bytes + 8, &high, sizeof(high));
  std::memcpy(bytes + 16, &token, sizeof(token));
  const XXH128_hash_t hash = XXH3_128bits(bytes, sizeof(bytes));
  low = hash.low64;
  high = hash.high64;
}

}  // namespace adder
