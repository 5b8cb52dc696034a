// The directory of a zip archive whose entries are stored, not compressed: what torch.save writes.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "runtime/status.h"

namespace adder {

// Entry name to its bytes, which lie inside `bytes`. Compressed, encrypted and repeated entries and
// archives of several disks are errors. Checksums are not verified.
using ZipEntries = std::map<std::string, std::span<const uint8_t>>;
Result<ZipEntries> ReadZip(std::span<const uint8_t> bytes, const std::string& name);

}  // namespace adder
