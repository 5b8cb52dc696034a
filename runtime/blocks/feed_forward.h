// down(act(gate x) * (up x)), or down(act(up x)) without gate: what mlp and moe are made of.
#pragma once

#include <algorithm>
#include <string>

#include "runtime/linear.h"
#include "runtime/model_config.h"
#include "runtime/team.h"
#include "runtime/tensor_binder.h"

namespace adder {

class FeedForward {
 public:
  FeedForward() = default;
  // Binds "<prefix>gate" (if gated), "<prefix>up" [d_ff, d_in] and "<prefix>down" [d_in, d_ff].
  FeedForward(const MlpConfig& config, size_t d_in, const std::string& prefix, TensorBinder& bind)
      : config_(config), up_(bind.Matrix(prefix + "up", config.d_ff, d_in)) {
    if (config.gated) gate_ = bind.Matrix(prefix + "gate", config.d_ff, d_in);
    down_ = bind.Matrix(prefix + "down", d_in, config.d_ff);
  }

  const Linear& down() const { return down_; }
  size_t d_ff() const { return config_.d_ff; }
  size_t width() const { return up_.padded_rows(); }  // d_ff padded to kLanes
  bool quantizes_input() const { return up_.quantized() || (config_.gated && gate_.quantized()); }
  uint64_t input_bytes() const { return up_.bytes() + gate_.bytes(); }
  // All bytes of its tensors in the file.
  uint64_t file_bytes() const {
    uint64_t bytes = 0;
    for (const Linear* linear : {&gate_, &up_, &down_}) {
      bytes += linear->bytes() + (linear->bias != nullptr ? linear->padded_rows() * 4 : 0);
    }
    return bytes;
  }

  // y [tokens][width] = act(gate x) * (up x), quantized as `inner`: one worker's share of the
  // columns, in whole groups. z is another [tokens][width].
  void Expand(const Worker& w, const Activations& x, size_t tokens, float* z, float* y,
              Activations* inner) const {
    constexpr size_t kBlocks = kGroup / kLanes;
    const Range groups = w.Share(Groups(config_.d_ff));
    const Range blocks = {groups.begin * kBlocks, std::min(groups.end * kBlocks, up_.row_blocks())};
    w.Linear(up_, blocks, x, tokens, y, width());
    if (config_.gated) w.Linear(gate_, blocks, x, tokens, z, width());
    w.Gate(config_.activation, blocks, tokens, config_.gated ? z : nullptr, y, width());
    w.QuantizeGroups(groups, tokens, inner);
  }

 private:
  MlpConfig config_;
  Linear gate_, up_;  // [d_ff, d_in]; no gate: no rows
  Linear down_;       // [d_in, d_ff]
};

}  // namespace adder
