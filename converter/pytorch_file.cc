#include "converter/pytorch_file.h"

#include <algorithm>
#include <cinttypes>
#include <limits>
#include <string_view>

#include "converter/pickle.h"
#include "converter/text.h"
#include "converter/zip.h"

namespace adder {
namespace {

// A view may repeat its storage (stride 0), so that a few bytes on disk ask for any amount of
// memory. Up to this many elements that is taken as honest.
constexpr uint64_t kMaxRepeated = uint64_t{1} << 24;

// The prefix of all entries: whatever stands before "/data.pkl".
Result<std::string> FindRoot(const ZipEntries& entries, const std::string& name) {
  static constexpr std::string_view kPickle = "/data.pkl";
  const std::string* found = nullptr;
  for (const auto& [entry, bytes] : entries) {
    if (!entry.ends_with(kPickle)) continue;
    if (found != nullptr) {
      return Error(Code::kCorruptFile, "%s: two pickles, %s and %s", name.c_str(),
                   Shown(*found).c_str(), Shown(entry).c_str());
    }
    found = &entry;
  }
  if (found == nullptr) {
    return Error(Code::kCorruptFile, "%s: none of the archive's %zu entries is ROOT/data.pkl",
                 name.c_str(), entries.size());
  }
  return found->substr(0, found->size() - kPickle.size());
}

std::string Text(std::span<const uint8_t> bytes) { return {bytes.begin(), bytes.end()}; }

// Checks that the view's last element lies in its storage, in 64 bits without wrapping.
Status CheckView(const std::string& where, const PickledTensor& tensor) {
  uint64_t count = 1, last = tensor.offset;
  bool wraps = false;
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    wraps |= __builtin_mul_overflow(count, tensor.shape[i], &count);
    uint64_t reach = 0;
    if (tensor.shape[i] > 0) {
      wraps |= __builtin_mul_overflow(tensor.shape[i] - 1, tensor.strides[i], &reach);
    }
    wraps |= __builtin_add_overflow(last, reach, &last);
  }
  if (wraps) return Error(Code::kCorruptFile, "%s: its size exceeds 64 bits", where.c_str());
  if (count > 0 && last >= tensor.storage_elements) {
    return Error(Code::kCorruptFile,
                 "%s: reaches element %" PRIu64 " of a storage of %" PRIu64 " elements",
                 where.c_str(), last, tensor.storage_elements);
  }
  if (count > tensor.storage_elements && count > kMaxRepeated) {
    return Error(Code::kUnsupported,
                 "%s: repeats a storage of %" PRIu64 " elements to %" PRIu64 "; at most %" PRIu64
                 " are read",
                 where.c_str(), tensor.storage_elements, count, kMaxRepeated);
  }
  return {};
}

// Row-major strides are left out. The stride of an axis of size 1 never matters, and an empty
// tensor has none.
std::vector<uint64_t> Strides(const PickledTensor& tensor) {
  uint64_t expected = 1;
  bool contiguous = true;
  for (size_t i = tensor.shape.size(); i-- > 0;) {
    if (tensor.shape[i] == 0) return {};
    contiguous &= tensor.shape[i] == 1 || tensor.strides[i] == expected;
    expected *= tensor.shape[i];
  }
  return contiguous ? std::vector<uint64_t>() : tensor.strides;
}

Result<SourceTensor> Locate(const std::string& where, const PickledTensor& pickled,
                            const ZipEntries& entries, const std::string& root) {
  ADDER_RETURN_IF_ERROR(CheckView(where, pickled));
  const auto storage = entries.find(root + "/data/" + std::string(pickled.key));
  if (storage == entries.end()) {
    return Error(Code::kCorruptFile, "%s: the archive has no storage %s/data/%s", where.c_str(),
                 Shown(root).c_str(), Shown(pickled.key).c_str());
  }
  const std::span<const uint8_t> bytes = storage->second;
  const size_t size = SourceTypeBytes(pickled.type);
  if (pickled.storage_elements > bytes.size() / size) {
    return Error(Code::kCorruptFile,
                 "%s: its storage %s has %zu bytes, %" PRIu64 " elements of %zu expected",
                 where.c_str(), Shown(pickled.key).c_str(), bytes.size(), pickled.storage_elements,
                 size);
  }
  SourceTensor tensor;
  tensor.type = pickled.type;
  tensor.shape = pickled.shape;
  tensor.strides = Strides(pickled);
  tensor.data = bytes.data();
  if (tensor.elements() > 0) tensor.data += pickled.offset * size;
  return tensor;
}

}  // namespace

Result<TensorMap> ParsePytorchFile(std::span<const uint8_t> bytes, const std::string& name) {
  if (bytes.size() < 2 || bytes[0] != 'P' || bytes[1] != 'K') {
    return Error(Code::kUnsupported,
                 "%s: not a zip archive; files of PyTorch before 1.6 must be saved again: "
                 "torch.save(torch.load(\"old.bin\"), \"pytorch_model.bin\")",
                 name.c_str());
  }
  ADDER_ASSIGN_OR_RETURN(const ZipEntries entries, ReadZip(bytes, name));
  ADDER_ASSIGN_OR_RETURN(const std::string root, FindRoot(entries, name));
  const auto order = entries.find(root + "/byteorder");
  if (order != entries.end() && Text(order->second) != "little") {
    return Error(
        Code::kUnsupported, "%s: byte order \"%s\", only little is read", name.c_str(),
        Shown(Text(order->second.first(std::min<size_t>(order->second.size(), 64)))).c_str());
  }
  ADDER_ASSIGN_OR_RETURN(const auto pickled,
                         ReadPickledTensors(entries.at(root + "/data.pkl"), name + ": data.pkl"));
  TensorMap tensors;
  for (const auto& [key, view] : pickled) {
    ADDER_ASSIGN_OR_RETURN(SourceTensor tensor,
                           Locate(name + ": " + Shown(key), view, entries, root));
    tensor.file = name;
    tensors.emplace(key, std::move(tensor));
  }
  return tensors;
}

}  // namespace adder
