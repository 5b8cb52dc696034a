// adder inspect: what is in a model file, and how it would run here.
#include <algorithm>
#include <cinttypes>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/json_writer.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/summary.h"
#include "runtime/kernels_dispatch.h"
#include "runtime/model.h"
#include "runtime/rapidjson.h"
#include "runtime/session.h"

namespace adder::cli {
namespace {

struct Options {
  std::string model;
  bool tensors = false, json = false;
};

// Layers that are alike and follow each other. They are described by the members that the metadata
// has, so that a new kind of block needs nothing here.
struct LayerGroup {
  size_t count;
  const rapidjson::Value* layer;
};

std::vector<LayerGroup> GroupLayers(const rapidjson::Document& metadata) {
  std::vector<LayerGroup> groups;
  for (const rapidjson::Value& layer : metadata["layers"].GetArray()) {
    if (groups.empty() || *groups.back().layer != layer) groups.push_back({0, &layer});
    ++groups.back().count;
  }
  return groups;
}

std::string JsonText(const rapidjson::Value& value) {
  if (value.IsString()) return std::string(value.GetString(), value.GetStringLength());
  rapidjson::StringBuffer buffer;
  rapidjson::Writer<rapidjson::StringBuffer> writer(buffer);
  value.Accept(writer);
  return std::string(buffer.GetString(), buffer.GetSize());
}

// Layers that are alike, wherever they are.
struct LayerKind {
  const rapidjson::Value* layer;
  std::vector<size_t> indexes;
};

std::vector<LayerKind> LayerKinds(const rapidjson::Document& metadata) {
  std::vector<LayerKind> kinds;
  size_t index = 0;
  for (const rapidjson::Value& layer : metadata["layers"].GetArray()) {
    const auto same = [&](const LayerKind& kind) { return *kind.layer == layer; };
    auto kind = std::find_if(kinds.begin(), kinds.end(), same);
    if (kind == kinds.end()) kind = kinds.insert(kind, {&layer, {}});
    kind->indexes.push_back(index++);
  }
  return kinds;
}

// "0-4, 6, 8-9"; "0, 2, ..., 46" where all have the same distance.
std::string IndexText(const std::vector<size_t>& indexes) {
  const size_t n = indexes.size();
  const size_t step = n > 2 ? indexes[1] - indexes[0] : 0;
  bool even = step > 1;
  for (size_t i = 0; i < n; ++i) even = even && indexes[i] == indexes[0] + i * step;
  if (even) return Format("%zu, %zu, ..., %zu", indexes[0], indexes[1], indexes[n - 1]);
  std::string text;
  for (size_t first = 0; first < n;) {
    size_t last = first;
    while (last + 1 < n && indexes[last + 1] == indexes[last] + 1) ++last;
    if (first > 0) text += ", ";
    text += std::to_string(indexes[first]);
    if (last > first) text += "-" + std::to_string(indexes[last]);
    first = last + 1;
  }
  return text;
}

// "32 x mamba1: d_inner 5120, d_state 16, ...; layers 0, 2, ..., 62"; `all`: no other kinds.
std::string KindText(const LayerKind& kind, bool all) {
  std::string text = Format("%zu x ", kind.indexes.size());
  const char* separator = "";
  for (const auto& member : kind.layer->GetObject()) {
    if (JsonText(member.name) == "block") {
      text += JsonText(member.value) + ":";
      separator = " ";
    } else {
      text += separator + JsonText(member.name) + " " + JsonText(member.value);
      separator = ", ";
    }
  }
  return all ? text : text + "; layers " + IndexText(kind.indexes);
}

struct Memory {
  uint64_t state, kv, scratch;  // bytes of a session with default options
};

Result<Memory> SessionMemory(const Model& model) {
  ADDER_ASSIGN_OR_RETURN(const size_t total, Session::Bytes(model, {}));
  const size_t state = model.StateFloats() * sizeof(float);
  const size_t kv = model.KvBytes(SessionOptions().context);
  return Memory{state, kv, total - state - kv};
}

std::string TokenText(const Model& model, int32_t id) {
  if (id < 0) return "none";
  std::string text = Format("%" PRId32, id);
  if (model.tokenizer() != nullptr && id < model.tokenizer()->size()) {
    text.append(" ").append(model.tokenizer()->PieceText(id));
  }
  return text;
}

std::vector<std::string> CompiledNames() {
  std::vector<std::string> names;
  for (const Kernels* table : CompiledKernels()) names.push_back(table->name);
  return names;
}

// A few lines "name   value".
class Sheet {
 public:
  void Row(const std::string& name, const std::string& value) {
    text_ += Format("%-14s ", name.c_str()) + Printable(value) + "\n";
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string Text(const Model& model, const Memory& memory, const rapidjson::Document& metadata) {
  const ModelConfig& config = model.config();
  const ModelSummary summary = Summarize(model);
  Sheet sheet;
  sheet.Row("family", config.family);
  sheet.Row("type",
            Format("%s, %.2f bits per weight", config.type.c_str(), summary.bits_per_weight));
  sheet.Row("parameters", Format("%s (%" PRIu64 ")", FormatNumber(summary.parameters).c_str(),
                                 summary.parameters));
  sheet.Row("file",
            Format("%s (%" PRIu64 " bytes), %zu tensors", FormatBytes(summary.file_bytes).c_str(),
                   summary.file_bytes, model.file().tensors().size()));
  sheet.Row("d_model", std::to_string(config.d_model));
  std::string name = "layers";
  const std::vector<LayerKind> kinds = LayerKinds(metadata);
  for (const LayerKind& kind : kinds) {
    sheet.Row(std::exchange(name, ""), KindText(kind, kinds.size() == 1));
  }
  sheet.Row("head", config.tied_head ? "the embedding" : "its own matrix");
  sheet.Row("session",
            Format("%s of state, %s of scratch and buffers", FormatBytes(memory.state).c_str(),
                   FormatBytes(memory.scratch).c_str()));
  if (memory.kv > 0) {
    sheet.Row("keys, values", Format("%s per 1,000 tokens of context, %s for %" PRIu32,
                                     FormatBytes(model.KvBytesPerToken() * 1000).c_str(),
                                     FormatBytes(memory.kv).c_str(), SessionOptions().context));
    sheet.Row("", Format("%s per 1,000 tokens with --kv int8",
                         FormatBytes(model.KvBytesPerToken(KvChoice::kInt8) * 1000).c_str()));
  }
  sheet.Row("vocabulary",
            Format("%" PRIu32 " ids in %" PRIu32 " rows", config.vocab_size, config.vocab_rows));
  sheet.Row("tokenizer", model.tokenizer() == nullptr
                             ? "none: takes and gives token ids"
                             : Format("%" PRId32 " pieces", model.tokenizer()->size()));
  sheet.Row("bos", TokenText(model, config.bos));
  name = "eos";
  if (config.eos.empty()) sheet.Row(name, "none");
  for (const int32_t id : config.eos) sheet.Row(std::exchange(name, ""), TokenText(model, id));
  sheet.Row("chat template", config.chat_template.empty() ? "no" : "yes (--json shows it)");
  for (const auto& [key, value] : config.provenance) sheet.Row(key, value);
  std::string kernels = model.kernels().name;
  kernels += " runs; in this build:";
  for (const std::string& table : CompiledNames()) kernels += " " + table;
  sheet.Row("kernels", kernels);
  sheet.Row("cpu", CpuFeatureNames(DetectCpuFeatures()));
  return sheet.text();
}

std::string TensorTable(const ModelFile& file) {
  std::string text = "\n";
  for (const Tensor& tensor : file.tensors()) {
    text += Format("%-40s %-8s %-18s %12zu bytes\n", Printable(tensor.name).c_str(),
                   DTypeName(tensor.dtype), ShapeText(tensor.shape).c_str(), tensor.data.size());
  }
  return text;
}

void WriteToken(const Model& model, int32_t id, JsonWriter* json) {
  json->BeginObject();
  json->Member("id", id);
  if (model.tokenizer() != nullptr && id < model.tokenizer()->size()) {
    json->Member("text", model.tokenizer()->PieceText(id));
  }
  json->EndObject();
}

std::string Json(const Options& options, const Model& model, const Memory& memory,
                 const rapidjson::Document& metadata) {
  const ModelConfig& config = model.config();
  JsonWriter json;
  json.BeginObject();
  json.Member("model", options.model);
  WriteSummary(Summarize(model), &json);
  json.Member("d_model", config.d_model);
  json.Key("layer_plan");
  json.BeginArray();
  for (const LayerGroup& group : GroupLayers(metadata)) {
    json.BeginObject();
    json.Member("count", group.count);
    for (const auto& member : group.layer->GetObject()) {
      json.Key({member.name.GetString(), member.name.GetStringLength()});
      json.Copy(member.value);
    }
    json.EndObject();
  }
  json.EndArray();
  json.Member("tied_head", config.tied_head);
  json.Member("vocab_size", config.vocab_size);
  json.Member("vocab_rows", config.vocab_rows);
  json.Member("state_bytes", memory.state);
  json.Member("kv_bytes_per_token", model.KvBytesPerToken());
  json.Member("kv_bytes_per_token_int8", model.KvBytesPerToken(KvChoice::kInt8));
  json.Member("scratch_bytes", memory.scratch);
  json.Member("tokenizer_pieces", model.tokenizer() == nullptr ? 0 : model.tokenizer()->size());
  json.Key("bos");
  if (config.bos >= 0) {
    WriteToken(model, config.bos, &json);
  } else {
    json.Null();
  }
  json.Key("eos");
  json.BeginArray();
  for (const int32_t id : config.eos) WriteToken(model, id, &json);
  json.EndArray();
  json.Member("chat_template", config.chat_template);
  json.Key("provenance");
  json.BeginObject();
  for (const auto& [key, value] : config.provenance) json.Member(key, value);
  json.EndObject();
  json.Member("kernels", model.kernels().name);
  json.ListMember("kernels_compiled", CompiledNames());
  json.Member("cpu_features", CpuFeatureNames(DetectCpuFeatures()));
  if (options.tensors) {
    json.Key("tensors");
    json.BeginArray();
    for (const Tensor& tensor : model.file().tensors()) {
      json.BeginObject();
      json.Member("name", tensor.name);
      json.Member("type", DTypeName(tensor.dtype));
      json.ListMember("shape", tensor.shape);
      json.Member("bytes", tensor.data.size());
      json.EndObject();
    }
    json.EndArray();
  }
  json.EndObject();
  return json.Text();
}

Result<int> Run(const Options& options) {
  ADDER_ASSIGN_OR_RETURN(const auto model, Model::Open(options.model));
  ADDER_ASSIGN_OR_RETURN(const Memory memory, SessionMemory(*model));
  // Not the file's own text, which may hold more than the known members, nested to any depth.
  rapidjson::Document metadata;
  metadata.Parse(model->config().ToJson().c_str());
  if (options.json) {
    ADDER_RETURN_IF_ERROR(Print(Json(options, *model, memory, metadata)));
    return 0;
  }
  std::string text = Text(*model, memory, metadata);
  if (options.tensors) text += TensorTable(model->file());
  ADDER_RETURN_IF_ERROR(Print(text));
  return 0;
}

}  // namespace

void AddInspect(CLI::App* app, Action* action) {
  CLI::App* command = app->add_subcommand("inspect", "Show what is in a model file");
  auto options = std::make_shared<Options>();
  AddText(command, "MODEL", "", &options->model, "Model file")->required();
  command->add_flag("--tensors", options->tensors, "List the tensors, too");
  command->add_flag("--json", options->json, "Print JSON, with the whole chat template");
  command->footer(
      "Examples:\n"
      "  adder inspect model.adder\n"
      "  adder inspect model.adder --tensors | sort -k5 -n     largest tensors last\n"
      "\n"
      "A session is one text: its state keeps its size however long the text becomes. Keys and\n"
      "values are those of attention layers, if there are any: run --context sets for how many\n"
      "tokens they are kept.");
  command->callback([=] { *action = [options] { return Run(*options); }; });
}

}  // namespace adder::cli
