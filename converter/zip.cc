#include "converter/zip.h"

#include <cinttypes>
#include <optional>

#include "converter/text.h"

namespace adder {
namespace {

// Record signatures, and their sizes without the variable part.
constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr size_t kLocalSize = 30, kCentralSize = 46, kEndSize = 22;
constexpr size_t kEnd64Size = 56, kLocator64Size = 20;
constexpr uint32_t kIn64 = 0xffffffff;  // the real value is in the Zip64 field

// A little-endian integer; the caller has checked the bounds.
template <typename T>
T Get(std::span<const uint8_t> bytes, size_t at) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= uint64_t{bytes[at + i]} << (8 * i);
  return static_cast<T>(value);
}

bool Inside(uint64_t offset, uint64_t size, uint64_t limit) {
  return size <= limit && offset <= limit - size;
}

// The central directory: where it lies and how many entries it has.
struct Directory {
  uint64_t offset = 0, size = 0, entries = 0;
  size_t limit = 0;  // offset of the record behind it
};

// The end record is the last one whose comment reaches exactly to the end of the file.
std::optional<size_t> FindEnd(std::span<const uint8_t> bytes) {
  if (bytes.size() < kEndSize) return std::nullopt;
  const size_t last = bytes.size() - kEndSize;
  for (size_t back = 0; back <= 0xffff && back <= last; ++back) {
    const size_t at = last - back;
    if (Get<uint32_t>(bytes, at) == kEnd && Get<uint16_t>(bytes, at + 20) == back) return at;
  }
  return std::nullopt;
}

Result<Directory> FindDirectory(std::span<const uint8_t> bytes, const std::string& name) {
  const auto end = FindEnd(bytes);
  if (!end) {
    return Error(Code::kCorruptFile,
                 "%s: no end record in %zu bytes: not a zip archive, or cut short", name.c_str(),
                 bytes.size());
  }
  Directory directory{Get<uint32_t>(bytes, *end + 16), Get<uint32_t>(bytes, *end + 12),
                      Get<uint16_t>(bytes, *end + 10), *end};
  uint64_t entries_here = Get<uint16_t>(bytes, *end + 8);
  uint32_t disk = Get<uint16_t>(bytes, *end + 4) | Get<uint16_t>(bytes, *end + 6);
  if (*end >= kLocator64Size && Get<uint32_t>(bytes, *end - kLocator64Size) == kLocator64) {
    const size_t locator = *end - kLocator64Size;
    const uint64_t at = Get<uint64_t>(bytes, locator + 8);
    if (!Inside(at, kEnd64Size, locator) ||
        Get<uint32_t>(bytes, static_cast<size_t>(at)) != kEnd64) {
      return Error(Code::kCorruptFile, "%s: no Zip64 end record at byte %" PRIu64, name.c_str(),
                   at);
    }
    const auto end64 = static_cast<size_t>(at);
    directory = {Get<uint64_t>(bytes, end64 + 48), Get<uint64_t>(bytes, end64 + 40),
                 Get<uint64_t>(bytes, end64 + 32), end64};
    entries_here = Get<uint64_t>(bytes, end64 + 24);
    disk = Get<uint32_t>(bytes, end64 + 16) | Get<uint32_t>(bytes, end64 + 20);
  }
  if (disk != 0 || entries_here != directory.entries) {
    return Error(Code::kUnsupported, "%s: a zip archive of several disks", name.c_str());
  }
  if (!Inside(directory.offset, directory.size, directory.limit)) {
    return Error(Code::kCorruptFile,
                 "%s: a directory of %" PRIu64 " bytes at %" PRIu64 ", but it must end by byte %zu",
                 name.c_str(), directory.size, directory.offset, directory.limit);
  }
  return directory;
}

// Fields of a directory entry that may have moved to its Zip64 extra field, in its order.
struct Sizes {
  uint64_t size, stored, local;
};

// False when a value that must come from the Zip64 field is not there.
bool ReadZip64(std::span<const uint8_t> extra, Sizes* sizes) {
  std::span<const uint8_t> field;
  while (extra.size() >= 4) {
    const size_t size = Get<uint16_t>(extra, 2);
    if (size > extra.size() - 4) return false;
    if (Get<uint16_t>(extra, 0) == 1) field = extra.subspan(4, size);
    extra = extra.subspan(4 + size);
  }
  for (uint64_t* value : {&sizes->size, &sizes->stored, &sizes->local}) {
    if (*value != kIn64) continue;
    if (field.size() < 8) return false;
    *value = Get<uint64_t>(field, 0);
    field = field.subspan(8);
  }
  return true;
}

// The entry's bytes. Sizes come from the directory; the local header only tells, by its own name
// and extra lengths, where the payload starts. `record` is the directory's fixed part.
Result<std::span<const uint8_t>> FindPayload(std::span<const uint8_t> bytes,
                                             std::span<const uint8_t> record, const Sizes& sizes,
                                             uint64_t limit, const std::string& where) {
  if (Get<uint16_t>(record, 8) & 1) {
    return Error(Code::kUnsupported, "%s: the entry is encrypted", where.c_str());
  }
  if (const unsigned method = Get<uint16_t>(record, 10); method != 0) {
    return Error(Code::kUnsupported,
                 "%s: compressed (method %u); torch.save stores entries uncompressed",
                 where.c_str(), method);
  }
  if (sizes.size != sizes.stored) {
    return Error(Code::kCorruptFile, "%s: %" PRIu64 " bytes stored as %" PRIu64, where.c_str(),
                 sizes.size, sizes.stored);
  }
  if (!Inside(sizes.local, kLocalSize, limit) ||
      Get<uint32_t>(bytes, static_cast<size_t>(sizes.local)) != kLocal) {
    return Error(Code::kCorruptFile, "%s: no local header at byte %" PRIu64, where.c_str(),
                 sizes.local);
  }
  const auto local = static_cast<size_t>(sizes.local);
  const uint64_t start = sizes.local + kLocalSize + Get<uint16_t>(bytes, local + 26) +
                         Get<uint16_t>(bytes, local + 28);
  if (!Inside(start, sizes.size, limit)) {
    return Error(Code::kCorruptFile,
                 "%s: %" PRIu64 " bytes at %" PRIu64 ", but the directory begins at %" PRIu64,
                 where.c_str(), sizes.size, start, limit);
  }
  return bytes.subspan(static_cast<size_t>(start), static_cast<size_t>(sizes.size));
}

}  // namespace

Result<ZipEntries> ReadZip(std::span<const uint8_t> bytes, const std::string& name) {
  ADDER_ASSIGN_OR_RETURN(const Directory directory, FindDirectory(bytes, name));
  std::span<const uint8_t> rest =
      bytes.subspan(static_cast<size_t>(directory.offset), static_cast<size_t>(directory.size));
  ZipEntries entries;
  for (uint64_t i = 0; i < directory.entries; ++i) {
    if (rest.size() < kCentralSize || Get<uint32_t>(rest, 0) != kCentral) {
      return Error(Code::kCorruptFile,
                   "%s: entry %" PRIu64 " of %" PRIu64 " is missing from the directory",
                   name.c_str(), i, directory.entries);
    }
    const size_t name_size = Get<uint16_t>(rest, 28), extra_size = Get<uint16_t>(rest, 30);
    const size_t total = kCentralSize + name_size + extra_size + Get<uint16_t>(rest, 32);
    if (total > rest.size()) {
      return Error(Code::kCorruptFile,
                   "%s: entry %" PRIu64 " has %zu bytes, the directory only %zu more", name.c_str(),
                   i, total, rest.size());
    }
    std::string entry(reinterpret_cast<const char*>(rest.data()) + kCentralSize, name_size);
    const std::string where = name + ": " + Shown(entry);
    Sizes sizes{Get<uint32_t>(rest, 24), Get<uint32_t>(rest, 20), Get<uint32_t>(rest, 42)};
    if (!ReadZip64(rest.subspan(kCentralSize + name_size, extra_size), &sizes)) {
      return Error(Code::kCorruptFile, "%s: its Zip64 field is cut short", where.c_str());
    }
    ADDER_ASSIGN_OR_RETURN(const auto payload, FindPayload(bytes, rest.first(kCentralSize), sizes,
                                                           directory.offset, where));
    if (!entries.emplace(std::move(entry), payload).second) {
      return Error(Code::kCorruptFile, "%s: the archive has two entries of this name",
                   where.c_str());
    }
    rest = rest.subspan(total);
  }
  if (!rest.empty()) {
    return Error(Code::kCorruptFile,
                 "%s: %zu bytes behind the %" PRIu64 " entries of the directory", name.c_str(),
                 rest.size(), directory.entries);
  }
  return entries;
}

}  // namespace adder
