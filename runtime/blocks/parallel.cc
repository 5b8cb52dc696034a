// Mamba-2 and attention side by side (Falcon-H1): h += mamba2(norm(h)) + attention(norm(h)).
//
// Both are blocks of their own kind, with the tensors "ssm." and "attn."; each has its copy of the
// norm.
#include <algorithm>
#include <memory>

#include "runtime/block.h"
#include "runtime/tensor_binder.h"

namespace adder {
namespace {

class ParallelBlock final : public Block {
 public:
  ParallelBlock(std::unique_ptr<Block> ssm, std::unique_ptr<Block> attention, uint32_t d_model)
      : ssm_(std::move(ssm)), attention_(std::move(attention)), stride_(RoundUp(d_model, kLanes)) {}

  size_t StateFloats(StateType type) const override {
    return ssm_->StateFloats(type) + attention_->StateFloats(type);
  }
  KvShape Kv(KvChoice choice) const override { return attention_->Kv(choice); }

  size_t ScratchBytes(size_t max_tokens) const override {
    Arena measure;
    measure.Take<float>(max_tokens * stride_);
    return measure.used() +
           std::max(ssm_->ScratchBytes(max_tokens), attention_->ScratchBytes(max_tokens));
  }

  void Forward(const ForwardArgs& args) const noexcept override {
    ForwardArgs child = args;
    // What both read, as the first of them changes hidden.
    float* input = child.scratch.Take<float>(args.max_tokens * stride_);
    std::copy_n(args.input, args.tokens * stride_, input);
    child.input = input;
    ssm_->Forward(child);
    child.state += ssm_->StateFloats(args.state_type);
    attention_->Forward(child);
  }

 private:
  std::unique_ptr<Block> ssm_, attention_;
  size_t stride_;  // of rows of d_model
};

}  // namespace

Result<std::unique_ptr<Block>> MakeParallelBlock(const LayerConfig& layer, uint32_t d_model,
                                                 TensorBinder binder) {
  const auto& config = std::get<ParallelConfig>(layer.mixer);
  const LayerConfig ssm = {layer.norm_eps, config.mamba2};
  const LayerConfig attention = {layer.norm_eps, config.attention};
  ADDER_ASSIGN_OR_RETURN(auto ssm_block, MakeMamba2Block(ssm, d_model, binder.Nested("ssm.")));
  ADDER_ASSIGN_OR_RETURN(auto attention_block,
                         MakeAttentionBlock(attention, d_model, binder.Nested("attn.")));
  return std::unique_ptr<Block>(
      std::make_unique<ParallelBlock>(std::move(ssm_block), std::move(attention_block), d_model));
}

}  // namespace adder
