// MLPs and mixtures of experts. ARCHITECTURES.md sections 1, 7, 9 and 10.
#include "converter/layers.h"
#include "converter/text.h"

namespace adder {

MlpTensors ProjTensors(const std::string& from, bool gated) {
  return {gated ? Source(from + "gate_proj.weight") : Source(), from + "up_proj.weight",
          from + "down_proj.weight"};
}

size_t PlanMlp(const std::string& to, const MlpTensors& from, size_t width, double gate_scale,
               double down_scale, PlanBuilder& b) {
  const size_t d_ff = b.Cols(from.down);
  const bool merged = from.gate == from.up;
  const size_t rows = merged ? 2 * d_ff : d_ff;
  const Channels all = Channels::Range(0, width);
  if (!from.gate.name.empty()) {
    b.Matrix(to + "gate", Role::kBulk, from.gate, rows, width,
             std::vector<Part>{{Channels::Range(0, d_ff), gate_scale, gate_scale}}, all);
  }
  b.Matrix(to + "up", Role::kBulk, from.up, rows, width, Channels::Range(merged ? d_ff : 0, d_ff),
           all);
  b.Matrix(to + "down", Role::kBulk, from.down, width, d_ff,
           std::vector<Part>{{all, down_scale, down_scale}}, Channels::Range(0, d_ff));
  return d_ff;
}

MlpTensors ExpertTensors(const std::string& from, bool gated, size_t index, size_t count,
                         const PlanBuilder& b) {
  if (!b.Has(from + "down_proj")) return ProjTensors(from + std::to_string(index) + ".", gated);
  const Source down(from + "down_proj", index, count);
  if (!gated) return {Source(), Source(from + "up_proj", index, count), down};
  const Source gate_up(from + "gate_up_proj", index, count);
  return {gate_up, gate_up, down};
}

void PlanMoe(const std::string& to, const MoeTensors& from, size_t d_model, double down_scale,
             MoeConfig* moe, PlanBuilder& b) {
  const size_t n_experts = b.Rows(from.router);
  moe->n_experts = static_cast<uint32_t>(n_experts);
  b.Matrix(to + "router", Role::kExact, from.router, n_experts, d_model);
  const size_t width = moe->d_latent > 0 ? moe->d_latent : d_model;
  for (size_t e = 0; e < n_experts && b.status().ok(); ++e) {
    const size_t d_ff = PlanMlp(to + "experts." + std::to_string(e) + ".", from.expert(e), width,
                                1.0, moe->d_latent > 0 ? 1.0 : down_scale, b);
    if (e == 0) moe->expert.d_ff = static_cast<uint32_t>(d_ff);
    if (d_ff != moe->expert.d_ff && b.status().ok()) {
      b.Fail(Error(Code::kCorruptFile, "tensor %s has %zu columns, that of expert 0 has %u",
                   from.expert(e).down.name.c_str(), d_ff, moe->expert.d_ff));
    }
  }
  if (from.shared.down.name.empty()) return;
  moe->d_shared =
      static_cast<uint32_t>(PlanMlp(to + "shared.", from.shared, d_model, 1.0, down_scale, b));
}

Result<Activation> ReadActivation(const Config& config, const char* key, const char* fallback) {
  ADDER_ASSIGN_OR_RETURN(const std::string name, config.String({key}, fallback));
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "relu2") return Activation::kRelu2;
  if (name == "gelu") return Activation::kGelu;
  return Error(Code::kUnsupported, "%s: %s is \"%s\"; silu, relu2 and gelu are supported",
               config.name().c_str(), key, Shown(name).c_str());
}

}  // namespace adder
