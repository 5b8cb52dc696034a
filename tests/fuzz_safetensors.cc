// libFuzzer: any bytes as a safetensors file; small tensors are read to the last element.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "converter/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::string> warnings;
  const auto tensors = adder::ParseSafetensors({data, size}, "fuzz", &warnings);
  if (!tensors.ok()) return 0;
  for (const auto& [name, tensor] : *tensors) {
    if (tensor.elements() <= 4096) (void)adder::ReadF32(tensor, name).ok();
  }
  return 0;
}
