// What the commands that make model files share.
#pragma once

#include <string>

#include "converter/convert.h"
#include "runtime/status.h"

namespace adder::cli {

// An error if `path` is a file with content that is no Adder model: an earlier result may be
// replaced, but a slip of the hand shall not cost a checkpoint.
Status CheckReplaceable(const std::string& path);

// A name of kWeightTypes, which the parser has checked.
WeightType FindWeightType(const std::string& name);

}  // namespace adder::cli
