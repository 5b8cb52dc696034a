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
  kExact,      // routers: f32 always
  kArray,      // norms, convolution, A, D, biases: f32 always
};

// Row-major floats, shared with the loader's cache where they need no change.
struct FloatView {
  std::shared_ptr<const std::vector<float>> owner;
  std::span<const float> values;

  static FloatView Own(std::vector<float> values);
};

// A tensor of the checkpoint, or one slice of it: experts may lie merged as [experts, rows, cols].
struct Source {
  Source() = default;
  Source(std::string tensor) : name(std::move(tensor)) {}  // NOLINT: a name is a source
  Source(std::string tensor, size_t index, size_t count)
      : name(std::move(tensor)), slice(index), slices(count) {}
  bool operator==(const Source&) const = default;

  std::string name;
  size_t slice = 0, slices = 0;  // 0 slices: the whole tensor
};

// Reads checkpoint tensors as float32. Keeps the last one, since neighbouring tensors of a model
// file are often parts of the same checkpoint tensor. Of a sliced tensor only the slice is read.
class TensorLoader {
 public:
  explicit TensorLoader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}
  Result<FloatView> Load(const Source& source);

 private:
  const Checkpoint& checkpoint_;
  Source last_source_;
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
// from `begin` on, each padded to `padded_width` and stored `repeat` times in a row.
struct Channels {
  size_t begin, heads, width, padded_width;
  bool split_pairs = false;  // elements 0, 2, 4 ... of a run come first, then 1, 3, 5 ...
  size_t repeat = 1;

  static Channels Range(size_t begin, size_t count) { return {begin, 1, count, count}; }
  static Channels Pairs(size_t begin, size_t runs, size_t width) {
    return {begin, runs, width, width, /*split_pairs=*/true};
  }
  // Padded to whole lane blocks, as arrays are.
  static Channels Padded(size_t begin, size_t count) {
    return {begin, 1, count, RoundUp(count, kLanes)};
  }
  static Channels Heads(size_t begin, size_t heads, size_t width) {
    return {begin, heads, width, RoundUp(width, kLanes)};
  }
  static Channels Repeated(size_t begin, size_t heads, size_t width, size_t padded_width,
                           size_t repeat) {
    return {begin, heads, width, padded_width, /*split_pairs=*/false, repeat};
  }
  static Channels Padding(size_t count) { return {0, 1, 0, count}; }
  size_t size() const { return heads * repeat * padded_width; }
  bool contiguous() const { return width == padded_width && repeat == 1 && !split_pairs; }
  // Index in the checkpoint of element i, or SIZE_MAX for padding.
  size_t Source(size_t i) const {
    size_t offset = i % padded_width;
    if (offset >= width) return SIZE_MAX;
    const size_t pairs = width / 2;
    if (split_pairs && offset < 2 * pairs) offset = offset % pairs * 2 + offset / pairs;
    return begin + i / padded_width / repeat * width + offset;
  }
};

// Channels times a multiplier of the family. Where the multiplier belongs to the input of a matrix,
// its bias is not multiplied.
struct Part {
  Channels channels;
  double scale = 1.0, bias_scale = 1.0;
};

// Parts one behind the other; mostly a single one.
class Selection {
 public:
  struct Element {
    size_t source;  // SIZE_MAX: padding
    double scale;
  };

  Selection(Channels channels) : parts_{{channels}} {}              // NOLINT: the usual case
  Selection(std::vector<Part> parts) : parts_(std::move(parts)) {}  // NOLINT

  const std::vector<Part>& parts() const { return parts_; }
  size_t size() const;
  std::vector<Element> Elements() const;
  // The elements of the bias: padded to whole lane blocks, with the scales of biases.
  Selection OfBias() const;

 private:
  std::vector<Part> parts_;
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
  // Rows and columns of a matrix; 0 after an error.
  size_t Rows(const Source& source);
  size_t Cols(const Source& source);

  // Matrix `name` from rows `rows` and columns `cols` of `source` [source_rows, source_cols].
  void MatrixWithoutBias(const std::string& name, Role role, const Source& source,
                         size_t source_rows, size_t source_cols, const Selection& rows,
                         Channels cols);
  // The same, and if "<source without .weight>.bias" exists, its rows become "<name>.bias".
  void Matrix(const std::string& name, Role role, const Source& source, size_t source_rows,
              size_t source_cols, const Selection& rows, Channels cols);
  // All of it.
  void Matrix(const std::string& name, Role role, const Source& source, size_t source_rows,
              size_t source_cols) {
    Matrix(name, role, source, source_rows, source_cols, Channels::Range(0, source_rows),
           Channels::Range(0, source_cols));
  }
  // f32 array `name` [channels.size()] from `source` [source_size]; `function` is applied to every
  // element of it, padding is 0. ArrayOrZeros: an absent source gives zeros.
  using Function = double (*)(double);
  void Array(const std::string& name, const std::string& source, size_t source_size,
             const Selection& channels, Function function = nullptr);
  void Array(const std::string& name, const std::string& source, size_t source_size) {
    Array(name, source, source_size, Channels::Range(0, source_size));
  }
  // The same of a source of any shape, which the file keeps.
  void ShapedArray(const std::string& name, const std::string& source, std::vector<uint64_t> shape,
                   Channels elements);
  // f32 array [ranks][heads * padded width] from `source` [heads, ranks, width].
  void RankRows(const std::string& name, const std::string& source, size_t ranks,
                Channels channels);
  void ArrayOrZeros(const std::string& name, const std::string& source, size_t source_size,
                    const Selection& channels);
  // f32 array of computed values.
  void Values(const std::string& name, std::vector<float> values);
  // f32 array [channels.size()] from `source`, which has one value per channel or one per head.
  void PerHead(const std::string& name, const std::string& source, Channels channels);
  // Convolution weights [channels, 1, taps] as [channels / kLanes][taps][kLanes].
  void Convolution(const std::string& name, const std::string& source, size_t source_channels,
                   size_t taps, const Selection& channels);
  // A_log [channels, d_state] as A * log2(e) = -exp(A_log) * log2(e), [channels /
  // kLanes][d_state][kLanes]. A checkpoint that stores A itself marks the tensor (negative_exp).
  void StateMatrix(const std::string& name, const std::string& source, size_t source_channels,
                   size_t d_state, Channels channels);
  // Counts `source` as used without taking anything from it, or all tensors that start with
  // `prefix`; how many those are.
  void Use(const std::string& source) { used_.insert(source); }
  size_t UseAll(const std::string& prefix);

  // Prefix of the tensors of the next layer, and the end of that layer.
  std::string NextLayer() const {
    return "layers." + std::to_string(plan_->config.layers.size()) + ".";
  }
  void AddLayer(double norm_eps, Mixer mixer) {
    plan_->config.layers.push_back({static_cast<float>(norm_eps), std::move(mixer)});
  }

  // Tensors of the checkpoint that nothing used.
  std::vector<std::string> Unused() const;

 private:
  bool CheckShape(const Source& source, std::vector<uint64_t> shape);
  // `function`, less what has been done to `source` already.
  Function Remaining(Function function, const std::string& source) const;
  // [channels][inner] of `source` transposed within lane blocks: [blocks][inner][kLanes].
  void LaneBlocks(const std::string& name, const std::string& source, size_t inner,
                  const Selection& channels, Function function);

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
