// The GPT-2 alphabet: a printable character for every byte, in which byte-level vocabularies are
// written. Printable Latin-1 bytes stand for themselves, the other 68 are U+0100, U+0101, ... in
// the order of their values.
#pragma once

#include <array>
#include <cstdint>

namespace adder {

inline constexpr char32_t kByteCharEnd = 0x144;  // all characters of the alphabet are below

constexpr bool IsOwnByteChar(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

constexpr std::array<uint16_t, 256> MakeByteToChar() {
  std::array<uint16_t, 256> table{};
  uint16_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    table[byte] = IsOwnByteChar(byte) ? static_cast<uint16_t>(byte) : next++;
  }
  return table;
}

inline constexpr std::array<uint16_t, 256> kByteToChar = MakeByteToChar();

constexpr std::array<int16_t, kByteCharEnd> MakeCharToByte() {
  std::array<int16_t, kByteCharEnd> table{};
  table.fill(-1);
  for (uint32_t byte = 0; byte < 256; ++byte) table[kByteToChar[byte]] = static_cast<int16_t>(byte);
  return table;
}

inline constexpr std::array<int16_t, kByteCharEnd> kCharToByte = MakeCharToByte();  // -1: none

}  // namespace adder
