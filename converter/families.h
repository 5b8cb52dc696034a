// Mapping functions: what the published checkpoints of each family call their tensors and settings
// (ARCHITECTURES.md), turned into a plan. One file per kind of mixer.
#pragma once

#include <string>

#include "converter/json.h"
#include "converter/plan.h"

namespace adder {

// Tensor names around the layers.
struct CheckpointNames {
  std::string root;       // "backbone." as a rule; layers are "<root>layers.<i>."
  std::string embedding;  // full names
  std::string final_norm;
  std::string head;
};

// What a mapping function learns beside the layers.
struct ModelHead {
  std::string family;
  int64_t vocab_size = 0;
  double norm_eps = 1e-5;
  bool tied = true;
  double embedding_multiplier = 1.0, logits_multiplier = 1.0;
};

// Fill plan.config.layers and add the tensors of all layers. `names` were found in the checkpoint.
Result<ModelHead> PlanHfMamba1(const Config& config, const CheckpointNames& names,
                               PlanBuilder& builder);
Result<ModelHead> PlanFalconMamba(const Config& config, const CheckpointNames& names,
                                  PlanBuilder& builder);
Result<ModelHead> PlanOriginalMamba1(const Config& config, const CheckpointNames& names,
                                     PlanBuilder& builder);
Result<ModelHead> PlanHfMamba2(const Config& config, const CheckpointNames& names,
                               PlanBuilder& builder);
Result<ModelHead> PlanOriginalMamba2(const Config& config, const CheckpointNames& names,
                                     PlanBuilder& builder);
Result<ModelHead> PlanOriginalMamba3(const Config& config, const CheckpointNames& names,
                                     PlanBuilder& builder);
Result<ModelHead> PlanCodestral(const Config& params, const CheckpointNames& names,
                                PlanBuilder& builder);
Result<ModelHead> PlanJamba(const Config& config, const CheckpointNames& names,
                            PlanBuilder& builder);
Result<ModelHead> PlanBamba(const Config& config, const CheckpointNames& names,
                            PlanBuilder& builder);
Result<ModelHead> PlanGranite(const Config& config, const CheckpointNames& names,
                              PlanBuilder& builder);
Result<ModelHead> PlanNemotronH(const Config& config, const CheckpointNames& names,
                                PlanBuilder& builder);
Result<ModelHead> PlanZamba2(const Config& config, const CheckpointNames& names,
                             PlanBuilder& builder);
Result<ModelHead> PlanFalconH1(const Config& config, const CheckpointNames& names,
                               PlanBuilder& builder);
Result<ModelHead> PlanMambaInLlama(const Config& config, const CheckpointNames& names,
                                   PlanBuilder& builder);

// Shared checks (family.cc).

// Width of the model from the embedding; an error if the configuration says otherwise.
Result<uint32_t> ModelWidth(const Config& config, const CheckpointNames& names,
                            PlanBuilder& builder);
// Layers present in the checkpoint, and the same with an error if the configuration says otherwise.
size_t LayersPresent(const CheckpointNames& names, const PlanBuilder& builder);
Result<size_t> CountLayers(const Config& config, const CheckpointNames& names,
                           PlanBuilder& builder);
// The epsilon of a norm under `key`; an error unless it is in (0, 1].
Result<double> ReadEpsilon(const Config& config, const char* key, double fallback);
// A multiplier, 1 if absent; an error unless it is finite.
Result<double> ReadMultiplier(const Config& config, const char* key);
// vocab_size, tie_word_embeddings (false if absent) and the epsilon of a hybrid.
Result<ModelHead> ReadHybridHead(const Config& config, const char* family, double norm_eps);
// Only SiLU is published for the mixers of these families.
Status CheckActivation(const Config& config);
// Options of the original package beside those of the mixer.
struct OriginalOptions {
  bool mlp = false;                       // a gated MLP behind every mixer
  std::vector<int64_t> attention_layers;  // with attention in place of the mixer
  Config attention;                       // attn_cfg
  bool Attends(size_t layer) const;
};
// An error for those that are not supported.
Result<OriginalOptions> ReadOriginalOptions(const Config& config);
// Attention of the original package, whose tensors lie under `mixer`.
Status PlanOriginalAttention(const std::string& mixer, const OriginalOptions& options,
                             size_t d_model, double norm_eps, PlanBuilder& builder);
// The MLP of the original package's layer `from`, as a layer of its own.
void PlanOriginalMlp(const std::string& from, size_t d_model, double norm_eps,
                     PlanBuilder& builder);
// A warning when tensors and configuration disagree about a bias; the tensors are right.
void CheckBiasFlag(const Config& config, std::string_view key, bool fallback, bool present,
                   PlanBuilder& builder);

}  // namespace adder
