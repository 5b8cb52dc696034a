// GGUF files of the hybrids, as llama.cpp's converter writes them, convert to what the checkpoint
// converts to that they were made from.
#include <gtest/gtest.h>

#include <functional>

#include "converter/gguf_checkpoint.h"
#include "converter/golden_check.h"
#include "tests/converted_model.h"
#include "tests/gguf_changes.h"
#include "tests/hybrid_checkpoints.h"
#include "tests/llama_cpp_converter.h"

namespace adder::test {
namespace {

TinyCheckpoint GoldenCheckpoint(const std::string& name) {
  TinyCheckpoint out;
  const auto text = ReadFileBytes(GoldenFolder(name) + "/config.json");
  out.config.assign(text.begin(), text.end());
  const auto checkpoint = Checkpoint::Open(GoldenFolder(name));
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  for (const auto& [tensor, source] : checkpoint->tensors()) {
    out.weights[tensor] = {source.shape, *ReadF32(source, tensor)};
  }
  if (!out.weights.contains(out.embedding)) out.embedding = "model.embed_tokens.weight";
  return out;
}

// Biases, an attention of its own width, experts at a latent width in groups.
TinyCheckpoint NemotronWithExperts() {
  HybridMaker make("backbone.embeddings.weight", "backbone.norm_f.weight");
  for (const std::string i : {"0", "1", "2", "3"}) {
    make.Norm("backbone.layers." + i + ".norm.weight");
  }
  make.Mamba2("backbone.layers.0.mixer.", {.norm_groups = 2});
  make.Attention("backbone.layers.1.mixer.", {}, kWidth, /*bias=*/true);
  make.Mamba2("backbone.layers.2.mixer.", {.norm_groups = 2});
  const std::string moe = "backbone.layers.3.mixer.";
  make.Matrix(moe + "gate.weight", 4, kWidth);
  make.Vector(moe + "gate.e_score_correction_bias", 4);
  make.Matrix(moe + "fc1_latent_proj.weight", 12, kWidth);
  make.Matrix(moe + "fc2_latent_proj.weight", kWidth, 12);
  for (const std::string e : {"0.", "1.", "2.", "3."}) {
    make.Matrix(moe + "experts." + e + "up_proj.weight", 14, 12);
    make.Matrix(moe + "experts." + e + "down_proj.weight", 12, 14);
  }
  make.Matrix(moe + "shared_experts.up_proj.weight", kTinyFf, kWidth);
  make.Matrix(moe + "shared_experts.down_proj.weight", kWidth, kTinyFf);
  make.out.config = TinyConfig(
      "nemotron_h", 4,
      "\"hybrid_override_pattern\": \"M*ME\", \"num_attention_heads\": 4, "
      "\"num_key_value_heads\": 2, \"head_dim\": 6, \"mamba_head_dim\": 10, \"n_groups\": 2, "
      "\"ssm_state_size\": 6, \"n_routed_experts\": 4, \"num_experts_per_tok\": 2, "
      "\"n_group\": 2, \"topk_group\": 1, \"moe_latent_size\": 12, \"norm_topk_prob\": false, "
      "\"routed_scaling_factor\": 2.2");
  return make.out;
}

TinyCheckpoint RotatingGranite() {
  HybridMaker make("model.embed_tokens.weight", "model.norm.weight");
  for (const std::string i : {"0", "1"}) {
    const std::string layer = "model.layers." + i + ".";
    make.Norm(layer + "input_layernorm.weight");
    make.Norm(layer + "post_attention_layernorm.weight");
    make.Matrix(layer + "shared_mlp.input_linear.weight", 2 * kTinyFf, kWidth);
    make.Matrix(layer + "shared_mlp.output_linear.weight", kWidth, kTinyFf);
  }
  make.Mamba2("model.layers.0.mamba.", {.n_groups = 1});
  make.Attention("model.layers.1.self_attn.",
                 {.n_heads = 5, .n_kv_heads = 5, .head_dim = 4, .rope = {}}, kWidth, /*bias=*/true);
  make.out.config =
      TinyConfig("granitemoehybrid", 2,
                 "\"rms_norm_eps\": 1e-5, \"layer_types\": [\"mamba\", \"attention\"], "
                 "\"num_attention_heads\": 5, "
                 "\"num_key_value_heads\": 5, \"mamba_d_head\": 10, \"mamba_n_groups\": 1, "
                 "\"mamba_d_state\": 6, \"num_local_experts\": 0, \"residual_multiplier\": 0.22, "
                 "\"attention_multiplier\": 0.3, \"position_embedding_type\": \"rope\"");
  return make.out;
}

struct Case {
  const char* name;
  const char* architecture;
  const char* golden;        // folder, or nullptr
  TinyCheckpoint (*make)();  // else
};
const Case kCases[] = {{"jamba", "jamba", "jamba", nullptr},
                       {"granite_dense", "granitehybrid", "granite-h-dense", nullptr},
                       {"granite_moe", "granitehybrid", "granite-h-moe", nullptr},
                       {"granite_rope", "granitehybrid", nullptr, RotatingGranite},
                       {"bamba", "granitehybrid", "bamba", nullptr},
                       {"falcon_h1", "falcon-h1", "falcon-h1", nullptr},
                       {"nemotron_h", "nemotron_h", "nemotron-h", nullptr},
                       {"nemotron_h_moe", "nemotron_h_moe", nullptr, NemotronWithExperts}};

TinyCheckpoint CheckpointOf(const Case& c) {
  TinyCheckpoint out = c.make != nullptr ? c.make() : GoldenCheckpoint(c.golden);
  if (std::string(c.name) == "falcon_h1") FoldFalconMultipliers(&out);
  return out;
}

GgufModel GgufOf(const Case& c) { return LlamaCppConverter(CheckpointOf(c), c.architecture).Run(); }
GgufModel GgufNamed(const std::string& name) {
  static std::map<std::string, GgufModel> made;
  for (const Case& c : kCases) {
    if (name == c.name && !made.contains(name)) made[name] = GgufOf(c);
  }
  return made.at(name);
}

std::vector<Case> GoldenCases() {
  std::vector<Case> cases(std::begin(kCases), std::end(kCases));
  std::erase_if(cases, [](const Case& c) { return c.golden == nullptr; });
  return cases;
}
std::string CaseName(const testing::TestParamInfo<Case>& test) { return test.param.name; }

class GgufHybrids : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Families, GgufHybrids, testing::ValuesIn(kCases), CaseName);

// To the last bit, but for A, whose exp(A_log) was rounded to float32 on the way.
void ExpectSameTensors(const ModelFile& file, const ModelFile& expected) {
  ASSERT_EQ(file.tensors().size(), expected.tensors().size());
  for (size_t i = 0; i < file.tensors().size(); ++i) {
    const auto &tensor = file.tensors()[i], &wanted = expected.tensors()[i];
    SCOPED_TRACE(wanted.name);
    ASSERT_EQ(tensor.name, wanted.name);
    ASSERT_EQ(tensor.dtype, wanted.dtype);
    ASSERT_EQ(tensor.shape, wanted.shape);
    ASSERT_EQ(tensor.data.size(), wanted.data.size());
    if (!tensor.name.ends_with(".a")) {
      EXPECT_EQ(std::memcmp(tensor.data.data(), wanted.data.data(), wanted.data.size()), 0);
      continue;
    }
    std::vector<float> a(wanted.data.size() / 4), a_wanted(a.size());
    std::memcpy(a.data(), tensor.data.data(), tensor.data.size());
    std::memcpy(a_wanted.data(), wanted.data.data(), wanted.data.size());
    for (size_t k = 0; k < a.size(); ++k) {
      EXPECT_NEAR(a[k], a_wanted[k], std::fabs(a_wanted[k]) * 2.5e-7f) << k;
    }
  }
}

std::string ConfigText(const Model& model) {
  ModelConfig config = model.config();
  config.provenance.clear();
  return config.ToJson();
}

TEST_P(GgufHybrids, HaveTheTensorsAndSettingsOfTheCheckpoint) {
  const TinyCheckpoint checkpoint = CheckpointOf(GetParam());
  const TempDir folder;
  checkpoint.Write(folder);
  const TempDir other;
  other.Write("model.gguf", LlamaCppConverter(checkpoint, GetParam().architecture).Run().File());
  for (const WeightType type : {WeightType::kF32, WeightType::kQ8, WeightType::kQ4}) {
    SCOPED_TRACE(static_cast<int>(type));
    const auto expected = ConvertedModel(folder.path(), type);
    const auto gguf = ConvertedModel(other / "model.gguf", type);
    ASSERT_TRUE(gguf->model != nullptr && expected->model != nullptr);
    ExpectSameTensors(gguf->model->file(), expected->model->file());
    EXPECT_EQ(ConfigText(*gguf->model), ConfigText(*expected->model));
  }
}

class GgufGolden : public GgufHybrids {};
INSTANTIATE_TEST_SUITE_P(Families, GgufGolden, testing::ValuesIn(GoldenCases()), CaseName);

TEST_P(GgufGolden, EqualTheReferenceLogits) {
  const TempDir folder;
  folder.Write("model.gguf", GgufOf(GetParam()).File());
  const auto converted = ConvertedModel(folder / "model.gguf", WeightType::kF32);
  ASSERT_NE(converted->model, nullptr);
  const auto golden =
      CheckGolden(*converted->model, GoldenFolder(GetParam().golden) + "/golden.safetensors");
  ASSERT_TRUE(golden.ok()) << golden.status().message();
  EXPECT_LE(golden->logits_error, 1e-4);
  EXPECT_EQ(golden->top1_equal, golden->tokens);
}

// The last block predicts a further token.
TEST(GgufHybrid, LeavesOutBlocksForFurtherTokens) {
  GgufModel gguf = GgufNamed("nemotron_h_moe");
  const TempDir folder;
  folder.Write("plain.gguf", gguf.File());
  gguf.metadata["nemotron_h_moe.block_count"] = uint32_t{5};
  gguf.metadata["nemotron_h_moe.nextn_predict_layers"] = uint32_t{1};
  for (const char* key : {"attention.head_count_kv", "feed_forward_length"}) {
    auto& list =
        std::get<std::vector<int32_t>>(gguf.metadata["nemotron_h_moe." + std::string(key)]);
    list.push_back(2);
  }
  gguf.tensors["blk.4.attn_norm.weight"] = gguf.tensors["blk.1.attn_norm.weight"];
  gguf.tensors["blk.4.ffn_up_exps.weight"] = gguf.tensors["blk.3.ffn_up_exps.weight"];
  gguf.tensors["blk.4.nextn.enorm.weight"] = gguf.tensors["blk.1.attn_norm.weight"];
  folder.Write("model.gguf", gguf.File());
  const auto plain = ConvertedModel(folder / "plain.gguf", WeightType::kF32);
  const auto model = ConvertedModel(folder / "model.gguf", WeightType::kF32);
  ASSERT_TRUE(plain->model != nullptr && model->model != nullptr);
  EXPECT_EQ(ConfigText(*model->model), ConfigText(*plain->model));
  const auto report = Convert(folder / "model.gguf", folder / "out", {});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(std::count_if(report->warnings.begin(), report->warnings.end(),
                          [](const std::string& w) {
                            return w.starts_with("3 tensors for predicting several tokens at once");
                          }),
            1);
}

Result<GgufCheckpoint> Read(const GgufModel& gguf, std::vector<uint8_t>* bytes) {
  *bytes = gguf.File();
  return ReadGguf(*bytes, "w.gguf");
}

// 0.22 and 1e11 became float32 on the way.
TEST(GgufHybrid, NumbersAreDecimalAgain) {
  GgufModel gguf = GgufNamed("granite_rope");
  gguf.metadata["granitehybrid.rope.freq_base"] = 1e11f;
  std::vector<uint8_t> bytes;
  const auto checkpoint = Read(gguf, &bytes);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(*checkpoint->config.Double({"residual_multiplier"}, {}), 0.22);
  EXPECT_EQ(*checkpoint->config.Double({"rope_theta"}, {}), 1e11);
}

TEST(GgufHybrid, ReadsLinearScalingOfRotations) {
  GgufModel gguf = GgufNamed("falcon_h1");
  gguf.metadata["falcon-h1.rope.scaling.factor"] = 4.0f;
  std::vector<uint8_t> bytes;
  auto checkpoint = Read(gguf, &bytes);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(*checkpoint->config.Object("rope_scaling")->Double({"factor"}, 1), 4);
  EXPECT_EQ(*checkpoint->config.Object("rope_scaling")->String({"type"}, ""), "linear");
  gguf.metadata["falcon-h1.rope.scaling.type"] = "none";
  checkpoint = Read(gguf, &bytes);
  EXPECT_FALSE(checkpoint->config.Has({"rope_scaling"}));
}

// What the file of a Falcon-H1 does not say.
TEST(GgufHybrid, WarnsOfWhatFalconH1LeavesOpen) {
  GgufModel gguf = GgufNamed("falcon_h1");
  std::vector<uint8_t> bytes;
  EXPECT_TRUE(Read(gguf, &bytes)->warnings.empty());
  gguf.tensors.erase("output.weight");
  gguf.tensors["blk.0.ssm_norm.weight"] = {{1, 128}, std::vector<float>(128, 1.0f)};
  const auto checkpoint = Read(gguf, &bytes);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  ASSERT_EQ(checkpoint->warnings.size(), 2u);
  EXPECT_NE(checkpoint->warnings[0].find("before the norm"), std::string::npos);
  EXPECT_NE(checkpoint->warnings[1].find("multiplier of the logits"), std::string::npos);
  EXPECT_TRUE(*checkpoint->config.Bool({"mamba_rms_norm"}, false));
  EXPECT_FALSE(*checkpoint->config.Bool({"mamba_norm_before_gate"}, true));
}

// Without its key, the attention of Granite has the scale of others.
TEST(GgufHybrid, GraniteWithoutScales) {
  GgufModel gguf = GgufNamed("granite_dense");
  for (const char* key : {"attention.scale", "embedding_scale", "residual_scale", "logit_scale"}) {
    gguf.metadata.erase("granitehybrid." + std::string(key));
  }
  std::vector<uint8_t> bytes;
  const auto checkpoint = Read(gguf, &bytes);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(*checkpoint->config.String({"model_type"}, ""), "granitemoehybrid");
  EXPECT_EQ(*checkpoint->config.Double({"attention_multiplier"}, {}), 0.25);
  EXPECT_FALSE(checkpoint->config.Has({"residual_multiplier"}));
}

std::string Refusal(const GgufModel& gguf) {
  const TempDir folder;
  folder.Write("w.gguf", gguf.File());
  const auto report = Convert(folder / "w.gguf", folder / "out", {});
  return report.ok() ? "accepted" : report.status().message();
}

using Change = std::function<void(GgufModel&)>;
Change Without(const std::string& key) {
  return [=](GgufModel& gguf) { EXPECT_EQ(gguf.metadata.erase(key), 1u) << key; };
}
Change Set(const std::string& key, GgufModel::Value value) {
  return [=](GgufModel& gguf) { gguf.metadata[key] = value; };
}
Change Reshape(const std::string& tensor, std::vector<uint64_t> shape) {
  return [=](GgufModel& gguf) {
    FloatArray& array = gguf.tensors.at(tensor);
    array.shape = shape;
    size_t count = 1;
    for (const uint64_t size : shape) count *= size;
    array.values.resize(count);
  };
}
Change Put(const std::string& tensor, std::vector<uint64_t> shape) {
  return [=](GgufModel& gguf) {
    gguf.tensors[tensor];
    Reshape(tensor, shape)(gguf);
  };
}

TEST(GgufHybrid, Refuses) {
  using List = std::vector<int32_t>;
  struct Row {
    const char* family;
    Change change;
    const char* message;
  };
  const Row rows[] = {
      {"jamba", Without("jamba.block_count"), "no metadata jamba.block_count"},
      {"jamba", Without("jamba.ssm.time_step_rank"), "no metadata jamba.ssm.time_step_rank"},
      {"jamba", Without("jamba.attention.head_count"), "no metadata jamba.attention.head_count"},
      {"jamba", Without("jamba.attention.head_count_kv"),
       "no metadata jamba.attention.head_count_kv"},
      {"jamba", Without("jamba.attention.layer_norm_rms_epsilon"),
       "no metadata jamba.attention.layer_norm_rms_epsilon"},
      {"jamba", Without("jamba.expert_count"), "no metadata jamba.expert_count"},
      {"granite_moe", Without("granitehybrid.expert_count"),
       "no metadata granitehybrid.expert_count"},
      {"granite_dense", Without("granitehybrid.ssm.group_count"),
       "no metadata granitehybrid.ssm.group_count"},
      {"nemotron_h", Without("nemotron_h.feed_forward_length"),
       "no metadata nemotron_h.feed_forward_length"},
      {"falcon_h1", Without("falcon-h1.ssm.inner_size"), "no metadata falcon-h1.ssm.inner_size"},
      // Counts of blocks.
      {"jamba", Set("jamba.block_count", uint32_t{0}), "jamba.block_count is 0, the file has"},
      {"jamba", Set("jamba.block_count", uint32_t{4000000000}),
       "jamba.block_count is 4000000000, the file has"},
      {"falcon_h1", Set("falcon-h1.block_count", uint32_t{4}),
       "the checkpoint has 3 layers under model.layers., w.gguf says 4"},
      {"nemotron_h", Set("nemotron_h.nextn_predict_layers", uint32_t{7}),
       "nextn_predict_layers is 7, there are 7 blocks"},
      // Lists with a number for every block.
      {"jamba", Set("jamba.attention.head_count_kv", List{0, 2}),
       "jamba.attention.head_count_kv has 2 elements for 8 blocks (block_count)"},
      {"jamba", Set("jamba.attention.head_count_kv", List()), "has 0 elements for 8 blocks"},
      {"jamba", Set("jamba.attention.head_count_kv", List{0, 0, 2, 0, 0, 0, -2, 0}),
       "jamba.attention.head_count_kv is -2 in block 6"},
      {"jamba", Set("jamba.attention.head_count_kv", "2"), "head_count_kv is STRING"},
      {"jamba", Set("jamba.attention.head_count_kv", List{0, 0, 2, 0, 0, 0, 1, 0}),
       "block 6 has 4 heads and 1 of keys (jamba.attention.head_count_kv), block 2 has 4 and 2"},
      {"jamba", Set("jamba.attention.head_count_kv", List{0, 2, 0, 0, 0, 0, 2, 0}),
       "layers.1.self_attn.q_proj.weight is missing"},
      {"nemotron_h", Set("nemotron_h.feed_forward_length", List{0, 1}),
       "feed_forward_length has 2 elements for 7 blocks"},
      {"nemotron_h", Set("nemotron_h.feed_forward_length", uint32_t{128}),
       "block 3 attends (nemotron_h.attention.head_count_kv) and has a feed-forward length of 128"},
      // Heads whose rows are paired.
      {"granite_dense", Set("granitehybrid.attention.head_count", uint32_t{0}),
       "blk.2.attn_q.weight has 64 rows, which are no pairs of 0 heads"},
      {"granite_dense", Set("granitehybrid.attention.head_count", uint32_t{5}),
       "blk.2.attn_q.weight has 64 rows, which are no pairs of 5 heads "
       "(granitehybrid.attention.head_count of block 2 of 4)"},
      {"granite_dense", Reshape("blk.2.attn_k.weight", {33, 64}),
       "blk.2.attn_k.weight has 33 rows, which are no pairs of 2 heads"},
      {"granite_dense", Put("blk.9.attn_q.weight", {64, 64}), "of block 9 of 4"},
      {"granite_dense", Put("blk.18446744073709551616.attn_q.weight", {64, 64}),
       "which are no pairs of 0 heads"},
      {"granite_dense", Set("granitehybrid.attention.key_length", uint32_t{0}), "head_dim is 0"},
      // Heads of Mamba-2.
      {"granite_dense", Set("granitehybrid.ssm.time_step_rank", uint32_t{0}),
       "granitehybrid.ssm.inner_size is 128, no multiple of the 0 heads"},
      {"nemotron_h", Set("nemotron_h.ssm.time_step_rank", uint32_t{16}),
       "8 heads (A_log) of mamba_head_dim 8"},
      {"nemotron_h", Set("nemotron_h.ssm.group_count", uint32_t{4}), "n_groups 4"},
      // Experts.
      {"jamba", Set("jamba.expert_count", uint32_t{3}),
       "blk.1.ffn_down_exps.weight has shape [4, 64, 128], expected 3 dimensions of which the "
       "first is 3 (jamba.expert_count)"},
      {"jamba", Set("jamba.expert_count", uint32_t{1} << 30),
       "jamba.expert_count is 1073741824, expected 1 to 16384"},
      {"granite_moe", Set("granitehybrid.expert_count", uint32_t{0}),
       "granitehybrid.expert_count is 0, expected 1 to 16384"},
      {"jamba", Reshape("blk.3.ffn_up_exps.weight", {4, 128 * 64}),
       "blk.3.ffn_up_exps.weight has shape [4, 8192], expected 3 dimensions"},
      {"jamba", Reshape("blk.3.ffn_up_exps.weight", {4, 64, 128}),
       "experts.0.up_proj.weight has shape [64, 128], expected [128, 64]"},
      {"jamba",
       [](GgufModel& gguf) {
         gguf.tensors["blk.2.ffn_gate_inp.weight"] = gguf.tensors["blk.1.ffn_gate_inp.weight"];
       },
       "block 0 has no router, where one in 1 blocks"},
      {"jamba", [](GgufModel& gguf) { gguf.tensors.erase("blk.5.ffn_gate_inp.weight"); },
       "block 5 has no router, where one in 2 blocks (the first is 1) has one"},
      {"nemotron_h_moe", Set("nemotron_h_moe.expert_used_count", List{0, 0, 0, 2}),
       "expert_used_count is an array"},
      {"jamba", Put("blk.1.feed_forward.experts.0.up_proj.weight", {128, 64}),
       "is there under another name too (model.layers.1.feed_forward.experts.0.up_proj.weight)"},
      // Rotations.
      {"falcon_h1", Put("rope_freqs.weight", {8}), "rope_freqs.weight: rotations with factors"},
      {"falcon_h1", Set("falcon-h1.rope.scaling.type", "yarn"),
       "falcon-h1.rope.scaling.type is \"yarn\"; none and linear are supported"},
      {"falcon_h1", Set("falcon-h1.rope.dimension_count", uint32_t{8}),
       "falcon-h1.rope.dimension_count is 8, only rotations of whole heads of 16"},
      {"falcon_h1", Set("falcon-h1.rope.freq_base", NAN), "freq_base is nan, expected a finite"},
      {"falcon_h1", Set("falcon-h1.rope.freq_base", -1.0f), "theta of the rotations is -1"},
      {"granite_dense", Set("granitehybrid.rope.scaling.finetuned", uint32_t{0}),
       "rope.scaling.finetuned is UINT32, expected a BOOL"},
      // Multipliers.
      {"granite_dense", Set("granitehybrid.residual_scale", INFINITY),
       "granitehybrid.residual_scale is inf, expected a finite number"},
      {"granite_dense", Set("granitehybrid.logit_scale", -2.0f), "logits_scaling is -2"},
      // Tensors.
      {"falcon_h1", Put("blk.0.ffn_norm.weight", {64}),
       "blk.0.ffn_norm.weight is there under another name too"},
      {"granite_dense", Put("blk.0.attn_qkv.weight", {4, 64}),
       "layers.0.attn_qkv.weight belongs to no granitemoehybrid layer"},
      {"bamba", [](GgufModel& gguf) { gguf.tensors.erase("blk.1.attn_output.weight"); },
       "self_attn.o_proj.weight is missing"},
      {"jamba", Set("general.architecture", "jamba2"),
       "architecture \"jamba2\" is not supported; GGUF files are read of mamba, mamba2, jamba"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(std::string(row.family) + ": " + row.message);
    GgufModel gguf = GgufNamed(row.family);
    row.change(gguf);
    const std::string message = Refusal(gguf);
    EXPECT_NE(message.find(row.message), std::string::npos) << message;
  }
}

// Whatever a changed byte of the header makes of a file, it is converted or refused.
TEST(GgufHybrid, SurvivesChangedBytes) {
  GgufModel gguf = GgufNamed("nemotron_h_moe");
  gguf.metadata["nemotron_h_moe.nextn_predict_layers"] = uint32_t{0};
  const auto file = gguf.File();
  const auto parsed = ParseGguf(file, "w.gguf");
  ASSERT_TRUE(parsed.ok());
  size_t header = file.size();
  for (const auto& [name, tensor] : parsed->tensors) {
    header = std::min(header, static_cast<size_t>(tensor.data - file.data()));
  }
  ExpectReadOrRefused(file, header);
}

}  // namespace
}  // namespace adder::test
