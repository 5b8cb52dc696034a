#include "cli/output.h"

#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "runtime/utf8.h"

namespace adder::cli {
namespace {

std::string Scaled(uint64_t value, const char* separator, const char* const (&units)[5]) {
  if (value < 1000) return Format("%" PRIu64 "%s%s", value, separator, units[0]);
  double scaled = static_cast<double>(value);
  size_t unit = 0;
  while (scaled >= 999.5 && unit + 1 < std::size(units)) {
    scaled /= 1000;
    ++unit;
  }
  return Format("%.*f%s%s",
                scaled < 9.995   ? 2
                : scaled < 99.95 ? 1
                                 : 0,
                scaled, separator, units[unit]);
}

// Writes all of `bytes` at once, past any buffer. kCancelled: whoever read it has gone.
Status WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EPIPE) return Status(Code::kCancelled, "broken pipe");
    if (written < 0) return Error(Code::kIo, "cannot write: %s", std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return {};
}

}  // namespace

Status Print(std::string_view text) {
  return Annotate(WriteAll(STDOUT_FILENO, text), "standard output");
}

void Note(std::string_view text) {
  const Status ignored = WriteAll(STDERR_FILENO, text);
  static_cast<void>(ignored);
}

std::string Format(const char* format, ...) {
  std::va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  const int length = std::vsnprintf(nullptr, 0, format, args);
  va_end(args);
  std::string text(length > 0 ? static_cast<size_t>(length) : 0, '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  return text;
}

std::string Printable(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = ReadUtf8(text, at);
    if (c.kind != Utf8Char::Kind::kValid) {
      out += kReplacementCharacter;
    } else if ((c.code_point < 0x20 && c.code_point != '\n') ||
               (c.code_point >= 0x7f && c.code_point < 0xa0)) {
      out += Format("\\x%02x", static_cast<unsigned>(c.code_point));
    } else {
      out += text.substr(at, c.length);
    }
    at += c.length;
  }
  return out;
}

std::string FormatBytes(uint64_t bytes) {
  return Scaled(bytes, " ", {"bytes", "kB", "MB", "GB", "TB"});
}

std::string FormatNumber(uint64_t number) { return Scaled(number, "", {"", "K", "M", "B", "T"}); }

bool IsTerminal(int fd) { return ::isatty(fd) == 1; }

}  // namespace adder::cli
