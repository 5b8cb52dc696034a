// How far a long piece of work has come, on standard error.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

namespace adder::cli {

// On a terminal one line that is drawn over again; elsewhere a line at each quarter.
class Progress {
 public:
  enum class Style { kNone, kLines, kBar };
  static Style StyleOf(bool quiet);

  explicit Progress(Style style) : style_(style), start_(Clock::now()) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { Clear(); }

  void Clear();  // removes the bar
  // `step` is what is being worked on.
  void Update(uint64_t done, uint64_t total, std::string_view step);

  double seconds() const {  // since the start
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  void DrawBar(double part, std::string_view step);

  const Style style_;
  const Clock::time_point start_;
  Clock::time_point drawn_;  // when the bar was
  bool bar_visible_ = false;
  uint64_t quarters_ = 0;  // that have been reported
};

}  // namespace adder::cli
