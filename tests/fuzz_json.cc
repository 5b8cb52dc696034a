// libFuzzer: any bytes as JSON, and every typed read of them as a configuration.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "converter/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto root = adder::Json::Parse(text, "fuzz");
  if (!root.ok()) return 0;
  const adder::Config config(*root, "fuzz");
  for (const auto& [key, value] : root->members()) {
    (void)value.Describe();
    (void)config.Int({key}, 0).ok();
    (void)config.IntOrAuto({key}, 0).ok();
    (void)config.Double({key}, std::nullopt).ok();
    (void)config.Bool({key}, false).ok();
    (void)config.String({key}, "").ok();
    (void)config.IntList({key}).ok();
    (void)config.Object(key).ok();
  }
  return 0;
}
