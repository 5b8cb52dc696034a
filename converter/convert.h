// Checkpoint in, model file out.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "converter/model_writer.h"
#include "converter/plan.h"
#include "runtime/model_config.h"
#include "runtime/status.h"

namespace adder {

enum class WeightType { kF32, kF16, kQ8, kQ4 };
inline constexpr std::pair<WeightType, const char*> kWeightTypes[] = {{WeightType::kF32, "f32"},
                                                                      {WeightType::kF16, "f16"},
                                                                      {WeightType::kQ8, "q8"},
                                                                      {WeightType::kQ4, "q4"}};

struct ConvertProgress {
  uint64_t weights_done, weights_total;
  std::string_view tensor;  // that comes next
};

struct ConvertOptions {
  WeightType type = WeightType::kQ8;
  std::string family;  // overrides detection; empty: detect
  // Called before every tensor; false cancels (kCancelled, and the output stays as it was).
  std::function<bool(const ConvertProgress&)> progress;
};

struct ConvertReport {
  ModelConfig config;
  uint64_t weights = 0;  // parameters of the checkpoint that went in, padding not counted
  uint64_t file_bytes = 0;
  std::vector<std::string> warnings;
};

// Converts the checkpoint at `source` (a folder or weights file) to the model file `output`. The
// same weights and options always give the same bytes, wherever the checkpoint lies and whatever
// its own number format or container.
Result<ConvertReport> Convert(const std::string& source, const std::string& output,
                              const ConvertOptions& options);

// ---- What Convert and Synthesize share.

// The name in kWeightTypes.
const char* WeightTypeName(WeightType type);

// Makes the bytes of a tensor as they lie in the file, in the format that its role and the options
// call for.
using MakeTensor =
    std::function<Result<std::vector<uint8_t>>(const PlannedTensor& tensor, DType format)>;

// Creates `output` and writes the tensors of `plan` in the order of the file, one at a time; the
// caller finishes the file. Counts weights in `report`.
Result<ModelWriter> WriteTensors(const ModelPlan& plan, const std::string& output,
                                 const ConvertOptions& options, const MakeTensor& make,
                                 ConvertReport* report);

// The bytes of an array.
std::vector<uint8_t> ArrayBytes(std::span<const float> values);

}  // namespace adder
