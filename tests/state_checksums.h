// Makes changed states pass the first checks.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>

#include "runtime/model_file.h"
#include "runtime/session_state.h"

namespace adder::test {

inline StateHeader HeaderOf(std::span<const uint8_t> blob) {
  StateHeader header = {};
  std::memcpy(&header, blob.data(), std::min(blob.size(), sizeof(header)));
  return header;
}

// Puts first bytes, size and checksums right.
inline void FixStateChecksums(std::span<uint8_t> blob) {
  if (blob.size() < sizeof(StateHeader)) return;
  StateHeader header = HeaderOf(blob);
  std::memcpy(header.magic, kStateMagic, sizeof(kStateMagic));
  header.bytes = blob.size();
  header.contents_checksum = Checksum(blob.subspan(sizeof(header)));
  header.checksum = 0;
  header.checksum = Checksum({reinterpret_cast<const uint8_t*>(&header), sizeof(header)});
  std::memcpy(blob.data(), &header, sizeof(header));
}

}  // namespace adder::test
