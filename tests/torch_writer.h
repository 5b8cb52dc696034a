// PyTorch archives for tests: pieces of pickles, and stored zip files with every quirk on demand.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace adder::test {

// Little-endian bytes of an integer.
inline std::string Le(uint64_t value, size_t bytes) {
  std::string out;
  for (size_t i = 0; i < bytes; ++i) out += i < 8 ? static_cast<char>(value >> (8 * i)) : '\0';
  return out;
}

// Pickle protocol 2.
inline std::string PickleText(std::string_view text) {
  return "X" + Le(text.size(), 4) + std::string(text);
}
inline std::string PickleInt(int64_t value) {
  return std::string("\x8a\x08", 2) + Le(static_cast<uint64_t>(value), 8);  // LONG1
}
inline std::string PickleInts(const std::vector<int64_t>& values) {
  std::string out = "(";
  for (const int64_t value : values) out += PickleInt(value);
  return out + "t";
}
inline std::string PickleGlobal(std::string_view module, std::string_view name) {
  return "c" + std::string(module) + "\n" + std::string(name) + "\n";
}
inline std::string PickleStorage(std::string_view type, std::string_view key, int64_t elements) {
  return "(" + PickleText("storage") + PickleGlobal("torch", type) + PickleText(key) +
         PickleText("cpu") + PickleInt(elements) + "tQ";
}
inline std::string PickleTensor(std::string_view storage, int64_t offset,
                                const std::vector<int64_t>& size,
                                const std::vector<int64_t>& stride) {
  return PickleGlobal("torch._utils", "_rebuild_tensor_v2") + "(" + std::string(storage) +
         PickleInt(offset) + PickleInts(size) + PickleInts(stride) + "\x89" +
         PickleGlobal("collections", "OrderedDict") + ")RtR";
}
// A whole pickle around the keys and values of one dict.
inline std::string PickleDict(std::string_view items) {
  return std::string("\x80\x02", 2) + "}(" + std::string(items) + "u.";
}

struct ZipItem {
  std::string name, bytes;
  uint16_t method = 0, flags = 0x0808;  // sizes in a data descriptor, names in UTF-8
  bool zip64 = false;                   // sizes and offset in the Zip64 field
  std::string local_extra = {};         // padding of the payload
  uint64_t size_lie = 0;                // added to the size in the directory
  uint64_t offset_lie = 0;              // added to the offset in the directory
};

struct ZipOptions {
  bool zip64_end = false;
  uint16_t disk = 0;
  uint64_t extra_entries = 0;  // claimed beyond those there are
  std::string comment = {};
};

// Local headers carry no sizes, as in torch.save's archives.
inline std::vector<uint8_t> ZipFile(const std::vector<ZipItem>& items,
                                    const ZipOptions& options = {}) {
  std::string out, directory;
  for (const ZipItem& item : items) {
    const uint64_t offset = out.size() + item.offset_lie, size = item.bytes.size() + item.size_lie;
    out += "PK\3\4" + Le(20, 2) + Le(item.flags, 2) + Le(item.method, 2) + Le(0, 16) +
           Le(item.name.size(), 2) + Le(item.local_extra.size(), 2) + item.name + item.local_extra +
           item.bytes + "PK\7\x08" + Le(0, 4) + Le(size, 4) + Le(size, 4);
    const std::string extra = item.zip64 ? Le(0x7777, 2) + Le(1, 2) + "x" + Le(1, 2) + Le(24, 2) +
                                               Le(size, 8) + Le(size, 8) + Le(offset, 8)
                                         : "";
    const auto field = [&item](uint64_t value) { return Le(item.zip64 ? ~0u : value, 4); };
    directory += "PK\1\2" + Le(20, 2) + Le(20, 2) + Le(item.flags, 2) + Le(item.method, 2) +
                 Le(0, 8) + field(size) + field(size) + Le(item.name.size(), 2) +
                 Le(extra.size(), 2) + Le(0, 10) + field(offset) + item.name + extra;
  }
  const uint64_t start = out.size(), entries = items.size() + options.extra_entries;
  out += directory;
  const uint64_t end = out.size();
  if (options.zip64_end) {
    out += "PK\6\6" + Le(44, 8) + Le(45, 2) + Le(45, 2) + Le(options.disk, 4) + Le(0, 4) +
           Le(entries, 8) + Le(entries, 8) + Le(directory.size(), 8) + Le(start, 8);
    out += "PK\6\7" + Le(0, 4) + Le(end, 8) + Le(1, 4);
  }
  const auto field = [&options](uint64_t value, size_t bytes) {
    return Le(options.zip64_end ? ~uint64_t{0} : value, bytes);
  };
  out += "PK\5\6" + Le(options.zip64_end ? 0 : options.disk, 2) + Le(0, 2) + field(entries, 2) +
         field(entries, 2) + field(directory.size(), 4) + field(start, 4) +
         Le(options.comment.size(), 2) + options.comment;
  return {out.begin(), out.end()};
}

}  // namespace adder::test
