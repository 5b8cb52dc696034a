#include "runtime/text_stream.h"

#include <algorithm>
#include <utility>

#include "runtime/utf8.h"

namespace adder {

Result<TextStream> TextStream::Create(std::vector<std::string> stops, size_t max_piece_bytes) {
  TextStream stream;
  size_t longest = 0;
  for (size_t i = 0; i < stops.size(); ++i) {
    Stop stop;
    stop.text = std::move(stops[i]);
    if (stop.text.empty()) {
      return Error(Code::kInvalidArgument, "stop string %zu of %zu is empty", i, stops.size());
    }
    if (stop.text.size() > UINT32_MAX / 2) {
      return Error(Code::kInvalidArgument, "stop string %zu has %zu bytes, at most %u", i,
                   stop.text.size(), UINT32_MAX / 2);
    }
    const size_t valid = ValidUtf8Prefix(stop.text);
    if (valid != stop.text.size()) {
      return Error(Code::kInvalidArgument, "stop string %zu is not UTF-8 at byte %zu of %zu", i,
                   valid, stop.text.size());
    }
    longest = std::max(longest, stop.text.size());
    stop.border.assign(stop.text.size() + 1, 0);
    uint32_t length = 0;
    for (uint32_t n = 1; n < stop.text.size(); ++n) {
      while (length > 0 && stop.text[n] != stop.text[length]) length = stop.border[length];
      if (stop.text[n] == stop.text[length]) ++length;
      stop.border[n + 1] = length;
    }
    stream.stops_.push_back(std::move(stop));
  }
  // A byte becomes at most three (U+FFFD); a push can complete up to 3 held bytes.
  constexpr size_t kMost = SIZE_MAX / 8;
  if (max_piece_bytes > kMost) {
    return Error(Code::kInvalidArgument, "pieces of %zu bytes, at most %zu", max_piece_bytes,
                 kMost);
  }
  stream.partial_.reserve(max_piece_bytes + 4);
  stream.text_.reserve(longest + 3 * (max_piece_bytes + 4));
  return stream;
}

void TextStream::Reset() {
  partial_.clear();
  text_.clear();
  released_ = 0;
  stopped_ = false;
  flushed_ = false;
  for (Stop& stop : stops_) stop.matched = 0;
}

void TextStream::DropReleased() {
  text_.erase(0, released_);
  released_ = 0;
}

std::string_view TextStream::Release(size_t bytes) {
  released_ = bytes;
  return std::string_view(text_).substr(0, bytes);
}

bool TextStream::Append(std::string_view valid) {
  for (const char c : valid) {
    text_.push_back(c);
    size_t completed = 0;  // bytes of the longest stop string that ends here
    for (Stop& stop : stops_) {
      uint32_t length = stop.matched;
      while (length > 0 && stop.text[length] != c) length = stop.border[length];
      if (stop.text[length] == c) ++length;
      if (length == stop.text.size()) completed = std::max(completed, stop.text.size());
      stop.matched = length;
    }
    if (completed > 0) {
      text_.resize(text_.size() - completed);
      stopped_ = true;
      return false;
    }
  }
  return true;
}

std::string_view TextStream::Push(std::string_view bytes) {
  DropReleased();
  if (stopped_ || flushed_) {
    text_.clear();
    return {};
  }
  partial_ += bytes;
  std::string_view rest = partial_;
  while (!rest.empty()) {
    const Utf8Char c = ReadUtf8(rest, 0);
    if (c.kind == Utf8Char::Kind::kIncomplete) break;
    const bool valid = c.kind == Utf8Char::Kind::kValid;
    if (!Append(valid ? rest.substr(0, c.length) : kReplacementCharacter)) {
      return Release(text_.size());
    }
    rest.remove_prefix(c.length);
  }
  partial_.erase(0, partial_.size() - rest.size());
  // What a stop string may begin with starts at a character: stop strings are valid UTF-8.
  size_t held = 0;
  for (const Stop& stop : stops_) held = std::max(held, size_t{stop.matched});
  return Release(text_.size() - held);
}

std::string_view TextStream::Flush() {
  DropReleased();
  if (stopped_ || flushed_) {
    text_.clear();
    return {};
  }
  flushed_ = true;
  if (!partial_.empty()) Append(kReplacementCharacter);
  partial_.clear();
  return Release(text_.size());
}

void TextStream::AppendHeld(std::string* out) const {
  if (stopped_ || flushed_) return;
  out->append(text_, released_).append(partial_);
}

}  // namespace adder
