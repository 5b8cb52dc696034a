// Time, bytes and arithmetic of the operations of a session. Off unless someone hands a Telemetry
// to the session; then every operation reads the clock twice.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace adder {

enum class Op : size_t {
  kEmbedding,
  kNorm,
  kQuantize,
  kMatmulQ8,
  kMatmulQ4,
  kMatmulF16,
  kMatmulF32,
  kConv,
  kSoftplus,
  kRotate,
  kScan,
  kAttention,
  kGate,
  kAdd,
};
inline constexpr size_t kOps = 14;
inline constexpr const char* kOpNames[kOps] = {
    "embedding", "norm",     "quantize", "matmul q8", "matmul q4", "matmul f16", "matmul f32",
    "conv",      "softplus", "rotate",   "scan",      "attention", "gate",       "add"};

struct OpTotals {
  uint64_t calls = 0;
  uint64_t nanoseconds = 0;
  uint64_t bytes = 0;       // weights and state read and written; activations not counted
  uint64_t operations = 0;  // multiplications and additions, one multiply-add is two
};

struct Telemetry {
  std::array<OpTotals, kOps> ops;
};

// Adds the time of its own life to one operation.
class OpTimer {
 public:
  OpTimer(Telemetry* telemetry, Op op, uint64_t bytes = 0, uint64_t operations = 0)
      : totals_(telemetry != nullptr ? &telemetry->ops[static_cast<size_t>(op)] : nullptr) {
    if (totals_ == nullptr) return;
    ++totals_->calls;
    totals_->bytes += bytes;
    totals_->operations += operations;
    start_ = std::chrono::steady_clock::now();
  }
  ~OpTimer() {
    if (totals_ == nullptr) return;
    const auto elapsed = std::chrono::steady_clock::now() - start_;
    totals_->nanoseconds += static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count());
  }
  OpTimer(const OpTimer&) = delete;
  OpTimer& operator=(const OpTimer&) = delete;

 private:
  OpTotals* totals_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace adder
