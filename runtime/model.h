// A model: the file's tensors bound to blocks, with the kernels chosen for this CPU. Const after it
// was opened; any number of sessions and threads may use it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/block.h"
#include "runtime/kernels.h"
#include "runtime/linear.h"
#include "runtime/mapped_file.h"
#include "runtime/model_config.h"
#include "runtime/model_file.h"
#include "runtime/status.h"
#include "runtime/tokenizer.h"

namespace adder {

struct ModelOptions {
  std::string isa;  // kernel table to force ("scalar", "avx2"); empty: ADDER_ISA, else the best
  bool verify_checksums = false;  // also of the tensor data: reads the whole file
};

class Model {
 public:
  // Maps the file at `path`.
  static Result<std::unique_ptr<Model>> Open(const std::string& path,
                                             const ModelOptions& options = {});
  // Borrows `bytes`, aligned to 64, which must outlive the model.
  static Result<std::unique_ptr<Model>> FromMemory(std::span<const uint8_t> bytes,
                                                   const ModelOptions& options = {});

  const ModelConfig& config() const { return config_; }
  const ModelFile& file() const { return file_; }
  const Kernels& kernels() const { return kernels_; }
  const std::vector<std::unique_ptr<Block>>& blocks() const { return blocks_; }
  const Linear& embedding() const { return embedding_; }   // [vocab_rows, d_model]
  const Linear& head() const { return head_; }             // [vocab_rows, d_model]
  const float* final_norm() const { return final_norm_; }  // [d_model]
  const Tokenizer* tokenizer() const { return tokenizer_ ? &*tokenizer_ : nullptr; }

  // Recurrent state of one stream, in floats of all blocks together.
  size_t StateFloats(StateType type = StateType::kF32) const;
  // Keys and values of one stream, for a look back of `context` tokens; 0: no attention layers.
  size_t KvBytes(size_t context, KvChoice choice = KvChoice::kDefault) const;
  // What each token of the context adds to that.
  size_t KvBytesPerToken(KvChoice choice = KvChoice::kDefault) const;
  bool ReadsEmbedding() const;
  // Bytes of weights that one token reads (of an embedding that is not the head, no more than a
  // row: not counted).
  uint64_t BytesPerToken() const;

 private:
  Model(ModelFile file, ModelConfig config, const Kernels& kernels)
      : file_(std::move(file)), config_(std::move(config)), kernels_(kernels) {}
  Status Bind();

  std::optional<MappedFile> mapping_;
  ModelFile file_;
  ModelConfig config_;
  Kernels kernels_;
  std::vector<std::unique_ptr<Block>> blocks_;
  Linear embedding_, head_;
  const float* final_norm_ = nullptr;
  std::optional<Tokenizer> tokenizer_;
};

}  // namespace adder
