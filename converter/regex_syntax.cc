#include "converter/regex_syntax.h"

#include <algorithm>
#include <string_view>

namespace adder {
namespace {

// Members of a set that hold exactly the characters with and without property White_Space.
constexpr std::string_view kSpace =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x{0}-\x{8}\x{E}-\x{1F}\x{21}-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF})"
    R"(\x{200B}-\x{2027}\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";

bool IsHex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F') || (c >= 'a' && c <= 'f');
}
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

class Translator {
 public:
  explicit Translator(std::string_view pattern) : rest_(pattern), pattern_(pattern) {}

  Result<std::string> Run() {
    while (!rest_.empty()) {
      const char c = rest_[0];
      if (c == '\\') {
        ADDER_RETURN_IF_ERROR(Escape(false));
      } else if (c == '[') {
        ADDER_RETURN_IF_ERROR(Set());
      } else if (c == '(') {
        ADDER_RETURN_IF_ERROR(Group());
      } else if (c == '{') {
        ADDER_RETURN_IF_ERROR(Repeat());
      } else if (c == '^' || c == '$') {
        return Unsupported(1);
      } else {
        Copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  Status Unsupported(size_t length) const {
    const std::string_view construct = rest_.substr(0, std::min(length, rest_.size()));
    return Error(
        Code::kUnsupported, "regular expression construct \"%.*s\" at byte %zu of \"%.*s\"",
        static_cast<int>(construct.size()), construct.data(), pattern_.size() - rest_.size(),
        static_cast<int>(pattern_.size()), pattern_.data());
  }
  void Copy(size_t length) {
    out_ += rest_.substr(0, length);
    rest_.remove_prefix(length);
  }
  void Emit(std::string_view text, size_t length) {
    out_ += text;
    rest_.remove_prefix(length);
  }
  char At(size_t i) const { return i < rest_.size() ? rest_[i] : '\0'; }

  // A backslash and what belongs to it. Sets `last_is_class_` for escapes that stand for a set.
  Status Escape(bool in_set) {
    const char c = At(1);
    last_is_class_ = false;
    switch (c) {
      case 's':
      case 'S': {
        last_is_class_ = true;
        const std::string_view members = c == 's' ? kSpace : kNotSpace;
        if (in_set) {
          Emit(members, 2);
        } else {
          out_ += '[';
          Emit(members, 2);
          out_ += ']';
        }
        return {};
      }
      case 'd':
      case 'D':
        last_is_class_ = true;
        Copy(2);
        return {};
      case 'p':
      case 'P': {
        last_is_class_ = true;
        const size_t end = rest_.find('}');
        if (At(2) != '{' || end == std::string_view::npos) return Unsupported(3);
        Copy(end + 1);
        return {};
      }
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        Copy(2);
        return {};
      case 'v':
        Emit("\\x0B", 2);
        return {};
      case 'x': {
        if (At(2) == '{') {
          const size_t end = rest_.find('}');
          if (end == std::string_view::npos) return Unsupported(3);
          Copy(end + 1);
          return {};
        }
        // One byte of UTF-8: the same as a character only in ASCII.
        if (!(At(2) >= '0' && At(2) <= '7') || !IsHex(At(3))) return Unsupported(4);
        Copy(4);
        return {};
      }
      case 'u': {
        if (!IsHex(At(2)) || !IsHex(At(3)) || !IsHex(At(4)) || !IsHex(At(5))) return Unsupported(6);
        out_ += "\\x{";
        Emit(rest_.substr(2, 4), 6);
        out_ += '}';
        return {};
      }
      default:
        if (c == '\0' || IsLetter(c) || IsDigit(c) || static_cast<uint8_t>(c) >= 0x80) {
          return Unsupported(2);
        }
        Copy(2);
        return {};
    }
  }

  Status Set() {
    Copy(1);
    if (At(0) == '^') Copy(1);
    if (At(0) == ']') return Unsupported(1);
    bool after_class = false;  // the last member was a class or the end of a range
    bool range_open = false;   // a hyphen waits for the end of its range
    bool any = false;
    while (!rest_.empty() && rest_[0] != ']') {
      const char c = rest_[0];
      if (c == '[') return Unsupported(2);
      if (c == '&' && At(1) == '&') return Unsupported(2);
      if (c == '-' && any && At(1) != ']') {
        if (after_class || range_open) return Unsupported(2);
        range_open = true;
        Copy(1);
        continue;
      }
      if (c == '\\') {
        ADDER_RETURN_IF_ERROR(Escape(true));
        if (last_is_class_ && range_open) return Unsupported(2);
        after_class = last_is_class_ || range_open;
      } else {
        Copy(1);
        while (!rest_.empty() && (static_cast<uint8_t>(rest_[0]) & 0xC0) == 0x80) Copy(1);
        after_class = range_open;
      }
      range_open = false;
      any = true;
    }
    if (rest_.empty()) return Unsupported(1);
    Copy(1);
    return {};
  }

  Status Group() {
    if (At(1) == '*') return Unsupported(2);
    if (At(1) != '?') {
      Copy(1);
      return {};
    }
    for (const std::string_view opening : {"(?:", "(?i:", "(?=", "(?!", "(?>", "(?<=", "(?<!"}) {
      if (rest_.starts_with(opening)) {
        Copy(opening.size());
        return {};
      }
    }
    return Unsupported(4);
  }

  // {n}, {n,} or {n,m}. With a plus sign behind it, PCRE2 takes it as possessive, Ruby as "once or
  // more"; a first number left out is 0 in Ruby only.
  Status Repeat() {
    size_t end = 1;
    while (IsDigit(At(end))) ++end;
    if (end == 1) return Unsupported(3);
    if (At(end) == ',') ++end;
    while (IsDigit(At(end))) ++end;
    if (At(end) != '}' || At(end + 1) == '+') return Unsupported(end + 2);
    Copy(end + 1);
    return {};
  }

  std::string_view rest_;
  const std::string_view pattern_;
  std::string out_;
  bool last_is_class_ = false;
};

}  // namespace

Result<std::string> TranslateRegex(std::string_view pattern) { return Translator(pattern).Run(); }

}  // namespace adder
