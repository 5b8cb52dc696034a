// The figures of a model that `convert` and `inspect` report.
#pragma once

#include <cstdint>
#include <string>

#include "cli/json_writer.h"
#include "runtime/model.h"

namespace adder::cli {

struct ModelSummary {
  std::string family, type;
  size_t layers = 0;
  uint64_t parameters = 0;     // stored values, padding of matrices not counted
  uint64_t tensor_bytes = 0;   // scales and padding included
  uint64_t file_bytes = 0;     // tokenizer, names and metadata too
  double bits_per_weight = 0;  // of the tensors
};

ModelSummary Summarize(const Model& model);

// As members of the current object.
void WriteSummary(const ModelSummary& summary, JsonWriter* json);

}  // namespace adder::cli
