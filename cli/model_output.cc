#include "cli/model_output.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "runtime/model_file.h"

namespace adder::cli {

Status CheckReplaceable(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char magic[sizeof(kFileMagic)] = {};
  file.read(magic, sizeof(magic));
  if (file.gcount() == 0) return {};  // not there, not readable or empty
  if (std::equal(std::begin(magic), std::end(magic), std::begin(kFileMagic),
                 [](char a, uint8_t b) { return static_cast<uint8_t>(a) == b; })) {
    return {};
  }
  return Error(Code::kInvalidArgument, "%s: exists and is no Adder model; remove it first",
               path.c_str());
}

WeightType FindWeightType(const std::string& name) {
  for (const auto& [type, type_name] : kWeightTypes) {
    if (name == type_name) return type;
  }
  return WeightType::kQ8;  // not reached: the parser has checked
}

}  // namespace adder::cli
