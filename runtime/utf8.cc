#include "runtime/utf8.h"

#include <cstring>

namespace adder {

Utf8Char ReadUtf8(std::string_view text, size_t offset) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[offset + i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {Utf8Char::Kind::kValid, 1, lead};

  // The second byte has a narrower range after E0, ED, F0 and F4: no overlong forms, no
  // surrogates, nothing beyond U+10FFFF.
  uint32_t length = 0;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  char32_t code_point = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
    code_point = lead & 0x1F;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    code_point = lead & 0x0F;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    code_point = lead & 0x07;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Utf8Char::Kind::kInvalid, 1, 0};
  }
  for (uint32_t i = 1; i < length; ++i) {
    if (offset + i == text.size()) return {Utf8Char::Kind::kIncomplete, i, 0};
    const uint8_t next = byte(i);
    if (next < low || next > high) return {Utf8Char::Kind::kInvalid, i, 0};
    code_point = (code_point << 6) | (next & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Char::Kind::kValid, length, code_point};
}

size_t ValidUtf8Prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight = 0;
    if (text.size() - at >= sizeof eight) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const Utf8Char c = ReadUtf8(text, at);
    if (c.kind != Utf8Char::Kind::kValid) return at;
    at += c.length;
  }
  return at;
}

void AppendUtf8(char32_t code_point, std::string* out) {
  const auto add = [out](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    add(code_point);
  } else if (code_point < 0x800) {
    add(0xC0 | (code_point >> 6));
    add(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    add(0xE0 | (code_point >> 12));
    add(0x80 | ((code_point >> 6) & 0x3F));
    add(0x80 | (code_point & 0x3F));
  } else {
    add(0xF0 | (code_point >> 18));
    add(0x80 | ((code_point >> 12) & 0x3F));
    add(0x80 | ((code_point >> 6) & 0x3F));
    add(0x80 | (code_point & 0x3F));
  }
}

void AppendLossyUtf8(std::string_view bytes, std::string* out) {
  while (true) {
    const size_t valid = ValidUtf8Prefix(bytes);
    out->append(bytes.substr(0, valid));
    if (valid == bytes.size()) return;
    out->append(kReplacementCharacter);
    bytes.remove_prefix(valid + ReadUtf8(bytes, valid).length);
  }
}

}  // namespace adder
