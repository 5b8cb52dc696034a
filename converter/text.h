// Untrusted text in messages.
#pragma once

#include <string>
#include <string_view>

namespace adder {

// `text` for a message: control characters as \xNN, and cut with "..." after `limit` bytes, so that
// a hostile name neither drives the terminal nor fills it.
inline std::string Shown(std::string_view text, size_t limit = 120) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const char c : text.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      out += c;
    }
  }
  if (text.size() > limit) out += "...";
  return out;
}

}  // namespace adder
