#include "converter/synth.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>

#include "converter/model_writer.h"
#include "converter/synth_hybrids.h"
#include "quant/pack.h"

namespace adder {
namespace {

// The published models: state-spaces/mamba-*, state-spaces/mamba2-*, tiiuae/falcon-mamba-7b,
// mistralai/Mamba-Codestral-7B-v0.1, state-spaces/mamba3-* (the MLP of the SISO one is as wide as
// its number of parameters says).
struct Shape {
  const char* name;
  const char* model_type;
  uint64_t d_model, layers, vocab;
  uint64_t groups;  // Mamba-2 and 3
  bool tied;
  uint64_t d_ff = 0, mimo_rank = 0;  // Mamba-3
};
constexpr Shape kShapes[] = {
    {"mamba-130m", "mamba", 768, 24, 50280, 0, true},
    {"mamba-370m", "mamba", 1024, 48, 50280, 0, true},
    {"mamba-790m", "mamba", 1536, 48, 50280, 0, true},
    {"mamba-1.4b", "mamba", 2048, 48, 50280, 0, true},
    {"mamba-2.8b", "mamba", 2560, 64, 50280, 0, true},
    {"falcon-mamba-7b", "falcon_mamba", 4096, 64, 65024, 0, false},
    {"mamba2-130m", "mamba2", 768, 24, 50288, 1, true},
    {"mamba2-370m", "mamba2", 1024, 48, 50288, 1, true},
    {"mamba2-780m", "mamba2", 1536, 48, 50288, 1, true},
    {"mamba2-1.3b", "mamba2", 2048, 48, 50288, 1, true},
    {"mamba2-2.7b", "mamba2", 2560, 64, 50288, 1, true},
    {"codestral-7b", "mamba2", 4096, 64, 32768, 8, false},
    {"mamba3-siso-1.5b", "mamba3", 2048, 24, 128256, 1, true, 4096},
    {"mamba3-mimo-1.5b", "mamba3", 2048, 24, 128256, 1, true, 3824, 4},
};

// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  float Uniform(float lo, float hi) {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t z = (state_ ^ (state_ >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return lo + (hi - lo) * (static_cast<float>(z >> 40) * 0x1p-24f);
  }

 private:
  uint64_t state_;
};

// A checkpoint of the shape, of which only small arrays have values: those of matrices are made
// when they are written.
class SynthCheckpoint {
 public:
  explicit SynthCheckpoint(const Shape& shape) : shape_(shape) {
    const std::string_view type = shape.model_type;
    Matrix("backbone.embeddings.weight", shape.vocab, shape.d_model);
    if (!shape.tied) Matrix("lm_head.weight", shape.vocab, shape.d_model);
    Constant("backbone.norm_f.weight", shape.d_model, 1.0f);
    for (uint64_t i = 0; i < shape.layers; ++i) {
      const std::string layer = "backbone.layers." + std::to_string(i) + ".";
      Constant(layer + "norm.weight", shape.d_model, 1.0f);
      if (type == "mamba3") {
        Mamba3Mixer(layer + "mixer.");
        Mlp(layer);
      } else if (type == "mamba2") {
        Mamba2Mixer(layer + "mixer.");
      } else {
        Mamba1Mixer(layer + "mixer.");
      }
    }
  }

  Result<Checkpoint> Make() const {
    const std::string tied = shape_.tied ? "true" : "false";
    const std::string json = std::string_view(shape_.model_type) == "mamba3"
                                 ? "{\"d_model\": " + std::to_string(shape_.d_model) +
                                       ", \"n_layer\": " + std::to_string(shape_.layers) +
                                       ", \"vocab_size\": " + std::to_string(shape_.vocab) +
                                       ", \"d_intermediate\": " + std::to_string(shape_.d_ff) +
                                       ", \"tie_embeddings\": " + tied +
                                       ", \"ssm_cfg\": {\"layer\": \"Mamba3\", \"is_mimo\": " +
                                       (shape_.mimo_rank > 0 ? "true" : "false") + "}}"
                                 : "{\"model_type\": \"" + std::string(shape_.model_type) +
                                       "\", \"vocab_size\": " + std::to_string(shape_.vocab) +
                                       ", \"n_groups\": " + std::to_string(shape_.groups) +
                                       ", \"tie_word_embeddings\": " + tied + "}";
    ADDER_ASSIGN_OR_RETURN(Json config, Json::Parse(json, shape_.name));
    return Checkpoint::FromParts(Config(std::move(config), shape_.name), tensors_);
  }

 private:
  void Mamba1Mixer(const std::string& mixer) {
    constexpr uint64_t kState = 16;
    const uint64_t d_inner = 2 * shape_.d_model, dt_rank = (shape_.d_model + 15) / 16;
    Matrix(mixer + "in_proj.weight", 2 * d_inner, shape_.d_model);
    Convolution(mixer, d_inner);
    Matrix(mixer + "x_proj.weight", dt_rank + 2 * kState, d_inner);
    Matrix(mixer + "dt_proj.weight", d_inner, dt_rank);
    StepBias(mixer + "dt_proj.bias", d_inner);
    std::vector<float> a_log(d_inner * kState);
    for (size_t i = 0; i < a_log.size(); ++i) {
      a_log[i] = std::log(static_cast<float>(i % kState + 1));
    }
    Array(mixer + "A_log", {d_inner, kState}, std::move(a_log));
    Constant(mixer + "D", d_inner, 1.0f);
    Matrix(mixer + "out_proj.weight", shape_.d_model, d_inner);
  }

  void Mamba2Mixer(const std::string& mixer) {
    constexpr uint64_t kState = 128, kHeadDim = 64;
    const uint64_t d_inner = 2 * shape_.d_model, heads = d_inner / kHeadDim;
    const uint64_t bc = 2 * shape_.groups * kState;
    Matrix(mixer + "in_proj.weight", 2 * d_inner + bc + heads, shape_.d_model);
    Convolution(mixer, d_inner + bc);
    StepBias(mixer + "dt_bias", heads);
    std::vector<float> a_log(heads);
    for (float& value : a_log) value = std::log(random_.Uniform(1.0f, 16.0f));
    Array(mixer + "A_log", {heads}, std::move(a_log));
    Constant(mixer + "D", heads, 1.0f);
    Constant(mixer + "norm.weight", d_inner, 1.0f);
    Matrix(mixer + "out_proj.weight", shape_.d_model, d_inner);
  }

  void Mamba3Mixer(const std::string& mixer) {
    constexpr uint64_t kState = 128, kHeadDim = 64, kAngles = 32;
    const uint64_t d_inner = 2 * shape_.d_model, heads = d_inner / kHeadDim;
    const uint64_t rank = std::max<uint64_t>(shape_.mimo_rank, 1);
    const uint64_t bc = rank * shape_.groups * kState;
    Matrix(mixer + "in_proj.weight", 2 * d_inner + 2 * bc + 3 * heads + kAngles, shape_.d_model);
    StepBias(mixer + "dt_bias", heads);
    Constant(mixer + "D", heads, 1.0f);
    for (const char* name : {"B", "C"}) {
      Constant(mixer + name + "_norm.weight", kState, 1.0f);
      Array(mixer + name + "_bias", {heads, rank, kState},
            std::vector<float>(heads * rank * kState, 1.0f));
    }
    if (shape_.mimo_rank > 0) {
      const float share = 1.0f / static_cast<float>(rank);
      for (const auto& [name, value] :
           {std::pair("mimo_x", share), {"mimo_z", 1.0f}, {"mimo_o", share}}) {
        Array(mixer + name, {heads, rank, kHeadDim}, std::vector<float>(rank * d_inner, value));
      }
    }
    Matrix(mixer + "out_proj.weight", shape_.d_model, d_inner);
  }

  void Mlp(const std::string& layer) {
    Constant(layer + "norm2.weight", shape_.d_model, 1.0f);
    Matrix(layer + "mlp.fc1.weight", 2 * shape_.d_ff, shape_.d_model);
    Matrix(layer + "mlp.fc2.weight", shape_.d_model, shape_.d_ff);
  }

  void Convolution(const std::string& mixer, uint64_t channels) {
    constexpr uint64_t kTaps = 4;
    std::vector<float> weight(channels * kTaps);
    for (float& value : weight) value = random_.Uniform(-0.5f, 0.5f);
    Array(mixer + "conv1d.weight", {channels, 1, kTaps}, std::move(weight));
    Constant(mixer + "conv1d.bias", channels, 0.0f);
  }

  // Inverse softplus of steps between 0.001 and 0.1, as models are initialized.
  void StepBias(const std::string& name, uint64_t n) {
    std::vector<float> bias(n);
    for (float& value : bias) {
      const float dt = std::exp(random_.Uniform(std::log(1e-3f), std::log(1e-1f)));
      value = std::log(std::expm1(dt));
    }
    Array(name, {n}, std::move(bias));
  }

  void Constant(const std::string& name, uint64_t n, float value) {
    Array(name, {n}, std::vector<float>(n, value));
  }

  void Array(const std::string& name, std::vector<uint64_t> shape, std::vector<float> values) {
    values_.push_back(std::move(values));
    SourceTensor& tensor = tensors_[name];
    tensor.shape = std::move(shape);
    tensor.data = reinterpret_cast<const uint8_t*>(values_.back().data());
    tensor.file = shape_.name;
  }

  void Matrix(const std::string& name, uint64_t rows, uint64_t cols) {
    SourceTensor& tensor = tensors_[name];
    tensor.shape = {rows, cols};
    tensor.file = shape_.name;
  }

  const Shape& shape_;
  Random random_{1};
  std::deque<std::vector<float>> values_;
  TensorMap tensors_;
};

// A packed matrix of random weights with standard deviation 1 / sqrt(cols).
Result<std::vector<uint8_t>> RandomMatrix(DType type, size_t rows, size_t cols, uint64_t seed) {
  constexpr size_t kPeriod = 4;  // row blocks that are different
  Random random(seed);
  const float limit = std::sqrt(3.0f / static_cast<float>(cols));
  std::vector<float> values(kLanes * cols);
  std::vector<uint8_t> packed(MatrixBytes(type, rows, cols));
  uint8_t* weights = packed.data();
  uint8_t* scales = weights + MatrixWeightBytes(type, rows, cols);
  const uint64_t weight_bytes = BlockWeightBytes(type, cols);
  const uint64_t scale_bytes = BlockScaleBytes(type, cols);
  for (size_t block = 0; block < RowBlocks(rows); ++block) {
    uint8_t* w = weights + block * weight_bytes;
    uint8_t* s = scales + block * scale_bytes;
    const bool whole = (block + 1) * kLanes <= rows;
    if (block >= kPeriod && whole) {
      std::memcpy(w, w - kPeriod * weight_bytes, weight_bytes);
      std::memcpy(s, s - kPeriod * scale_bytes, scale_bytes);
      continue;
    }
    for (float& value : values) value = random.Uniform(-limit, limit);
    ADDER_RETURN_IF_ERROR(PackRowBlock(type, {rows, cols}, block, values.data(), nullptr, w, s));
  }
  return packed;
}

}  // namespace

std::vector<std::string> SynthNames() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.push_back(shape.name);
  for (std::string& name : HybridNames()) names.push_back(std::move(name));
  return names;
}

Result<ConvertReport> Synthesize(const std::string& name, const std::string& output,
                                 const ConvertOptions& options) {
  const Shape* shape = std::find_if(std::begin(kShapes), std::end(kShapes),
                                    [&](const Shape& s) { return name == s.name; });
  std::optional<ModelPlan> hybrid = PlanHybrid(name);
  if (shape == std::end(kShapes) && !hybrid) {
    std::string known;
    for (const std::string& s : SynthNames()) known += (known.empty() ? "" : ", ") + s;
    return Error(Code::kInvalidArgument, "there is no model \"%s\"; known are %s", name.c_str(),
                 known.c_str());
  }
  const SynthCheckpoint synth(hybrid ? kShapes[0] : *shape);
  ADDER_ASSIGN_OR_RETURN(const Checkpoint checkpoint, synth.Make());
  ModelPlan plan;
  if (hybrid) {
    plan = std::move(*hybrid);
  } else {
    ADDER_ASSIGN_OR_RETURN(plan, PlanModel(checkpoint, ""));
  }
  ConvertReport report;
  TensorLoader loader(checkpoint);
  uint64_t seed = 0;
  const auto make = [&](const PlannedTensor& tensor, DType format) -> Result<std::vector<uint8_t>> {
    if (IsMatrix(format)) return RandomMatrix(format, tensor.shape[0], tensor.shape[1], ++seed);
    ADDER_ASSIGN_OR_RETURN(const FloatView view, tensor.load(loader));
    return ArrayBytes(view.values);
  };
  ADDER_ASSIGN_OR_RETURN(ModelWriter writer, WriteTensors(plan, output, options, make, &report));
  plan.config.bos = 0;
  plan.config.eos = {};
  plan.config.type = WeightTypeName(options.type);
  plan.config.provenance = {{"converter", "adder " ADDER_VERSION}, {"synth", name}};
  ADDER_ASSIGN_OR_RETURN(report.file_bytes, writer.Finish({}, plan.config.ToJson()));
  report.config = std::move(plan.config);
  return report;
}

}  // namespace adder
