// A published checkpoint on disk: a folder (or a single weights file) seen as named tensors that
// can be read as float32, one at a time, and the configuration files beside them. Formats:
// ARCHITECTURES.md section 15 (safetensors, shards, PyTorch zip archives).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "converter/json.h"
#include "runtime/mapped_file.h"
#include "runtime/status.h"

namespace adder {

// Number formats: elements by themselves, then the blocks of GGUF (gguf_dequantize.h).
enum class SourceType {
  kF32,
  kF16,
  kBF16,
  kF64,
  kI32,
  kI64,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K
};
const char* SourceTypeName(SourceType type);
size_t SourceTypeElements(SourceType type);  // of a block; 1 for elements by themselves
size_t SourceTypeBytes(SourceType type);     // of a block

// Where one tensor of a checkpoint lies: little-endian elements in mapped memory.
struct SourceTensor {
  SourceType type = SourceType::kF32;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> strides;  // in elements; empty: contiguous row-major, as blocks always are
  const uint8_t* data = nullptr;  // first element, maybe unaligned
  std::string file;               // for messages
  bool negative_exp = false;      // of A_log: the values are A = -exp(A_log) already
  // Rows of so many heads were stored in pairs, i and i + half of a head one behind the other;
  // reading puts them back. 0: they were not.
  uint64_t paired_heads = 0;

  uint64_t elements() const;  // parsers check that the product does not overflow
  // Element `index` of the first dimension.
  SourceTensor Slice(uint64_t index) const;
  // Two tensors that are views of the same bytes (tied weights).
  bool SameStorage(const SourceTensor& other) const;
};

// Elements as float32, row-major, strides resolved; `name` is for messages. NaN, Inf and values
// that float32 cannot hold (F64 beyond its range, integers beyond 2^24) are errors that name the
// tensor and the index of the first one.
Result<std::vector<float>> ReadF32(const SourceTensor& tensor, const std::string& name);

// What a container parser produces. `data` points into the bytes it was given.
using TensorMap = std::map<std::string, SourceTensor>;

class Checkpoint {
 public:
  // `path` is a folder, a .safetensors file, a .bin file or their index, whose folder provides the
  // configuration; or a .gguf file, which has everything in it.
  static Result<Checkpoint> Open(const std::string& path);
  // Made of parts; what the tensors point at must outlive it.
  static Checkpoint FromParts(Config config, TensorMap tensors) {
    Checkpoint checkpoint;
    checkpoint.config_ = std::move(config);
    checkpoint.tensors_ = std::move(tensors);
    return checkpoint;
  }

  const TensorMap& tensors() const { return tensors_; }
  const SourceTensor* Find(const std::string& name) const;

  // ReadF32 above, of the tensor called `name`; absent: kNotFound.
  Result<std::vector<float>> ReadF32(const std::string& name) const;

  // Parsed files of the folder; absent: std::nullopt.
  const std::optional<Config>& config() const { return config_; }              // config.json
  const std::optional<Config>& params() const { return params_; }              // params.json
  const std::optional<Config>& mamba_config() const { return mamba_config_; }  // mamba_config.json
  const std::optional<Config>& generation_config() const { return generation_config_; }
  const std::optional<Config>& tokenizer_config() const { return tokenizer_config_; }
  // Text of tokenizer.json and chat_template.jinja, unparsed.
  const std::optional<std::string>& tokenizer_json() const { return tokenizer_json_; }
  const std::optional<std::string>& chat_template() const { return chat_template_; }
  // The tokenizer of a .gguf file, compiled to the section of a model file; empty: none.
  const std::vector<uint8_t>& tokenizer_section() const { return tokenizer_section_; }
  // What a .gguf file was ("GGUF, tensors in F32 and Q4_K"); empty for other checkpoints.
  const std::string& origin() const { return origin_; }
  // Things worth telling that are not errors (a wrong total_size, trailing bytes).
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  friend class CheckpointReader;
  std::vector<std::shared_ptr<MappedFile>> files_;
  TensorMap tensors_;
  std::optional<Config> config_, params_, mamba_config_, generation_config_, tokenizer_config_;
  std::optional<std::string> tokenizer_json_, chat_template_;
  std::vector<uint8_t> tokenizer_section_;
  std::string origin_;
  std::vector<std::string> warnings_;
};

}  // namespace adder
