// GGUF files with changed bytes.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "converter/checkpoint.h"
#include "converter/gguf_checkpoint.h"

namespace adder::test {

// Whatever one changed byte among the first `end` makes of a file, it is read or refused.
inline void ExpectReadOrRefused(std::span<const uint8_t> file, size_t end) {
  size_t read = 0;
  for (size_t at = 0; at < end; ++at) {
    for (const int change : {0x01, 0x80, 0xff}) {
      std::vector<uint8_t> changed(file.begin(), file.end());
      changed[at] = static_cast<uint8_t>(changed[at] ^ change);
      const auto checkpoint = ReadGguf(changed, "w.gguf");
      if (!checkpoint.ok()) continue;
      ++read;
      for (const auto& [name, tensor] : checkpoint->tensors) (void)ReadF32(tensor, name).ok();
    }
  }
  EXPECT_GT(read, 0u);
}

}  // namespace adder::test
