// One step of the residual stream: a norm, a mixer, and the addition of its output.
//
// A model is a list of blocks; each kind is one file under runtime/blocks. A block is const after
// it was made and holds views into the model file. What changes while a stream runs - its recurrent
// state - and its temporary buffers are handed in, so that any number of streams share a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/arena.h"
#include "runtime/kv_ring.h"
#include "runtime/model_config.h"
#include "runtime/status.h"
#include "runtime/team.h"

namespace adder {

class TensorBinder;

// How the recurrent state of Mamba-2 lies in memory between tokens.
enum class StateType {
  kF32,
  kInt16,  // 16-bit values with a scale per channel: half the memory and traffic, rounded each
           // token
};

struct ForwardArgs {
  const Team& team;
  size_t tokens;           // 1 .. max_tokens of ScratchBytes
  size_t max_tokens;       // what the scratch was measured for
  uint64_t position;       // tokens fed before these
  const float* input;      // [tokens][stride] what the norm reads: hidden, as a rule
  float* hidden;           // [tokens][stride] to which the output is added
  const float* embedding;  // [tokens][stride] of these tokens; nullptr: no block ReadsEmbedding
  size_t stride;           // d_model padded to kLanes
  float* state;            // [StateFloats(state_type)]
  StateType state_type;    // for blocks that know more than one
  uint8_t* kv;             // [Kv(kv_choice).Bytes(context)], anything at the start
  KvChoice kv_choice;
  size_t context;  // the latest tokens that attention looks at, the current one included
  Arena scratch;
};

class Block {
 public:
  virtual ~Block() = default;
  // Recurrent state, in floats whatever lies in them. Zeros are the state before the first token.
  virtual size_t StateFloats(StateType type) const = 0;
  // Of the ring of keys and values; no key/value heads: no ring.
  virtual KvShape Kv(KvChoice /*choice*/) const { return {}; }
  virtual size_t ScratchBytes(size_t max_tokens) const = 0;
  virtual bool ReadsEmbedding() const { return false; }
  // Bytes of weights that a single token reads beyond those of the layer's own tensors (negative:
  // short of them, where it chooses experts).
  virtual int64_t ExtraBytes() const { return 0; }
  // hidden += mixer(norm(input)) for each token in turn, advancing the state. The result does not
  // depend on how a text is split into calls. Allocates nothing. input may be hidden.
  virtual void Forward(const ForwardArgs& args) const noexcept = 0;
};

// Bind tensors "<prefix>..." of the file and check their shapes.
Result<std::unique_ptr<Block>> MakeMamba1Block(const LayerConfig& layer, uint32_t d_model,
                                               TensorBinder binder);
Result<std::unique_ptr<Block>> MakeMamba2Block(const LayerConfig& layer, uint32_t d_model,
                                               TensorBinder binder);
Result<std::unique_ptr<Block>> MakeAttentionBlock(const LayerConfig& layer, uint32_t d_model,
                                                  TensorBinder binder);
Result<std::unique_ptr<Block>> MakeMlpBlock(const LayerConfig& layer, uint32_t d_model,
                                            TensorBinder binder);
Result<std::unique_ptr<Block>> MakeMamba3Block(const LayerConfig& layer, uint32_t d_model,
                                               TensorBinder binder);
Result<std::unique_ptr<Block>> MakeMoeBlock(const LayerConfig& layer, uint32_t d_model,
                                            TensorBinder binder);
Result<std::unique_ptr<Block>> MakeParallelBlock(const LayerConfig& layer, uint32_t d_model,
                                                 TensorBinder binder);
Result<std::unique_ptr<Block>> MakeZamba2Block(const LayerConfig& layer, uint32_t d_model,
                                               TensorBinder binder);

}  // namespace adder
