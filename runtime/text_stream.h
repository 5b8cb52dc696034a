// Turns the bytes of tokens into text to show while it is being generated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/status.h"

namespace adder {

// Let L be all the bytes pushed, with each ill-formed part replaced by U+FFFD (AppendLossyUtf8).
// The pieces released, put together, are L up to the stop string that is complete first - of those
// that end at the same byte, the longest - or all of L when there is none. Each piece is whole
// characters, and comes as soon as no later byte can take it back: held are only the beginning of a
// character, and text with which a stop string may begin.
//
// Nothing is allocated after Create as long as no push is longer than `max_piece_bytes`.
class TextStream {
 public:
  // Stop strings must be non-empty valid UTF-8.
  static Result<TextStream> Create(std::vector<std::string> stops, size_t max_piece_bytes);

  // Takes the bytes of the next token and gives the text to show now, valid until the next call.
  // Once stopped, and after Flush, everything is cut: the result is empty.
  std::string_view Push(std::string_view bytes);

  // The text has ended: gives all that is held.
  std::string_view Flush();

  // Appends what is held back. Pushed into a new stream with the same stop strings it makes that
  // stream go on like this one.
  void AppendHeld(std::string* out) const;

  bool stopped() const { return stopped_; }  // a stop string has been completed

  // Begins another text, with the same stop strings.
  void Reset();

 private:
  struct Stop {
    std::string text;
    // border[n]: length of the longest proper prefix of text[0, n) that is also its suffix.
    std::vector<uint32_t> border;
    uint32_t matched = 0;  // longest prefix of `text`, but not all, with which L ends so far
  };

  TextStream() = default;
  void DropReleased();
  bool Append(std::string_view valid);  // false: a stop string was completed
  std::string_view Release(size_t bytes);

  std::vector<Stop> stops_;
  std::string partial_;  // the beginning of a character, at most 3 bytes
  std::string text_;     // the part of L that has not been dropped
  size_t released_ = 0;  // bytes of text_ that the last call gave out
  bool stopped_ = false;
  bool flushed_ = false;
};

}  // namespace adder
