#include "runtime/model.h"

#include <algorithm>
#include <cstdlib>

#include "runtime/kernels_dispatch.h"
#include "runtime/tensor_binder.h"

namespace adder {
namespace {

Result<Kernels> ChooseKernels(const std::string& isa) {
  const char* forced = isa.empty() ? std::getenv("ADDER_ISA") : isa.c_str();
  if (forced != nullptr && *forced == '\0') forced = nullptr;
  return SelectKernels(DetectCpuFeatures(), forced);
}

Result<std::unique_ptr<Block>> MakeBlock(const LayerConfig& layer, uint32_t d_model,
                                         TensorBinder binder) {
  using Maker = decltype(&MakeMamba1Block);
  static constexpr Maker kMakers[] = {MakeMamba1Block,    MakeMamba2Block, MakeMamba3Block,
                                      MakeAttentionBlock, MakeMlpBlock,    MakeMoeBlock,
                                      MakeParallelBlock,  MakeZamba2Block};  // order of Mixer
  static_assert(std::size(kMakers) == std::variant_size_v<Mixer>);
  return kMakers[layer.mixer.index()](layer, d_model, std::move(binder));
}

}  // namespace

Result<std::unique_ptr<Model>> Model::Open(const std::string& path, const ModelOptions& options) {
  ADDER_ASSIGN_OR_RETURN(MappedFile mapping, MappedFile::Open(path));
  auto model = FromMemory(mapping.bytes(), options);
  if (!model.ok()) return Annotate(model.status(), path);
  (*model)->mapping_ = std::move(mapping);
  return model;
}

Result<std::unique_ptr<Model>> Model::FromMemory(std::span<const uint8_t> bytes,
                                                 const ModelOptions& options) {
  ADDER_ASSIGN_OR_RETURN(ModelFile file, ModelFile::Parse(bytes));
  if (options.verify_checksums) ADDER_RETURN_IF_ERROR(file.VerifyData());
  ADDER_ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::FromJson(file.metadata()));
  ADDER_ASSIGN_OR_RETURN(const Kernels kernels, ChooseKernels(options.isa));
  std::unique_ptr<Model> model(new Model(std::move(file), std::move(config), kernels));
  ADDER_RETURN_IF_ERROR(model->Bind());
  return model;
}

Status Model::Bind() {
  TensorBinder bind(file_, "");
  embedding_ = bind.Matrix("embedding", config_.vocab_rows, config_.d_model);
  head_ = config_.tied_head ? embedding_ : bind.Matrix("head", config_.vocab_rows, config_.d_model);
  final_norm_ = bind.Floats("final_norm", {config_.d_model});
  ADDER_RETURN_IF_ERROR(bind.status());
  for (size_t i = 0; i < config_.layers.size(); ++i) {
    TensorBinder binder(file_, "layers." + std::to_string(i) + ".");
    ADDER_ASSIGN_OR_RETURN(auto block,
                           MakeBlock(config_.layers[i], config_.d_model, std::move(binder)));
    blocks_.push_back(std::move(block));
  }
  if (!file_.tokenizer().empty()) {
    ADDER_ASSIGN_OR_RETURN(tokenizer_, Tokenizer::Parse(file_.tokenizer()));
  }
  return {};
}

size_t Model::StateFloats(StateType type) const {
  size_t floats = 0;
  for (const auto& block : blocks_) floats += block->StateFloats(type);
  return floats;
}

size_t Model::KvBytes(size_t context, KvChoice choice) const {
  size_t bytes = 0;
  for (const auto& block : blocks_) bytes += block->Kv(choice).Bytes(context);
  return bytes;
}

size_t Model::KvBytesPerToken(KvChoice choice) const {
  size_t bytes = 0;
  for (const auto& block : blocks_) bytes += block->Kv(choice).SlotBytes();
  return bytes;
}

bool Model::ReadsEmbedding() const {
  return std::any_of(blocks_.begin(), blocks_.end(),
                     [](const auto& block) { return block->ReadsEmbedding(); });
}

uint64_t Model::BytesPerToken() const {
  int64_t bytes = 0;
  for (const Tensor& tensor : file_.tensors()) {
    // Blocks that share tensors count them each.
    const bool skipped =
        tensor.name.starts_with("shared.") || (tensor.name == "embedding" && !config_.tied_head);
    if (!skipped) bytes += static_cast<int64_t>(tensor.data.size());
  }
  for (const auto& block : blocks_) bytes += block->ExtraBytes();
  return static_cast<uint64_t>(bytes);
}

}  // namespace adder
