#include "cli/bandwidth.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace adder::cli {
namespace {

constexpr size_t kBytes = size_t{1} << 30;
constexpr size_t kWordsPerLine = 8;

// Vectors of 64 bytes, whatever registers the compiler has for them.
typedef uint64_t Line __attribute__((vector_size(64)));

// Adds up the lines of `streams` equal parts of [begin, end) side by side.
template <size_t kStreams>
uint64_t Read(const Line* begin, const Line* end) {
  const size_t part = static_cast<size_t>(end - begin) / kStreams;
  Line sums[kStreams] = {};
  for (size_t i = 0; i < part; ++i) {
    for (size_t s = 0; s < kStreams; ++s) sums[s] += begin[s * part + i];
  }
  Line total = {};
  for (const Line& sum : sums) total += sum;
  uint64_t out = 0;
  for (size_t w = 0; w < kWordsPerLine; ++w) out += total[w];
  return out;
}

double TimeReading(const Line* memory, size_t threads, uint64_t (*read)(const Line*, const Line*)) {
  constexpr size_t kLines = kBytes / sizeof(Line);
  std::atomic<uint64_t> sum{0};
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> others;
  const auto work = [&](size_t i) {
    sum += read(memory + kLines * i / threads, memory + kLines * (i + 1) / threads);
  };
  for (size_t i = 1; i < threads; ++i) others.emplace_back(work, i);
  work(0);
  for (std::thread& thread : others) thread.join();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  // The sum is used, so that the reading is not left out.
  return sum == 1 ? 0.0 : static_cast<double>(kBytes) / seconds.count() / 1e9;
}

}  // namespace

ReadBandwidth::ReadBandwidth()
    : memory_(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
  if (memory_ == MAP_FAILED) memory_ = nullptr;
  if (memory_ == nullptr) return;
  auto* words = static_cast<uint64_t*>(memory_);
  for (size_t i = 0; i < kBytes / sizeof(uint64_t); i += 64) words[i] = i;  // every page its own
}

ReadBandwidth::~ReadBandwidth() {
  if (memory_ != nullptr) ::munmap(memory_, kBytes);
}

double ReadBandwidth::Measure(size_t threads) const {
  if (memory_ == nullptr) return 0;
  const auto* lines = static_cast<const Line*>(memory_);
  // A virtual machine may have laid pages aside that were not touched for a while: the first pass
  // over them is slow, and says nothing.
  double best = 0;
  for (int pass = 0; pass < 2; ++pass) {
    best = std::max(
        {best, TimeReading(lines, threads, Read<1>), TimeReading(lines, threads, Read<4>)});
  }
  return best;
}

}  // namespace adder::cli
