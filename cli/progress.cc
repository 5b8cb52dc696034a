#include "cli/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdlib>
#include <string>

#include "cli/output.h"

namespace adder::cli {
namespace {

constexpr std::string_view kEraseLine = "\r\x1b[K";

size_t TerminalWidth() {
  struct winsize size {};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string FormatSeconds(double seconds) {
  const auto whole = static_cast<uint64_t>(std::clamp(seconds, 0.0, 359999.0) + 0.5);
  if (whole < 3600) return Format("%" PRIu64 ":%02" PRIu64, whole / 60, whole % 60);
  return Format("%" PRIu64 ":%02" PRIu64 ":%02" PRIu64, whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace

Progress::Style Progress::StyleOf(bool quiet) {
  if (quiet) return Style::kNone;
  const char* terminal = std::getenv("TERM");
  const bool dumb = terminal == nullptr || std::string_view(terminal) == "dumb";
  return IsTerminal(STDERR_FILENO) && !dumb ? Style::kBar : Style::kLines;
}

void Progress::Clear() {
  if (bar_visible_) Note(kEraseLine);
  bar_visible_ = false;
}

void Progress::Update(uint64_t done, uint64_t total, std::string_view step) {
  const double part =
      total == 0 ? 1.0 : std::min(static_cast<double>(done) / static_cast<double>(total), 1.0);
  switch (style_) {
    case Style::kNone:
      break;
    case Style::kLines:
      if (const auto quarters = static_cast<uint64_t>(part * 4); quarters > quarters_) {
        quarters_ = quarters;
        Note(Format("%" PRIu64 "%% after %.1f s\n", quarters * 25, seconds()));
      }
      break;
    case Style::kBar: {
      const Clock::time_point now = Clock::now();
      if (bar_visible_ && now - drawn_ < std::chrono::milliseconds(100)) break;
      drawn_ = now;
      bar_visible_ = true;
      DrawBar(part, step);
      break;
    }
  }
}

// [########........]  50%  0:12 left  layers.3.in_proj
void Progress::DrawBar(double part, std::string_view step) {
  constexpr size_t kCells = 24;
  const auto filled = static_cast<size_t>(part * kCells);
  std::string line = "[" + std::string(filled, '#') + std::string(kCells - filled, '.') + "]";
  line += Format(" %3.0f%%", part * 100);
  if (part > 0) line += "  " + FormatSeconds(seconds() * (1 / part - 1)) + " left";
  line.append("  ").append(step);
  Note(std::string(kEraseLine) + line.substr(0, TerminalWidth() - 1));
}

}  // namespace adder::cli
