// Models with random weights in published shapes: for benchmarks without downloads.
#pragma once

#include <string>
#include <vector>

#include "converter/convert.h"
#include "runtime/status.h"

namespace adder {

// Names that Synthesize knows: "mamba-130m", ...
std::vector<std::string> SynthNames();

// Writes a model file in the shape of `name`, within seconds and one tensor at a time. Weights have
// the size of initialized ones, A and dt those of a fresh model; matrices repeat every few row
// blocks, which no kernel notices. There is no tokenizer. The same arguments give the same bytes.
Result<ConvertReport> Synthesize(const std::string& name, const std::string& output,
                                 const ConvertOptions& options);

}  // namespace adder
