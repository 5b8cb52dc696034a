// Families of GGUF files: for every architecture that llama.cpp writes and Adder runs, the rules
// that give its tensors and settings the names of the Hugging Face checkpoint back, and undo what
// llama.cpp's converter did to them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "converter/gguf.h"
#include "converter/json.h"
#include "runtime/rapidjson.h"
#include "runtime/status.h"

namespace adder {

// What became of a tensor of the checkpoint.
enum class Form {
  kSame,
  kTaps,         // [channels, taps], which was [channels, 1, taps]
  kVector,       // any shape of as many elements, which was one dimension
  kDecay,        // A = -exp(A_log)
  kDecayVector,  // both
  kQuery,        // rows i and i + half of a head became 2 i and 2 i + 1
  kKey,          // the same of the heads of keys
  kExperts,      // [experts, rows, columns], which was one tensor for every expert
};

struct TensorRule {
  const char* gguf;  // behind "blk.<i>."
  const char* hf;    // behind the prefix of its group; '*' stands for the number of an expert
  Form form = Form::kSame;
};

// Rules that several families share, with what stands in front of their names.
struct TensorGroup {
  const char* prefix;  // behind "<root>layers.<i>."
  std::span<const TensorRule> rules;
};

struct KeyRule {
  const char* gguf;  // behind "<architecture>."
  const char* hf;
};

// config.json, key by key.
class ConfigWriter {
 public:
  ConfigWriter() { json_.StartObject(); }
  void Add(const char* key, int64_t value) { Key(key).Int64(value); }
  void Add(const char* key, double value) { Key(key).Double(value); }  // finite
  void Add(const char* key, bool value) { Key(key).Bool(value); }
  void Add(const char* key, const char* value) { Key(key).String(value); }
  void Add(const char* key, const std::vector<int64_t>& values);
  void Add(const char* key, const std::vector<const char*>& values);
  // An object; what is added up to its end belongs to it.
  void Begin(const char* key) { Key(key).StartObject(); }
  void End() { json_.EndObject(); }
  Result<Config> Finish(const std::string& name);

 private:
  rapidjson::Writer<rapidjson::StringBuffer>& Key(const char* key) {
    json_.Key(key);
    return json_;
  }
  rapidjson::StringBuffer buffer_;
  rapidjson::Writer<rapidjson::StringBuffer> json_{buffer_};
};

// The settings of one file, under "<architecture>.".
class GgufSettings {
 public:
  GgufSettings(const Gguf& gguf, const char* architecture)
      : gguf_(gguf), prefix_(std::string(architecture) + ".") {}

  const std::string& name() const { return gguf_.metadata.name(); }  // of the file
  std::string Key(std::string_view key) const { return prefix_ + std::string(key); }
  bool Has(std::string_view key) const { return gguf_.metadata.Has(Key(key)); }
  Result<int64_t> Int(std::string_view key, std::optional<int64_t> fallback) const {
    return gguf_.metadata.Int(Key(key), fallback);
  }
  Result<bool> Bool(std::string_view key, bool fallback) const {
    return gguf_.metadata.Bool(Key(key), fallback);
  }
  Result<std::string_view> String(std::string_view key, std::string_view fallback) const {
    return gguf_.metadata.String(Key(key), fallback);
  }
  // A finite number.
  Result<double> Number(std::string_view key, std::optional<double> fallback) const;
  // From 0 up to and with 1: that of all norms.
  Result<double> NormEps() const;

  // Blocks, at most as many as tensors; the last `nextn_predict_layers` of them predict further
  // tokens and are no layers of the model.
  Result<size_t> Blocks() const;
  Result<size_t> Layers() const;
  // A number for every block, of which the file may say only one for all. Not negative.
  Result<std::vector<int64_t>> PerBlock(std::string_view key,
                                        std::optional<int64_t> fallback = std::nullopt) const;

  bool HasTensor(const std::string& tensor) const { return gguf_.tensors.contains(tensor); }
  bool HasTensor(size_t block, const char* rest) const {
    return HasTensor("blk." + std::to_string(block) + "." + rest);
  }
  // In any block.
  bool HasTensors(std::string_view rest) const;

 private:
  const Gguf& gguf_;
  std::string prefix_;
};

struct GgufFamily {
  const char* architecture;  // general.architecture
  const char* model_type;
  const char* root;
  const char* embedding;  // behind the root
  const char* final_norm;
  const char* norm_eps;  // key of config.json
  std::span<const KeyRule> integers;
  std::span<const TensorGroup> tensors;
  // Settings that are no copies of a key.
  Status (*add)(const GgufSettings&, ConfigWriter*, std::vector<std::string>* warnings);
  // Tells families of one architecture apart; nullptr: this is the only one, or the last.
  bool (*matches)(const GgufSettings&) = nullptr;
};

// Those with mixers of Mamba only, and those with attention too.
std::span<const GgufFamily> GgufMambaFamilies();
std::span<const GgufFamily> GgufHybridFamilies();

// Mixers.
inline constexpr TensorRule kGgufMamba1Mixer[] = {
    {"ssm_in.weight", "in_proj.weight"},
    {"ssm_in.bias", "in_proj.bias"},
    {"ssm_conv1d.weight", "conv1d.weight", Form::kTaps},
    {"ssm_conv1d.bias", "conv1d.bias"},
    {"ssm_x.weight", "x_proj.weight"},
    {"ssm_dt.weight", "dt_proj.weight"},
    {"ssm_dt.bias", "dt_proj.bias"},
    {"ssm_a", "A_log", Form::kDecay},
    {"ssm_d", "D", Form::kVector},
    {"ssm_out.weight", "out_proj.weight"},
    {"ssm_out.bias", "out_proj.bias"}};
inline constexpr TensorRule kGgufMamba2Mixer[] = {
    {"ssm_in.weight", "in_proj.weight"},
    {"ssm_in.bias", "in_proj.bias"},
    {"ssm_conv1d.weight", "conv1d.weight", Form::kTaps},
    {"ssm_conv1d.bias", "conv1d.bias"},
    {"ssm_dt.bias", "dt_bias"},
    {"ssm_a", "A_log", Form::kDecayVector},
    {"ssm_d", "D", Form::kVector},
    {"ssm_norm.weight", "norm.weight", Form::kVector},
    {"ssm_out.weight", "out_proj.weight"},
    {"ssm_out.bias", "out_proj.bias"}};
// The width of a Mamba-2 head.
Result<int64_t> GgufMamba2HeadDim(const GgufSettings& settings);

}  // namespace adder
