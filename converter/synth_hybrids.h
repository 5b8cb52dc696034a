// Plans of hybrid models of published shapes, without a checkpoint: for adder synth.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "converter/plan.h"

namespace adder {

std::vector<std::string> HybridNames();

// The plan of such a model, whose arrays have values that models are initialized with; those of
// matrices are up to the caller. Nothing if there is no model of this name.
std::optional<ModelPlan> PlanHybrid(std::string_view name);

}  // namespace adder
