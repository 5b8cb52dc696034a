// Saved states for tests.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "tests/state_checksums.h"

namespace adder::test {

inline std::vector<uint8_t> Saved(const Session& session) {
  std::vector<uint8_t> blob(StateBlob::Bytes(session));
  const Status saved = StateBlob::Save(session, blob);
  EXPECT_TRUE(saved.ok()) << saved.message();
  return blob;
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
