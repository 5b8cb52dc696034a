#include "converter/checkpoint.h"

#include <cinttypes>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>

#include "converter/gguf_checkpoint.h"
#include "converter/pytorch_file.h"
#include "converter/safetensors.h"
#include "converter/text.h"

namespace adder {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxText = size_t{256} << 20;  // of a configuration file

struct Container {
  const char* stem;
  const char* extension;
  std::string Single() const { return std::string(stem) + extension; }
  std::string Index() const { return Single() + ".index.json"; }
  std::string Shard(unsigned k, unsigned n) const {
    char numbers[32];
    std::snprintf(numbers, sizeof(numbers), "-%05u-of-%05u", k, n);
    return stem + std::string(numbers) + extension;
  }
};

constexpr Container kSafetensors = {"model", ".safetensors"};
constexpr Container kPytorch = {"pytorch_model", ".bin"};
constexpr char kConsolidated[] = "consolidated.safetensors";

bool Exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool IsFolder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

// Opening a pipe would wait for its writer.
Result<MappedFile> OpenRegular(const std::string& path) {
  std::error_code error;
  if (fs::exists(path, error) && !fs::is_regular_file(path, error)) {
    return Error(Code::kInvalidArgument, "%s: not a regular file", path.c_str());
  }
  return MappedFile::Open(path);
}

Result<std::optional<std::string>> ReadText(const std::string& path) {
  if (!Exists(path)) return std::optional<std::string>();
  ADDER_ASSIGN_OR_RETURN(const MappedFile file, OpenRegular(path));
  const auto bytes = file.bytes();
  if (bytes.size() > kMaxText) {
    return Error(Code::kUnsupported, "%s: %zu bytes, at most %zu are read", path.c_str(),
                 bytes.size(), kMaxText);
  }
  return std::optional<std::string>(std::in_place, bytes.begin(), bytes.end());
}

Result<std::optional<Config>> ReadConfig(const std::string& folder, const char* name) {
  ADDER_ASSIGN_OR_RETURN(const auto text, ReadText(folder + "/" + name));
  if (!text) return std::optional<Config>();
  ADDER_ASSIGN_OR_RETURN(Json root, Json::Parse(*text, name));
  if (!root.is_object()) {
    return Error(Code::kCorruptFile, "%s: holds %s, expected an object", name,
                 root.Describe().c_str());
  }
  return std::optional<Config>(Config(std::move(root), name));
}

// Weights that someone else has quantized lost what a conversion needs.
Status RefuseQuantized(const Config& config) {
  for (const char* key : {"quantization_config", "quantization"}) {
    const Json* value = config.Find({key});
    if (value == nullptr) continue;
    std::string method = "not named";
    if (const Json* name = value->Find("quant_method"); name != nullptr && name->is_string()) {
      method = Shown(name->AsString());
    } else if (value->Find("load_in_4bit") != nullptr || value->Find("load_in_8bit") != nullptr) {
      method = "bitsandbytes";
    } else if (std::string_view(key) == "quantization") {
      method = "MLX";
    }
    if (const Json* bits = value->Find("bits"); bits != nullptr && bits->is_number()) {
      method += ", " + bits->Describe() + " bits";
    }
    return Error(Code::kUnsupported,
                 "%s: %s: the weights are already quantized (method %s); convert the original "
                 "float checkpoint",
                 config.name().c_str(), key, method.c_str());
  }
  return {};
}

// Names in an index come from outside: only files of the same folder.
Status CheckPlainName(const std::string& where, const std::string& file) {
  if (file.empty() || file == "." || file.find("..") != std::string::npos ||
      file.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
    return Error(Code::kCorruptFile, "%s: \"%s\" is not a plain file name", where.c_str(),
                 Shown(file).c_str());
  }
  return {};
}

struct Index {
  std::string name;
  std::map<std::string, std::string> weights;  // tensor to file
  std::set<std::string> files;
  std::optional<double> total_size;
};

Result<Index> ReadIndex(const std::string& folder, const std::string& name) {
  ADDER_ASSIGN_OR_RETURN(const auto text, ReadText(folder + "/" + name));
  if (!text) return Error(Code::kNotFound, "%s/%s: no such file", folder.c_str(), name.c_str());
  ADDER_ASSIGN_OR_RETURN(const Json root, Json::Parse(*text, name));
  const Json* weights = root.Find("weight_map");
  if (weights == nullptr || !weights->is_object() || weights->members().empty()) {
    return Error(Code::kCorruptFile, "%s: weight_map is %s, expected an object of files",
                 name.c_str(), weights == nullptr ? "missing" : weights->Describe().c_str());
  }
  Index index;
  index.name = name;
  for (const auto& [tensor, file] : weights->members()) {
    const std::string where = name + ": " + Shown(tensor);
    if (!file.is_string()) {
      return Error(Code::kCorruptFile, "%s: is in %s, expected a file name", where.c_str(),
                   file.Describe().c_str());
    }
    ADDER_RETURN_IF_ERROR(CheckPlainName(where, file.AsString()));
    index.weights.emplace(tensor, file.AsString());
    index.files.insert(file.AsString());
  }
  if (const Json* metadata = root.Find("metadata")) {
    const Json* size = metadata->Find("total_size");
    if (size != nullptr && size->is_number()) index.total_size = size->AsDouble();
  }
  return index;
}

// Shards without an index: <stem>-0000k-of-0000n. All n names, or none when there are no such
// files.
Result<std::vector<std::string>> FindShards(const std::string& folder, const Container& container) {
  std::set<unsigned> found, counts;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    unsigned k = 0, n = 0;
    if (!name.starts_with(container.stem)) continue;
    const char* numbers = name.c_str() + std::string_view(container.stem).size();
    if (std::sscanf(numbers, "-%5u-of-%5u", &k, &n) != 2) continue;
    if (name != container.Shard(k, n) || k == 0 || k > n) continue;
    found.insert(k);
    counts.insert(n);
  }
  if (error) {
    return Error(Code::kIo, "%s: cannot list: %s", folder.c_str(), error.message().c_str());
  }
  std::vector<std::string> names;
  if (counts.empty()) return names;
  if (counts.size() > 1) {
    return Error(Code::kCorruptFile, "%s: shards of %u and of %u files, and no index",
                 folder.c_str(), *counts.begin(), *counts.rbegin());
  }
  for (unsigned k = 1; k <= *counts.begin(); ++k) {
    names.push_back(container.Shard(k, *counts.begin()));
    if (!found.contains(k)) {
      return Error(Code::kNotFound, "%s: %s is missing (%zu of %u shards are there)",
                   folder.c_str(), names.back().c_str(), found.size(), *counts.begin());
    }
  }
  return names;
}

}  // namespace

// Collects the parts of a Checkpoint. Files are named relative to the folder.
class CheckpointReader {
 public:
  explicit CheckpointReader(std::string folder) : folder_(std::move(folder)) {}

  Status ReadConfigs() {
    ADDER_ASSIGN_OR_RETURN(out_.config_, ReadConfig(folder_, "config.json"));
    ADDER_ASSIGN_OR_RETURN(out_.params_, ReadConfig(folder_, "params.json"));
    ADDER_ASSIGN_OR_RETURN(out_.mamba_config_, ReadConfig(folder_, "mamba_config.json"));
    ADDER_ASSIGN_OR_RETURN(out_.generation_config_, ReadConfig(folder_, "generation_config.json"));
    ADDER_ASSIGN_OR_RETURN(out_.tokenizer_config_, ReadConfig(folder_, "tokenizer_config.json"));
    ADDER_ASSIGN_OR_RETURN(out_.tokenizer_json_, ReadText(folder_ + "/tokenizer.json"));
    ADDER_ASSIGN_OR_RETURN(out_.chat_template_, ReadText(folder_ + "/chat_template.jinja"));
    return out_.config_ ? RefuseQuantized(*out_.config_) : Status();
  }

  // Adds the tensors of one weights file, by its extension.
  Status AddFile(const std::string& file) {
    ADDER_ASSIGN_OR_RETURN(MappedFile mapped, OpenRegular(folder_ + "/" + file));
    out_.files_.push_back(std::make_shared<MappedFile>(std::move(mapped)));
    const auto bytes = out_.files_.back()->bytes();
    Result<TensorMap> tensors = file.ends_with(".safetensors")
                                    ? ParseSafetensors(bytes, file, &out_.warnings_)
                                    : ParsePytorchFile(bytes, file);
    if (!tensors.ok()) return tensors.status();
    for (auto& [name, tensor] : *tensors) {
      const auto [place, added] = out_.tensors_.emplace(name, std::move(tensor));
      if (!added) {
        return Error(Code::kCorruptFile, "%s: the tensor is in %s and in %s", Shown(name).c_str(),
                     place->second.file.c_str(), file.c_str());
      }
    }
    return {};
  }

  // Everything of a .gguf file.
  Status AddGguf(const std::string& file) {
    ADDER_ASSIGN_OR_RETURN(MappedFile mapped, OpenRegular(folder_ + "/" + file));
    out_.files_.push_back(std::make_shared<MappedFile>(std::move(mapped)));
    ADDER_ASSIGN_OR_RETURN(GgufCheckpoint gguf, ReadGguf(out_.files_.back()->bytes(), file));
    out_.config_ = std::move(gguf.config);
    out_.tensors_ = std::move(gguf.tensors);
    out_.chat_template_ = std::move(gguf.chat_template);
    out_.tokenizer_section_ = std::move(gguf.tokenizer_section);
    out_.origin_ = std::move(gguf.origin);
    out_.warnings_ = std::move(gguf.warnings);
    return {};
  }

  Status AddFiles(const std::vector<std::string>& files) {
    for (const std::string& file : files) ADDER_RETURN_IF_ERROR(AddFile(file));
    return {};
  }

  Status AddIndex(const std::string& name) {
    ADDER_ASSIGN_OR_RETURN(const Index index, ReadIndex(folder_, name));
    for (const std::string& file : index.files) {
      if (!Exists(folder_ + "/" + file)) {
        return Error(Code::kNotFound, "%s: %s, which %s names, is missing", folder_.c_str(),
                     Shown(file).c_str(), name.c_str());
      }
    }
    for (const std::string& file : index.files) ADDER_RETURN_IF_ERROR(AddFile(file));
    return CheckIndex(index);
  }

  // The folder's weights, in the order of preference.
  Status AddFolder() {
    ADDER_ASSIGN_OR_RETURN(const bool safetensors, AddContainer(kSafetensors));
    if (safetensors) return {};
    if (Exists(folder_ + "/" + kConsolidated)) return AddFile(kConsolidated);
    ADDER_ASSIGN_OR_RETURN(const bool pytorch, AddContainer(kPytorch));
    if (pytorch) return {};
    std::string sought;
    for (const Container& container : {kSafetensors, kPytorch}) {
      sought += container.Index() + ", " + container.Single() + ", " + container.stem +
                "-0000K-of-0000N" + container.extension + ", ";
    }
    return Error(Code::kNotFound, "%s: no weights; looked for %s%s", folder_.c_str(),
                 sought.c_str(), kConsolidated);
  }

  Result<Checkpoint> Finish() {
    if (out_.tensors_.empty()) {
      return Error(Code::kCorruptFile, "%s: the weights hold no tensor", folder_.c_str());
    }
    return std::move(out_);
  }

 private:
  // False when the folder has no weights of this kind.
  Result<bool> AddContainer(const Container& container) {
    const bool single = Exists(folder_ + "/" + container.Single());
    if (Exists(folder_ + "/" + container.Index())) {
      bool stale = false;
      if (single) {
        ADDER_ASSIGN_OR_RETURN(stale, IsStale(container.Index()));
      }
      if (!stale) {
        ADDER_RETURN_IF_ERROR(AddIndex(container.Index()));
        return true;
      }
      out_.warnings_.push_back(container.Index() + ": none of its files is there; reading " +
                               container.Single());
    }
    if (single) {
      ADDER_RETURN_IF_ERROR(AddFile(container.Single()));
      return true;
    }
    ADDER_ASSIGN_OR_RETURN(const auto shards, FindShards(folder_, container));
    ADDER_RETURN_IF_ERROR(AddFiles(shards));
    return !shards.empty();
  }

  // An index left over from before the shards were merged.
  Result<bool> IsStale(const std::string& name) {
    ADDER_ASSIGN_OR_RETURN(const Index index, ReadIndex(folder_, name));
    for (const std::string& file : index.files) {
      if (Exists(folder_ + "/" + file)) return false;
    }
    return true;
  }

  Status CheckIndex(const Index& index) {
    for (const auto& [name, file] : index.weights) {
      const SourceTensor* tensor = out_.Find(name);
      if (tensor == nullptr || tensor->file != file) {
        return Error(Code::kCorruptFile, "%s: %s: the index says %s, %s", index.name.c_str(),
                     Shown(name).c_str(), Shown(file).c_str(),
                     tensor == nullptr ? "which does not have it" : "but another file has it");
      }
    }
    double total = 0;
    size_t unlisted = 0;
    std::set<const uint8_t*> counted;  // tied tensors count once
    for (const auto& [name, tensor] : out_.tensors_) {
      unlisted += !index.weights.contains(name);
      if (!counted.insert(tensor.data).second) continue;
      total += static_cast<double>(tensor.elements() * SourceTypeBytes(tensor.type));
    }
    char text[160];
    if (unlisted > 0) {
      std::snprintf(text, sizeof(text), ": %zu tensors of its files are not listed", unlisted);
      out_.warnings_.push_back(index.name + text);
    }
    if (index.total_size && *index.total_size != total) {
      std::snprintf(text, sizeof(text), ": total_size is %.0f, the tensors have %.0f bytes",
                    *index.total_size, total);
      out_.warnings_.push_back(index.name + text);
    }
    return {};
  }

  std::string folder_;
  Checkpoint out_;
};

Result<Checkpoint> Checkpoint::Open(const std::string& path) {
  if (!Exists(path)) return Error(Code::kNotFound, "%s: no such file or folder", path.c_str());
  if (IsFolder(path)) {
    CheckpointReader reader(path);
    ADDER_RETURN_IF_ERROR(reader.ReadConfigs());
    ADDER_RETURN_IF_ERROR(reader.AddFolder());
    return reader.Finish();
  }
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const std::string file = slash == std::string::npos ? path : path.substr(slash + 1);
  CheckpointReader reader(folder);
  if (file.ends_with(".gguf")) {
    ADDER_RETURN_IF_ERROR(reader.AddGguf(file));
    return reader.Finish();
  }
  const bool index = file.ends_with(".index.json");
  if (!index && !file.ends_with(".safetensors") && !file.ends_with(".bin")) {
    return Error(Code::kInvalidArgument,
                 "%s: expected a folder, a .safetensors, .bin or .gguf file, or a .index.json",
                 path.c_str());
  }
  ADDER_RETURN_IF_ERROR(reader.ReadConfigs());
  ADDER_RETURN_IF_ERROR(index ? reader.AddIndex(file) : reader.AddFile(file));
  return reader.Finish();
}

const SourceTensor* Checkpoint::Find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

Result<std::vector<float>> Checkpoint::ReadF32(const std::string& name) const {
  const SourceTensor* tensor = Find(name);
  if (tensor == nullptr) {
    return Error(Code::kNotFound, "the checkpoint has no tensor %s", Shown(name).c_str());
  }
  return adder::ReadF32(*tensor, name);
}

}  // namespace adder
