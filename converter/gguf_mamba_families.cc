// GGUF architectures with mixers of Mamba only: mamba (Mamba-1 and Falcon-Mamba) and mamba2.
#include <cinttypes>
#include <cstdio>

#include "converter/gguf_family.h"

namespace adder {
namespace {

constexpr TensorRule kNorm[] = {{"attn_norm.weight", "norm.weight"}};
constexpr TensorGroup kMamba1Tensors[] = {{"", kNorm}, {"mixer.", kGgufMamba1Mixer}};
constexpr TensorGroup kMamba2Tensors[] = {{"", kNorm}, {"mixer.", kGgufMamba2Mixer}};

constexpr KeyRule kMamba1Keys[] = {
    {"embedding_length", "hidden_size"},     {"block_count", "num_hidden_layers"},
    {"ssm.inner_size", "intermediate_size"}, {"ssm.state_size", "state_size"},
    {"ssm.conv_kernel", "conv_kernel"},      {"ssm.time_step_rank", "time_step_rank"}};
constexpr KeyRule kMamba2Keys[] = {
    {"embedding_length", "hidden_size"},     {"block_count", "num_hidden_layers"},
    {"ssm.inner_size", "intermediate_size"}, {"ssm.state_size", "state_size"},
    {"ssm.conv_kernel", "conv_kernel"},      {"ssm.time_step_rank", "num_heads"},
    {"ssm.group_count", "n_groups"}};

void AddBiasFlags(const GgufSettings& settings, ConfigWriter* config) {
  config->Add("use_bias", settings.HasTensor("blk.0.ssm_in.bias"));
  config->Add("use_conv_bias", settings.HasTensor("blk.0.ssm_conv1d.bias"));
}

Status AddMamba1(const GgufSettings& settings, ConfigWriter* config, std::vector<std::string>*) {
  ADDER_RETURN_IF_ERROR(settings.Bool("ssm.dt_b_c_rms", false).status());
  AddBiasFlags(settings, config);
  return {};
}

bool IsFalconMamba(const GgufSettings& settings) {
  const Result<bool> flag = settings.Bool("ssm.dt_b_c_rms", false);
  return flag.ok() && *flag;
}

Status AddFalconMamba(const GgufSettings& settings, ConfigWriter* config,
                      std::vector<std::string>* warnings) {
  AddBiasFlags(settings, config);
  ADDER_ASSIGN_OR_RETURN(const double eps, settings.NormEps());
  config->Add("mixer_rms_eps", eps);
  char text[120];
  std::snprintf(text, sizeof(text), ": the epsilon of the dt, B and C norms is not in the file; %g",
                eps);
  warnings->push_back(settings.name() + text + " of the layer norms is taken");
  return {};
}

Status AddMamba2(const GgufSettings& settings, ConfigWriter* config, std::vector<std::string>*) {
  AddBiasFlags(settings, config);
  ADDER_ASSIGN_OR_RETURN(const int64_t head_dim, GgufMamba2HeadDim(settings));
  config->Add("head_dim", head_dim);
  return {};
}

constexpr GgufFamily kFamilies[] = {
    {"mamba", "falcon_mamba", "backbone.", "embeddings.weight", "norm_f.weight",
     "layer_norm_epsilon", kMamba1Keys, kMamba1Tensors, AddFalconMamba, IsFalconMamba},
    {"mamba", "mamba", "backbone.", "embeddings.weight", "norm_f.weight", "layer_norm_epsilon",
     kMamba1Keys, kMamba1Tensors, AddMamba1},
    {"mamba2", "mamba2", "backbone.", "embeddings.weight", "norm_f.weight", "layer_norm_epsilon",
     kMamba2Keys, kMamba2Tensors, AddMamba2}};

}  // namespace

std::span<const GgufFamily> GgufMambaFamilies() { return kFamilies; }

Result<int64_t> GgufMamba2HeadDim(const GgufSettings& settings) {
  ADDER_ASSIGN_OR_RETURN(const int64_t inner, settings.Int("ssm.inner_size", std::nullopt));
  ADDER_ASSIGN_OR_RETURN(const int64_t heads, settings.Int("ssm.time_step_rank", std::nullopt));
  if (heads >= 1 && inner >= 1 && inner % heads == 0) return inner / heads;
  return Error(Code::kCorruptFile,
               "%s: %s is %" PRId64 ", no multiple of the %" PRId64 " heads (%s)",
               settings.name().c_str(), settings.Key("ssm.inner_size").c_str(), inner, heads,
               settings.Key("ssm.time_step_rank").c_str());
}

}  // namespace adder
