// libFuzzer: any bytes as a PyTorch archive, and as the pickle in it; small tensors are read to the
// last element.
#include <cstddef>
#include <cstdint>

#include "converter/pickle.h"
#include "converter/pytorch_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)adder::ReadPickledTensors({data, size}, "fuzz").ok();
  const auto tensors = adder::ParsePytorchFile({data, size}, "fuzz");
  if (!tensors.ok()) return 0;
  for (const auto& [name, tensor] : *tensors) {
    if (tensor.elements() <= 4096) (void)adder::ReadF32(tensor, name).ok();
  }
  return 0;
}
