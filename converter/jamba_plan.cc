// Jamba: Mamba-1 or attention, each followed by an MLP or a mixture of experts.
// ARCHITECTURES.md section 7.
#include <cinttypes>

#include "converter/families.h"
#include "converter/layers.h"

namespace adder {
namespace {

// Layers i with i % period == offset.
struct Every {
  int64_t period, offset;
  bool Has(size_t i) const { return static_cast<int64_t>(i) % period == offset; }
};

Result<Every> ReadEvery(const Config& config, const char* period_key, int64_t period,
                        const char* offset_key, int64_t offset) {
  Every every = {};
  ADDER_ASSIGN_OR_RETURN(every.period, config.Int({period_key}, period));
  ADDER_ASSIGN_OR_RETURN(every.offset, config.Int({offset_key}, offset));
  if (every.period >= 1) return every;
  return Error(Code::kCorruptFile, "%s: %s is %" PRId64 ", expected 1 or more",
               config.name().c_str(), period_key, every.period);
}

}  // namespace

Result<ModelHead> PlanJamba(const Config& config, const CheckpointNames& names, PlanBuilder& b) {
  ADDER_RETURN_IF_ERROR(CheckActivation(config));
  ADDER_ASSIGN_OR_RETURN(const uint32_t d_model, ModelWidth(config, names, b));
  ADDER_ASSIGN_OR_RETURN(const size_t layers, CountLayers(config, names, b));
  ADDER_ASSIGN_OR_RETURN(const double eps, ReadEpsilon(config, "rms_norm_eps", 1e-6));
  ADDER_ASSIGN_OR_RETURN(const Every attention_layers,
                         ReadEvery(config, "attn_layer_period", 8, "attn_layer_offset", 4));
  ADDER_ASSIGN_OR_RETURN(const Every expert_layers,
                         ReadEvery(config, "expert_layer_period", 2, "expert_layer_offset", 1));
  ADDER_ASSIGN_OR_RETURN(const int64_t experts,
                         config.Int({"num_experts", "num_local_experts"}, 16));
  ADDER_ASSIGN_OR_RETURN(const int64_t top_k, config.Int({"num_experts_per_tok"}, 2));
  ADDER_ASSIGN_OR_RETURN(const AttentionSettings attention, ReadAttention(config, d_model));

  std::vector<LayerType> types(layers);
  for (size_t i = 0; i < layers; ++i) {
    types[i] = attention_layers.Has(i) ? LayerType::kAttention : LayerType::kSsm;
  }
  ADDER_ASSIGN_OR_RETURN(types,
                         ResolveLayerTypes(config, {"layers_block_type", "layer_types"}, types,
                                           config.Has({"attn_layer_period", "attn_layer_offset"})));
  for (size_t i = 0; i < layers; ++i) {
    const std::string from = names.root + "layers." + std::to_string(i) + ".";
    const std::string to = b.NextLayer();
    b.Array(to + "norm", from + "input_layernorm.weight", d_model);
    if (types[i] == LayerType::kAttention) {
      ADDER_ASSIGN_OR_RETURN(const AttentionConfig mixer,
                             PlanAttention(to, from + "self_attn.", attention, b));
      b.AddLayer(eps, mixer);
    } else if (types[i] == LayerType::kSsm) {
      ADDER_ASSIGN_OR_RETURN(const Mamba1Config mixer, PlanMamba1Mixer(to, from + "mamba.", d_model,
                                                                       eps, /*weighted=*/true, b));
      b.AddLayer(eps, mixer);
    } else {
      return WrongLayerType(config, "jamba", i);
    }

    const std::string ff = b.NextLayer(), feed_forward = from + "feed_forward.";
    b.Array(ff + "norm", from + "pre_ff_layernorm.weight", d_model);
    if (experts > 1 && expert_layers.Has(i)) {
      MoeConfig moe;
      moe.top_k = static_cast<uint32_t>(top_k);
      moe.routing = Routing::kSoftmaxAll;
      const auto n_experts = static_cast<size_t>(experts);
      PlanMoe(ff,
              {.router = feed_forward + "router.weight",
               .expert =
                   [&](size_t e) {
                     return ExpertTensors(feed_forward + "experts.", true, e, n_experts, b);
                   },
               .shared = {}},
              d_model, 1.0, &moe, b);
      b.AddLayer(eps, moe);
    } else {
      MlpConfig mlp;
      mlp.d_ff =
          static_cast<uint32_t>(PlanMlp(ff, ProjTensors(feed_forward, true), d_model, 1.0, 1.0, b));
      b.AddLayer(eps, mlp);
    }
    ADDER_RETURN_IF_ERROR(b.status());
  }
  return ReadHybridHead(config, "jamba", eps);
}

}  // namespace adder
