// Who does the work of an operation: one or more workers with the same kernels, each with its
// share.
//
// A block runs its steps as Team::Run([](const Worker& w) { ... }). Every worker executes the
// function and takes its own contiguous share of row blocks, channel blocks, heads or tokens; Run
// returns when all are done. Steps that read only what the same worker wrote need no Run of their
// own between them. Results do not depend on the number of workers, because kernels do not depend
// on ranges.
#pragma once

#include <pthreadpool.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/attention.h"
#include "runtime/kernels.h"
#include "runtime/linear.h"
#include "runtime/model_config.h"
#include "runtime/status.h"
#include "runtime/telemetry.h"

namespace adder {

struct Range {
  size_t begin, end;
  size_t size() const { return end - begin; }
};

class Worker {
 public:
  Worker(const Kernels& kernels, size_t index, size_t count, Telemetry* telemetry)
      : kernels_(kernels), index_(index), count_(count), telemetry_(telemetry) {}

  // This worker's part of 0 .. n - 1.
  Range Share(size_t n) const { return {n * index_ / count_, n * (index_ + 1) / count_}; }

  // y[t] = rms_norm(x[t]) of n floats, for the tokens of a range.
  void RmsNorm(Range tokens, const float* x, size_t x_stride, const float* weight, size_t n,
               float count, float eps, float* y, size_t y_stride) const;
  // Quantizes rows of activations, if any of their readers wants that.
  void Quantize(Range tokens, Activations* activations) const;
  // The same for a range of groups of columns, of rows 0 .. tokens - 1.
  void QuantizeGroups(Range groups, size_t tokens, Activations* activations) const;
  // y [tokens][y_stride] = W x + bias for a range of row blocks.
  void Linear(const adder::Linear& linear, Range row_blocks, const Activations& x, size_t tokens,
              float* y, size_t y_stride) const;
  // The same, added to y; `scratch` is another [tokens][y_stride].
  void LinearAdd(const adder::Linear& linear, Range row_blocks, const Activations& x, size_t tokens,
                 float* scratch, float* y, size_t y_stride) const;
  // Rotates the tokens' queries and keys and stores keys and values (runtime/attention.h).
  void StoreTokens(Range tokens, const AttentionArgs& args) const;
  // The weighted sums of values for a range of query heads.
  void Attend(Range heads, const AttentionArgs& args) const;
  // y += x, rows of `channels`, padded to kLanes.
  void Add(Range tokens, const float* x, float* y, size_t channels) const;
  // y *= silu(z), channels padded to kLanes.
  void SiluMul(Range tokens, const float* z, float* y, size_t channels) const;
  // y *= activation(z), or y = activation(y) where z is nullptr, for a range of channel blocks.
  void Gate(Activation activation, Range blocks, size_t tokens, const float* z, float* y,
            size_t stride) const;
  // y += scale * x, for a range of channel blocks of one row.
  void AddScaled(Range blocks, const float* x, float scale, float* y) const;
  // x = clamp(softplus(x + bias)) for a range of channel blocks.
  void Softplus(Range blocks, size_t tokens, const float* bias, float lo, float hi, float* x,
                size_t stride) const;
  // Kernels::conv1d_silu for a range of channel blocks.
  void Conv1dSilu(Range blocks, const float* weights, const float* bias, size_t d_conv,
                  size_t tokens, size_t stride, float* state, float* x) const;
  // Kernels::selective_scan for a range of the channel blocks of `args`.
  void SelectiveScan(Range blocks, SelectiveScanArgs args) const;
  // Kernels::ssd_scan, or ssd_scan_16, for a range of heads.
  void SsdScan(Range heads, SsdScanArgs args, bool bits16) const;
  // Kernels::mamba3_rotate and mamba3_scan for a range of heads.
  void Mamba3Rotate(Range heads, Mamba3RotateArgs args) const;
  void Mamba3Scan(Range heads, Mamba3ScanArgs args) const;
  // Kernels::mimo_gate: y [tokens][rank][channels] to out [tokens][channels].
  void MimoGate(Range tokens, const float* y, const float* z, const float* mimo_z,
                const float* mimo_o, size_t rank, size_t channels, float* out) const;

 private:
  const Kernels& kernels_;
  size_t index_, count_;
  Telemetry* telemetry_;  // of worker 0; nullptr: nobody measures
};

// Bytes of rows [tokens][n] of floats.
inline size_t RowBytes(size_t tokens, size_t n) { return tokens * n * sizeof(float); }

class Team {
 public:
  Team() = default;
  // `threads` >= 1. More threads than processors only wait for each other, so there are at most
  // as many workers as processors that this process may use.
  static Result<Team> Create(const Kernels& kernels, size_t threads);

  size_t workers() const { return workers_; }
  void SetTelemetry(Telemetry* telemetry) { telemetry_ = telemetry; }

  // Runs `step` on every worker, or on the caller alone where `bytes`, the memory that the step
  // reads and writes, are too few to be worth waking anyone.
  template <typename Step>
  void Run(size_t bytes, const Step& step) const {
    if (workers_ == 1 || bytes < kMinBytes) {
      step(Worker(*kernels_, 0, 1, telemetry_));
      return;
    }
    const Job<Step> job{*this, step};
    pthreadpool_parallelize_1d(
        pool_.get(),
        [](void* context, size_t index) {
          const auto& [team, run] = *static_cast<const Job<Step>*>(context);
          run(Worker(*team.kernels_, index, team.workers_, index == 0 ? team.telemetry_ : nullptr));
        },
        const_cast<Job<Step>*>(&job), workers_, 0);
  }

 private:
  static constexpr size_t kMinBytes = 96 * 1024;

  template <typename Step>
  struct Job {
    const Team& team;
    const Step& step;
  };
  struct Destroy {
    void operator()(pthreadpool* pool) const { pthreadpool_destroy(pool); }
  };

  const Kernels* kernels_ = nullptr;
  size_t workers_ = 1;
  std::unique_ptr<pthreadpool, Destroy> pool_;  // nullptr with one worker
  Telemetry* telemetry_ = nullptr;
};

}  // namespace adder
