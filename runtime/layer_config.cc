// The kinds of layers in the metadata section: every key of theirs, for reading and writing.
#include <utility>

#include "quant/qtypes.h"
#include "runtime/kernels.h"
#include "runtime/metadata_json.h"

namespace adder {
namespace {

constexpr const char* kKinds[] = {"mamba1", "mamba2", "mamba3",   "attention",
                                  "mlp",    "moe",    "parallel", "zamba2"};  // order of Mixer
static_assert(std::size(kKinds) == std::variant_size_v<Mixer>);

constexpr uint32_t kMaxHeads = 1u << 16, kMaxHeadDim = 1u << 12, kMaxState = 1u << 16;

constexpr std::pair<Gating, const char*> kGatings[] = {{Gating::kGateThenNorm, "gate_then_norm"},
                                                       {Gating::kNormThenGate, "norm_then_gate"},
                                                       {Gating::kGateOnly, "gate_only"}};
constexpr std::pair<Activation, const char*> kActivations[] = {
    {Activation::kSilu, "silu"}, {Activation::kRelu2, "relu2"}, {Activation::kGelu, "gelu"}};
constexpr std::pair<Routing, const char*> kRoutings[] = {{Routing::kSoftmaxAll, "softmax_all"},
                                                         {Routing::kSoftmaxTop, "softmax_top"},
                                                         {Routing::kSigmoid, "sigmoid"}};

void RequireMultiple(MetadataReader& in, const char* key, uint32_t value, const char* of,
                     uint32_t divisor) {
  if (in.status().ok() && value % divisor != 0) {
    in.Fail(key, "is " + std::to_string(value) + ", no multiple of " + of + " " +
                     std::to_string(divisor));
  }
}

void RequireSmall(MetadataReader& in, const char* key, uint64_t product, const char* of) {
  if (in.status().ok() && product > kMaxDim) {
    in.Fail(key, std::string("times ") + of + " is " + std::to_string(product) + ", over " +
                     std::to_string(kMaxDim));
  }
}

void Read(MetadataReader& in, Mamba1Config* c) {
  in.Uint("d_inner", 1, kMaxDim, &c->d_inner);
  in.Uint("d_state", 1, kMaxState, &c->d_state);
  in.Uint("d_conv", 1, kMaxConv, &c->d_conv);
  in.Uint("dt_rank", 1, kMaxDim, &c->dt_rank);
  in.Float("bcdt_norm_eps", 0, &c->bcdt_norm_eps, /*required=*/false);
  in.Bool("bcdt_norm_weights", &c->bcdt_norm_weights, /*required=*/false);
}

void Write(const Mamba1Config& c, MetadataWriter& out) {
  out.Uint("d_inner", c.d_inner);
  out.Uint("d_state", c.d_state);
  out.Uint("d_conv", c.d_conv);
  out.Uint("dt_rank", c.dt_rank);
  if (c.bcdt_norm_eps > 0) out.Float("bcdt_norm_eps", c.bcdt_norm_eps);
  if (c.bcdt_norm_weights) out.Bool("bcdt_norm_weights", true);
}

void Read(MetadataReader& in, Mamba2Config* c) {
  in.Uint("n_heads", 1, kMaxHeads, &c->n_heads);
  in.Uint("head_dim", 1, kMaxHeadDim, &c->head_dim);
  in.Uint("n_groups", 1, kMaxHeads, &c->n_groups);
  in.Uint("d_state", 1, kMaxState, &c->d_state);
  in.Uint("d_conv", 1, kMaxConv, &c->d_conv);
  in.Float("dt_min", 0, &c->dt_min, /*required=*/false);
  in.Float("dt_max", 0, &c->dt_max, /*required=*/false);
  if (!(c->dt_min <= c->dt_max)) in.Fail("dt_min", "is more than dt_max");
  in.Name("gating", kGatings, &c->gating);
  in.Uint("norm_groups", 1, kMaxHeads, &c->norm_groups);
  in.Float("gated_norm_eps", 0, &c->gated_norm_eps);
  if (in.Find("d_mlp", false) != nullptr) in.Uint("d_mlp", 1, kMaxDim, &c->d_mlp);
  RequireMultiple(in, "n_heads", c->n_heads, "n_groups", c->n_groups);
  RequireMultiple(in, "n_heads", c->n_heads, "norm_groups", c->norm_groups);
  if (in.status().ok() && uint64_t{c->n_groups} * c->d_state > (1u << 20)) {
    in.Fail("n_groups", "times d_state is over 2^20");
  }
}

void Write(const Mamba2Config& c, MetadataWriter& out) {
  out.Uint("n_heads", c.n_heads);
  out.Uint("head_dim", c.head_dim);
  out.Uint("n_groups", c.n_groups);
  out.Uint("d_state", c.d_state);
  out.Uint("d_conv", c.d_conv);
  if (c.dt_min > 0) out.Float("dt_min", c.dt_min);
  if (std::isfinite(c.dt_max)) out.Float("dt_max", c.dt_max);
  out.Name("gating", kGatings, c.gating);
  out.Uint("norm_groups", c.norm_groups);
  out.Float("gated_norm_eps", c.gated_norm_eps);
  if (c.d_mlp > 0) out.Uint("d_mlp", c.d_mlp);
}

void Read(MetadataReader& in, Mamba3Config* c) {
  in.Uint("n_heads", 1, kMaxHeads, &c->n_heads);
  in.Uint("head_dim", 1, kMaxHeadDim, &c->head_dim);
  in.Uint("n_groups", 1, kMaxHeads, &c->n_groups);
  in.Uint("d_state", 1, kMaxState, &c->d_state);
  in.Uint("rank", 1, kMaxMimoRank, &c->rank);
  in.Bool("mimo", &c->mimo);
  in.Uint("n_angles", 0, c->d_state / 2, &c->n_angles);
  in.Float("a_floor", 0, &c->a_floor);
  in.Bool("out_norm", &c->out_norm);
  RequireMultiple(in, "n_heads", c->n_heads, "n_groups", c->n_groups);
  if (in.status().ok() && !c->mimo && c->rank != 1) in.Fail("rank", "is more than 1 without mimo");
  RequireSmall(in, "n_heads", uint64_t{c->n_heads} * c->rank * c->d_state, "rank and d_state");
}

void Write(const Mamba3Config& c, MetadataWriter& out) {
  out.Uint("n_heads", c.n_heads);
  out.Uint("head_dim", c.head_dim);
  out.Uint("n_groups", c.n_groups);
  out.Uint("d_state", c.d_state);
  out.Uint("rank", c.rank);
  out.Bool("mimo", c.mimo);
  out.Uint("n_angles", c.n_angles);
  out.Float("a_floor", c.a_floor);
  out.Bool("out_norm", c.out_norm);
}

void Read(MetadataReader& in, AttentionConfig* c) {
  in.Uint("n_heads", 1, kMaxHeads, &c->n_heads);
  in.Uint("n_kv_heads", 1, kMaxHeads, &c->n_kv_heads);
  in.Uint("head_dim", 1, kMaxHeadDim, &c->head_dim);
  in.Uint("rotary_dim", 0, c->head_dim, &c->rotary_dim);
  in.Float("scale", 0, &c->scale);
  if (in.Find("d_conv", false) != nullptr) in.Uint("d_conv", 1, kMaxConv, &c->d_conv);
  if (in.Find("d_mlp", false) != nullptr) in.Uint("d_mlp", 1, kMaxDim, &c->d_mlp);
  RequireMultiple(in, "n_heads", c->n_heads, "n_kv_heads", c->n_kv_heads);
  RequireMultiple(in, "rotary_dim", c->rotary_dim, "", 2);
  RequireSmall(in, "n_heads", uint64_t{c->n_heads} * c->head_dim, "head_dim");
}

void Write(const AttentionConfig& c, MetadataWriter& out) {
  out.Uint("n_heads", c.n_heads);
  out.Uint("n_kv_heads", c.n_kv_heads);
  out.Uint("head_dim", c.head_dim);
  out.Uint("rotary_dim", c.rotary_dim);
  out.Float("scale", c.scale);
  if (c.d_conv > 0) out.Uint("d_conv", c.d_conv);
  if (c.d_mlp > 0) out.Uint("d_mlp", c.d_mlp);
}

void Read(MetadataReader& in, MlpConfig* c) {
  in.Uint("d_ff", 1, kMaxDim, &c->d_ff);
  in.Name("activation", kActivations, &c->activation);
  in.Bool("gated", &c->gated);
}

void Write(const MlpConfig& c, MetadataWriter& out) {
  out.Uint("d_ff", c.d_ff);
  out.Name("activation", kActivations, c.activation);
  out.Bool("gated", c.gated);
}

void Read(MetadataReader& in, MoeConfig* c) {
  in.Uint("n_experts", 1, 1u << 14, &c->n_experts);
  in.Uint("top_k", 1, c->n_experts, &c->top_k);
  Read(in, &c->expert);
  in.Uint("d_shared", 0, kMaxDim, &c->d_shared);
  in.Uint("d_latent", 0, kMaxDim, &c->d_latent);
  in.Name("routing", kRoutings, &c->routing);
  in.Uint("n_groups", 1, c->n_experts, &c->n_groups);
  in.Uint("top_groups", 1, c->n_groups, &c->top_groups);
  in.Bool("normalize", &c->normalize);
  in.Float("scale", 0, &c->scale);
  RequireMultiple(in, "n_experts", c->n_experts, "n_groups", c->n_groups);
  if (in.status().ok() && c->top_k > c->n_experts / c->n_groups * c->top_groups) {
    in.Fail("top_k", "is " + std::to_string(c->top_k) + ", more than the experts of top_groups " +
                         std::to_string(c->top_groups));
  }
}

void Write(const MoeConfig& c, MetadataWriter& out) {
  out.Uint("n_experts", c.n_experts);
  out.Uint("top_k", c.top_k);
  Write(c.expert, out);
  out.Uint("d_shared", c.d_shared);
  out.Uint("d_latent", c.d_latent);
  out.Name("routing", kRoutings, c.routing);
  out.Uint("n_groups", c.n_groups);
  out.Uint("top_groups", c.top_groups);
  out.Bool("normalize", c.normalize);
  out.Float("scale", c.scale);
}

// A mixer that lies in an object of its own within a layer.
template <typename Config>
void ReadNested(MetadataReader& in, const char* key, Config* c) {
  const JsonValue* value = in.Find(key);
  if (value == nullptr) return;
  if (!value->IsObject()) return in.Fail(key, "is no object");
  MetadataReader nested(*value, in.where() + key + ".");
  Read(nested, c);
  in.Take(nested.status());
}

template <typename Config>
void WriteNested(const char* key, const Config& c, MetadataWriter& out) {
  out.out().Key(key);
  out.out().StartObject();
  Write(c, out);
  out.out().EndObject();
}

void Read(MetadataReader& in, ParallelConfig* c) {
  ReadNested(in, "mamba2", &c->mamba2);
  ReadNested(in, "attention", &c->attention);
}

void Write(const ParallelConfig& c, MetadataWriter& out) {
  WriteNested("mamba2", c.mamba2, out);
  WriteNested("attention", c.attention, out);
}

void Read(MetadataReader& in, Zamba2Config* c) {
  ReadNested(in, "mamba2", &c->mamba2);
  ReadNested(in, "attention", &c->attention);
  in.Uint("shared", 0, 1023, &c->shared);
  in.Uint("d_ff", 1, kMaxDim, &c->d_ff);
  in.Uint("adapter_rank", 0, kMaxDim, &c->adapter_rank);
  in.Uint("attention_adapter_rank", 0, kMaxDim, &c->attention_adapter_rank);
}

void Write(const Zamba2Config& c, MetadataWriter& out) {
  WriteNested("mamba2", c.mamba2, out);
  WriteNested("attention", c.attention, out);
  out.Uint("shared", c.shared);
  out.Uint("d_ff", c.d_ff);
  out.Uint("adapter_rank", c.adapter_rank);
  out.Uint("attention_adapter_rank", c.attention_adapter_rank);
}

// Reads alternative `kind` of Mixer.
template <size_t kIndex = 0>
void ReadKind(MetadataReader& in, size_t kind, Mixer* mixer) {
  if constexpr (kIndex < std::variant_size_v<Mixer>) {
    if (kind != kIndex) return ReadKind<kIndex + 1>(in, kind, mixer);
    Read(in, &mixer->emplace<kIndex>());
  }
}

}  // namespace

const char* BlockKindName(const LayerConfig& layer) { return kKinds[layer.mixer.index()]; }

Result<LayerConfig> ReadLayer(const JsonValue& value, size_t index) {
  const std::string where = "layers[" + std::to_string(index) + "].";
  if (!value.IsObject())
    return Error(Code::kCorruptFile, "model metadata: %s is no object", where.c_str());
  MetadataReader in(value, where);
  LayerConfig layer;
  std::string name;
  in.String("block", &name);
  in.Float("norm_eps", 0, &layer.norm_eps);
  if (!in.status().ok()) return in.status();
  size_t kind = 0;
  std::string known;
  while (kind < std::size(kKinds) && name != kKinds[kind]) {
    known += std::string(known.empty() ? "" : ", ") + kKinds[kind++];
  }
  if (kind == std::size(kKinds)) {
    return Error(Code::kUnsupported, "model metadata: %sblock is \"%s\", this build runs %s",
                 where.c_str(), name.c_str(), known.c_str());
  }
  ReadKind(in, kind, &layer.mixer);
  if (!in.status().ok()) return in.status();
  return layer;
}

void WriteLayer(const LayerConfig& layer, MetadataWriter& out) {
  out.out().StartObject();
  out.String("block", BlockKindName(layer));
  out.Float("norm_eps", layer.norm_eps);
  std::visit([&](const auto& config) { Write(config, out); }, layer.mixer);
  out.out().EndObject();
}

}  // namespace adder
