// What a generation shows, collected.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/generate.h"

namespace adder::test {

class CollectingSink final : public TextSink {
 public:
  bool OnText(std::string_view piece, int32_t token) override {
    text += piece;
    if (token >= 0) tokens.push_back(token);
    return true;
  }
  std::string text;
  std::vector<int32_t> tokens;
};

}  // namespace adder::test
