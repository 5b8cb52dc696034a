// What the layers of the original package (mamba_ssm) share, whatever their mixer.
// ARCHITECTURES.md sections 3.2 and 6.3.
#include <cinttypes>

#include "converter/families.h"

namespace adder {

Result<OriginalOptions> ReadOriginalOptions(const Config& config) {
  ADDER_ASSIGN_OR_RETURN(const bool rms_norm, config.Bool({"rms_norm"}, true));
  if (!rms_norm) {
    return Error(Code::kUnsupported, "%s: rms_norm is false; LayerNorm models are not supported",
                 config.name().c_str());
  }
  ADDER_ASSIGN_OR_RETURN(const std::vector<int64_t> attention, config.IntList({"attn_layer_idx"}));
  if (!attention.empty()) {
    return Error(Code::kUnsupported,
                 "%s: attn_layer_idx names %zu attention layers; they are not supported",
                 config.name().c_str(), attention.size());
  }
  ADDER_ASSIGN_OR_RETURN(const int64_t d_intermediate, config.Int({"d_intermediate"}, 0));
  if (d_intermediate < 0) {
    return Error(Code::kCorruptFile, "%s: d_intermediate is %" PRId64 ", expected 0 or more",
                 config.name().c_str(), d_intermediate);
  }
  return OriginalOptions{.mlp = d_intermediate > 0};
}

void PlanOriginalMlp(const std::string& from, size_t d_model, double norm_eps, PlanBuilder& b) {
  // d_intermediate was rounded up when the model was made: the tensor knows.
  const size_t d_ff = b.Dim(from + "mlp.fc2.weight", 2, 1);
  if (!b.status().ok()) return;
  const std::string to = b.NextLayer();
  const Channels all_of_model = Channels::Range(0, d_model);
  const Channels all_of_ff = Channels::Range(0, d_ff);
  const auto fc1 = [&](const char* name, Channels rows) {
    b.Matrix(to + name, Role::kBulk, from + "mlp.fc1.weight", 2 * d_ff, d_model, rows,
             all_of_model);
  };
  b.Array(to + "norm", from + "norm2.weight", d_model, all_of_model);
  fc1("up", all_of_ff);
  fc1("gate", Channels::Range(d_ff, d_ff));  // the second half, unlike Hugging Face's layouts
  b.Matrix(to + "down", Role::kBulk, from + "mlp.fc2.weight", d_model, d_ff, all_of_model,
           all_of_ff);
  const MlpConfig mlp = {
      .d_ff = static_cast<uint32_t>(d_ff), .activation = Activation::kSilu, .gated = true};
  b.plan().config.layers.push_back({static_cast<float>(norm_eps), mlp});
}

}  // namespace adder
