// Saved states for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "runtime/model_file.h"
#include "runtime/session_state.h"

namespace adder::test {

inline std::vector<uint8_t> Saved(const Session& session) {
  std::vector<uint8_t> blob(StateBlob::Bytes(session));
  const Status saved = StateBlob::Save(session, blob);
  EXPECT_TRUE(saved.ok()) << saved.message();
  return blob;
}

inline StateHeader HeaderOf(std::span<const uint8_t> blob) {
  StateHeader header = {};
  std::memcpy(&header, blob.data(), std::min(blob.size(), sizeof(header)));
  return header;
}

// Puts size and checksums right, so that a changed blob gets past them.
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

// A blob whose header was changed by `change`.
template <typename Change>
std::vector<uint8_t> Changed(std::vector<uint8_t> blob, const Change& change) {
  StateHeader header = HeaderOf(blob);
  change(header);
  std::memcpy(blob.data(), &header, sizeof(header));
  FixStateChecksums(blob);
  return blob;
}

}  // namespace adder::test
