// What layers with attention share: everything between the projections of q, k, v and of the
// output.
#pragma once

#include "runtime/attention.h"
#include "runtime/block.h"
#include "runtime/tensor_binder.h"

namespace adder {

class AttentionHeads {
 public:
  AttentionHeads(const AttentionConfig& config, TensorBinder& bind)
      : c_(config),
        head_dim_(RoundUp(config.head_dim, kLanes)),
        rope_(c_.rotary_dim > 0 ? bind.Floats("rope", {c_.rotary_dim / 2}) : nullptr) {}

  // Floats of a row of q and of one of k or v: heads padded to kLanes.
  size_t q_channels() const { return c_.n_heads * head_dim_; }
  size_t kv_channels() const { return c_.n_kv_heads * head_dim_; }
  KvShape Kv(KvChoice choice) const {
    const KvType floats = f32_ ? KvType::kF32 : KvType::kF16;
    return {c_.n_kv_heads, head_dim_, choice == KvChoice::kInt8 ? KvType::kInt8 : floats};
  }

  // Whether weights are f32.
  void SetF32(bool f32) { f32_ = f32; }

  struct Buffers {  // of AttentionArgs
    float *queries, *turns, *scores, *sums, *added;
    float *largest, *weight_sums, *rescale;
    QuantizedRows queries_q8, weights_q8;
  };
  Buffers Carve(Arena* arena, size_t max_tokens) const;

  // q [tokens][q_channels] becomes the weighted sums of values; k, v [tokens][kv_channels].
  void Forward(const ForwardArgs& args, const Buffers& s, float* q, float* k,
               const float* v) const noexcept;

 private:
  AttentionConfig c_;
  bool f32_ = false;
  size_t head_dim_;    // padded
  const float* rope_;  // [rotary_dim / 2] or nullptr
};

}  // namespace adder
