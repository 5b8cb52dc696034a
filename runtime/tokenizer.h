// Byte pair encoding over the tokenizer section of a model file, used in place.
// The converter compiles Hugging Face tokenizer.json into that section
// (converter/tokenizer_json.h); FORMAT.md, section "Tokenizer", is its layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/status.h"

namespace adder {

struct EncodeOptions {
  bool add_special = true;  // what the post-processor adds (BOS)
  // Special tokens written in the text become their ids; false: they are plain text. Added tokens
  // that tokenizer.json does not call special become their ids either way.
  bool parse_special = true;
};

class Tokenizer {
 public:
  // Borrows `section`, which must outlive the tokenizer. Validates everything once; after that no
  // text and no id can make a call read outside it. Costs milliseconds for 128,000 pieces.
  static Result<Tokenizer> Parse(std::span<const uint8_t> section);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  int32_t size() const;             // ids are 0 .. size() - 1
  bool Contains(int32_t id) const;  // there may be ids without a piece
  size_t max_piece_bytes() const;   // at most so many are appended by AppendPiece

  // Invalid UTF-8 is an error that gives the offset. Time is linear in the length of the text.
  Result<std::vector<int32_t>> Encode(std::string_view text,
                                      const EncodeOptions& options = {}) const;

  // The text of `ids`, always valid UTF-8: where ids cut a character, the bytes that form none
  // become U+FFFD, as in Hugging Face's tokenizers. Unknown ids are an error.
  Result<std::string> Decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // Appends the raw bytes of one token in a text to `out` (no allocation while its capacity lasts).
  // A character may be cut between tokens; text_stream.h holds its beginning back. `first`: no
  // token of the text has been appended yet, where those passed over by `skip_special` do not
  // count; some decoders strip a space there. Decode(ids) equals the concatenation of AppendPiece
  // over ids, up to the replacement of invalid bytes. A failed call leaves `out` as it was.
  Status AppendPiece(int32_t id, bool first, bool skip_special, std::string* out) const;

  bool IsSpecial(int32_t id) const;                 // false for unknown ids
  std::string_view PieceText(int32_t id) const;     // as in the vocabulary; empty for unknown ids
  int32_t FindPiece(std::string_view piece) const;  // -1: none

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace adder
