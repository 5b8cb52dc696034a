#include "cli/summary.h"

namespace adder::cli {

ModelSummary Summarize(const Model& model) {
  ModelSummary summary;
  summary.family = model.config().family;
  summary.type = model.config().type;
  summary.layers = model.config().layers.size();
  summary.file_bytes = model.file().bytes();
  for (const Tensor& tensor : model.file().tensors()) {
    uint64_t elements = 1;  // ModelFile has checked that this does not overflow
    for (const uint64_t dim : tensor.shape) elements *= dim;
    summary.parameters += elements;
    summary.tensor_bytes += tensor.data.size();
  }
  summary.bits_per_weight =
      static_cast<double>(summary.tensor_bytes) * 8 / static_cast<double>(summary.parameters);
  return summary;
}

void WriteSummary(const ModelSummary& summary, JsonWriter* json) {
  json->Member("family", summary.family);
  json->Member("type", summary.type);
  json->Member("layers", summary.layers);
  json->Member("parameters", summary.parameters);
  json->Member("tensor_bytes", summary.tensor_bytes);
  json->Member("file_bytes", summary.file_bytes);
  json->Member("bits_per_weight", summary.bits_per_weight);
}

}  // namespace adder::cli
