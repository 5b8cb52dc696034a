// A generation that was interrupted between two tokens and may go on: generate.h, keep_open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/token_hash.h"

namespace adder {

struct OpenGeneration {
  static constexpr size_t kMaxWindow = 1024;  // tokens of the sampler's penalty window
  static constexpr size_t kMaxStop = 1024;    // bytes of a stop string
  static constexpr size_t kMaxSampler = 16 + kMaxWindow * sizeof(int32_t);
  static constexpr size_t kMaxText = kMaxStop + 4;  // and the beginning of a character

  bool open = false;
  bool text_begins = false;  // nothing but special tokens so far
  uint64_t position = 0;     // behind its last token
  TokenHash hash;            // of all tokens up to there
  uint32_t sampler_bytes = 0, text_bytes = 0;
  uint8_t sampler[kMaxSampler];  // Sampler::SaveState
  char text[kMaxText];           // held back: TextStream::AppendHeld

  std::span<const uint8_t> sampler_state() const { return {sampler, sampler_bytes}; }
  std::string_view held_text() const { return {text, text_bytes}; }
};

}  // namespace adder
