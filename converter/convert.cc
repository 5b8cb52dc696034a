#include "converter/convert.h"

#include <xxhash.h>

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <map>
#include <memory>

#include "converter/checkpoint.h"
#include "converter/model_writer.h"
#include "converter/plan.h"
#include "converter/special_tokens.h"
#include "converter/tokenizer_json.h"
#include "quant/pack.h"

namespace adder {
namespace {

uint64_t Elements(const std::vector<uint64_t>& shape) {
  uint64_t product = 1;
  for (const uint64_t dim : shape) product *= dim;
  return product;
}

// Hash over names and float32 values of everything that goes into a file: equal for copies of a
// model whatever container or number format they come in.
class SourceHash {
 public:
  SourceHash() : state_(XXH3_createState(), XXH3_freeState) { XXH3_64bits_reset(state_.get()); }
  void Add(const std::string& name, std::span<const float> values) {
    XXH3_64bits_update(state_.get(), name.data(), name.size());
    XXH3_64bits_update(state_.get(), values.data(), values.size_bytes());
  }
  std::string Text() const {
    char text[17];
    std::snprintf(text, sizeof(text), "%016" PRIx64,
                  static_cast<uint64_t>(XXH3_64bits_digest(state_.get())));
    return text;
  }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

// The bytes of one tensor as they lie in the file.
Result<std::vector<uint8_t>> Pack(DType type, const std::vector<uint64_t>& shape,
                                  std::span<const float> values) {
  if (type == DType::kF32) return ArrayBytes(values);
  std::vector<uint8_t> packed(MatrixBytes(type, shape[0], shape[1]));
  ADDER_RETURN_IF_ERROR(PackMatrix(type, {shape[0], shape[1]}, values, {}, packed));
  return packed;
}

// The format in which a tensor of this role is stored.
DType StoredType(Role role, WeightType type) {
  if (role == Role::kArray) return DType::kF32;
  if (role == Role::kExact) return DType::kMatF32;
  switch (type) {
    case WeightType::kF32:
      return DType::kMatF32;
    case WeightType::kF16:
      return DType::kMatF16;
    case WeightType::kQ8:
      return DType::kMatQ8;
    case WeightType::kQ4:
      return role == Role::kBulk ? DType::kMatQ4 : DType::kMatQ8;
  }
  return DType::kF32;
}

}  // namespace

const char* WeightTypeName(WeightType type) {
  for (const auto& [value, name] : kWeightTypes) {
    if (value == type) return name;
  }
  return "unknown";
}

std::vector<uint8_t> ArrayBytes(std::span<const float> values) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
  return std::vector<uint8_t>(bytes, bytes + values.size_bytes());
}

Result<ModelWriter> WriteTensors(const ModelPlan& plan, const std::string& output,
                                 const ConvertOptions& options, const MakeTensor& make,
                                 ConvertReport* report) {
  std::vector<TensorSpec> specs;
  std::map<std::string, const PlannedTensor*> planned;
  uint64_t total = 0;
  for (const PlannedTensor& tensor : plan.tensors) {
    specs.push_back({tensor.name, StoredType(tensor.role, options.type), tensor.shape});
    planned[tensor.name] = &tensor;
    total += Elements(tensor.shape);
  }
  ADDER_ASSIGN_OR_RETURN(ModelWriter writer, ModelWriter::Create(output, std::move(specs)));
  for (const TensorSpec& spec : writer.tensors()) {
    if (options.progress && !options.progress({report->weights, total, spec.name})) {
      return Status(Code::kCancelled, "cancelled");
    }
    const auto bytes = make(*planned[spec.name], spec.dtype);
    if (!bytes.ok()) return Annotate(bytes.status(), spec.name);
    ADDER_RETURN_IF_ERROR(writer.Append(*bytes));
    report->weights += Elements(spec.shape);
  }
  if (options.progress) options.progress({report->weights, total, ""});
  return writer;
}

Result<ConvertReport> Convert(const std::string& source, const std::string& output,
                              const ConvertOptions& options) {
  ADDER_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(source));
  auto planned = PlanModel(checkpoint, options.family);
  if (!planned.ok()) return Annotate(planned.status(), source);
  ModelPlan& plan = *planned;

  std::vector<uint8_t> tokenizer_section;
  std::optional<Tokenizer> tokenizer;
  if (checkpoint.tokenizer_json()) {
    ADDER_ASSIGN_OR_RETURN(tokenizer_section, CompileTokenizer(*checkpoint.tokenizer_json()));
  } else {
    tokenizer_section = checkpoint.tokenizer_section();
  }
  if (!tokenizer_section.empty()) {
    ADDER_ASSIGN_OR_RETURN(tokenizer, Tokenizer::Parse(tokenizer_section));
    if (static_cast<uint32_t>(tokenizer->size()) > plan.config.vocab_rows) {
      plan.warnings.push_back("the tokenizer has " + std::to_string(tokenizer->size()) +
                              " ids, the model only " + std::to_string(plan.config.vocab_rows));
    }
  } else {
    plan.warnings.push_back(
        std::string(checkpoint.origin().empty() ? "no tokenizer.json" : "no tokenizer") +
        ": the model will take and give token ids only");
  }
  ADDER_RETURN_IF_ERROR(ResolveSpecialTokens(checkpoint, tokenizer ? &*tokenizer : nullptr,
                                             &plan.config, &plan.warnings));

  // Sizes that the runtime would refuse.
  if (const auto readable = ModelConfig::FromJson(plan.config.ToJson()); !readable.ok()) {
    return Annotate(Status(Code::kUnsupported, readable.status().message()), source);
  }

  ConvertReport report;
  SourceHash hash;
  TensorLoader loader(checkpoint);
  const auto load_and_pack = [&](const PlannedTensor& tensor,
                                 DType format) -> Result<std::vector<uint8_t>> {
    ADDER_ASSIGN_OR_RETURN(const FloatView view, tensor.load(loader));
    if (!std::all_of(view.values.begin(), view.values.end(),
                     [](float v) { return std::isfinite(v); })) {
      return Status(Code::kCorruptFile, "a value overflows float32");
    }
    hash.Add(tensor.name, view.values);
    return Pack(format, tensor.shape, view.values);
  };
  ADDER_ASSIGN_OR_RETURN(ModelWriter writer,
                         WriteTensors(plan, output, options, load_and_pack, &report));

  plan.config.type = WeightTypeName(options.type);
  plan.config.provenance = {{"converter", "adder " ADDER_VERSION}, {"source_hash", hash.Text()}};
  if (!checkpoint.origin().empty()) {
    plan.config.provenance.emplace_back("source", checkpoint.origin());
  }
  ADDER_ASSIGN_OR_RETURN(report.file_bytes, writer.Finish(tokenizer_section, plan.config.ToJson()));
  report.config = std::move(plan.config);
  report.warnings = std::move(plan.warnings);
  return report;
}

}  // namespace adder
