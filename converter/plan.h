// What becomes of a checkpoint: the model's configuration, and for every tensor of the model file
// where its floats come from and how sensitive it is. A family's mapping function fills a plan;
// convert.cc carries it out, one tensor at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "converter/checkpoint.h"
#include "quant/qtypes.h"
#include "runtime/model_config.h"
#include "runtime/status.h"

namespace adder {

// How the number format of a tensor follows from the format that was asked for.
enum class Role {
  kBulk,       // most of the weights: exactly what was asked for
  kSensitive,  // few and sensitive rows (dt, B, C, x_proj): never below INT8
  kTable,      // embedding and head: never below INT8
  kArray,      // norms, convolution, A, D, biases: f32 always
};

// Row-major floats, shared with the loader's cache where they need no change.
struct FloatView {
  std::shared_ptr<const std::vector<float>> owner;
  std::span<const float> values;

  static FloatView Own(std::vector<float> values);
};

// Reads checkpoint tensors as float32. Keeps the last one, since neighbouring tensors of a model
// file are often slices of the same checkpoint tensor.
class TensorLoader {
 public:
  explicit TensorLoader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}
  Result<FloatView> Load(const std::string& name);

 private:
  const Checkpoint& checkpoint_;
  std::string last_name_;
  FloatView last_;
};

struct PlannedTensor {
  std::string name;
  Role role;
  std::vector<uint64_t> shape;
  std::function<Result<FloatView>(TensorLoader&)> load;
};

struct ModelPlan {
  ModelConfig config;
  std::vector<PlannedTensor> tensors;
  std::vector<std::string> warnings;
};

// A range of a checkpoint dimension as the model file stores it: `heads` runs of `width` elements
// from `begin` on, each padded to `padded_width`.
struct Channels {
  size_t begin, heads, width, padded_width;

  static Channels Range(size_t begin, size_t count) { return {begin, 1, count, count}; }
  // Padded to whole lane blocks, as arrays are.
  static Channels Padded(size_t begin, size_t count) {
    return {begin, 1, count, RoundUp(count, kLanes)};
  }
  static Channels Heads(size_t begin, size_t heads, size_t width) {
    return {begin, heads, width, RoundUp(width, kLanes)};
  }
  size_t size() const { return heads * padded_width; }
  bool contiguous() const { return width == padded_width; }
  // Index in the checkpoint of element i, or SIZE_MAX for padding.
  size_t Source(size_t i) const {
    const size_t offset = i % padded_width;
    return offset < width ? begin + i / padded_width * width + offset : SIZE_MAX;
  }
};

// Adds tensors to a plan. Checks shapes at once; keeps the first error, so that a mapping function
// reads as a list of tensors. Remembers which checkpoint tensors were used.
class PlanBuilder {
 public:
  PlanBuilder(const Checkpoint& checkpoint, ModelPlan* plan)
      : checkpoint_(checkpoint), plan_(plan) {}

  const Checkpoint& checkpoint() const { return checkpoint_; }
  ModelPlan& plan() { return *plan_; }
  const Status& status() const { return status_; }
  void Fail(Status status);
  void Warn(const std::string& text) { plan_->warnings.push_back(text); }

  bool Has(const std::string& source) const { return checkpoint_.Find(source) != nullptr; }
  // Dimension `axis` of `source`, which must have `rank` dimensions; 0 after an error.
  size_t Dim(const std::string& source, size_t rank, size_t axis);

  // Matrix `name` from rows `rows` and columns `cols` of `source` [source_rows, source_cols].
  void MatrixWithoutBias(const std::string& name, Role role, const std::string& source,
                         size_t source_rows, size_t source_cols, Channels rows, Channels cols);
  // The same, and if "<source without .weight>.bias" exists, its rows become "<name>.bias".
  void Matrix(const std::string& name, Role role, const std::string& source, size_t source_rows,
              size_t source_cols, Channels rows, Channels cols);
  // f32 array `name` [channels.size()] from `source` [source_size]; `function` is applied to every
  // element of it, padding is 0. ArrayOrZeros: an absent source gives zeros.
  using Function = double (*)(double);
  void Array(const std::string& name, const std::string& source, size_t source_size,
             Channels channels, Function function = nullptr);
  void ArrayOrZeros(const std::string& name, const std::string& source, size_t source_size,
                    Channels channels);
  // f32 array [channels.size()] from `source`, which has one value per channel or one per head.
  void PerHead(const std::string& name, const std::string& source, Channels channels);
  // Convolution weights [channels, 1, taps] as [channels / kLanes][taps][kLanes].
  void Convolution(const std::string& name, const std::string& source, size_t source_channels,
                   size_t taps, Channels channels);
  // A_log [channels, d_state] as A * log2(e) = -exp(A_log) * log2(e), [channels /
  // kLanes][d_state][kLanes]. A checkpoint that stores A itself marks the tensor (negative_exp).
  void StateMatrix(const std::string& name, const std::string& source, size_t source_channels,
                   size_t d_state, Channels channels);
  // Counts `source` as used without taking anything from it.
  void Use(const std::string& source) { used_.insert(source); }

  // Tensors of the checkpoint that nothing used.
  std::vector<std::string> Unused() const;

 private:
  bool CheckShape(const std::string& source, std::vector<uint64_t> shape);
  // `function`, less what has been done to `source` already.
  Function Remaining(Function function, const std::string& source) const;
  // [channels][inner] of `source` transposed within lane blocks: [blocks][inner][kLanes].
  void LaneBlocks(const std::string& name, const std::string& source, size_t inner,
                  Channels channels, Function function);

  const Checkpoint& checkpoint_;
  ModelPlan* plan_;
  std::set<std::string> used_;
  Status status_;
};

// -exp(x) * log2(e), in double precision. Of a checkpoint tensor that holds -exp(x), only the rest
// is applied.
double NegativeExpTimesLog2E(double x);

// Finds the family of the checkpoint and lays out its conversion. `family` overrides what the
// configuration says ("falcon_mamba" for copies that call themselves mamba); empty: detect.
Result<ModelPlan> PlanModel(const Checkpoint& checkpoint, const std::string& family);

}  // namespace adder
