// How hybrid checkpoints may be written: spellings that give the same file, what is refused, and
// the frequencies of rotation.
#include <gtest/gtest.h>

#include <numbers>

#include "converter/layers.h"
#include "runtime/model.h"
#include "runtime/model_file.h"
#include "tests/converted_model.h"
#include "tests/hybrid_checkpoints.h"

namespace adder::test {
namespace {

using Change = std::function<void(TinyCheckpoint&)>;

Result<ConvertReport> ConvertTiny(const TinyCheckpoint& checkpoint, const TempDir& folder,
                                  WeightType type = WeightType::kQ4) {
  checkpoint.Write(folder);
  ConvertOptions options;
  options.type = type;
  return Convert(folder.path(), folder / "out", options);
}

// The same checkpoint with a change gives the same model file.
void ExpectSameFile(const TinyCheckpoint& checkpoint, const char* what, const Change& change) {
  SCOPED_TRACE(what);
  TinyCheckpoint changed = checkpoint;
  change(changed);
  const TempDir a, b;
  const auto first = ConvertTiny(checkpoint, a), second = ConvertTiny(changed, b);
  ASSERT_TRUE(first.ok()) << first.status().message();
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_TRUE(ReadFileBytes(a / "out") == ReadFileBytes(b / "out"));
}

void ExpectRefused(const TinyCheckpoint& checkpoint, const char* message, const Change& change,
                   Code code = Code::kUnsupported) {
  SCOPED_TRACE(message);
  TinyCheckpoint changed = checkpoint;
  change(changed);
  const TempDir folder;
  const auto report = ConvertTiny(changed, folder);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), code) << report.status().message();
  EXPECT_NE(report.status().message().find(message), std::string::npos)
      << report.status().message();
}

Change Replace(const std::string& from, const std::string& to) {
  return [=](TinyCheckpoint& c) {
    const size_t at = c.config.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    c.config.replace(at, from.size(), to);
  };
}
Change Add(const std::string& keys) { return Replace("{", "{" + keys + ", "); }

// Tensors <from>.<e>.<part>.weight of `count` experts as one, parts one below the other.
void Merge(TinyCheckpoint* c, const std::string& from, const std::vector<std::string>& parts,
           size_t count, const std::string& merged) {
  FloatArray out;
  for (size_t e = 0; e < count; ++e) {
    uint64_t rows = 0;
    for (const std::string& part : parts) {
      const std::string name = from + std::to_string(e) + "." + part + ".weight";
      const FloatArray array = c->weights.at(name);
      rows += array.shape[0];
      out.shape = {count, rows, array.shape[1]};
      out.values.insert(out.values.end(), array.values.begin(), array.values.end());
      c->weights.erase(name);
    }
  }
  c->weights[from + merged] = out;
}

void Rename(TinyCheckpoint* c, const std::string& from, const std::string& to) {
  Weights renamed;
  for (auto& [name, array] : c->weights) {
    const bool hit = name.starts_with(from);
    renamed[hit ? to + name.substr(from.size()) : name] = std::move(array);
  }
  c->weights = std::move(renamed);
}

constexpr AttentionShape kAttention = {.head_dim = 5, .rope = {}};

// Attention with experts, then Mamba with an MLP.
TinyCheckpoint Jamba() {
  HybridMaker make("model.embed_tokens.weight", "model.final_layernorm.weight");
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    make.Norm(layer + "input_layernorm.weight");
    make.Norm(layer + "pre_ff_layernorm.weight");
  }
  make.Attention("model.layers.0.self_attn.", kAttention);
  make.Matrix("model.layers.0.feed_forward.router.weight", 3, kWidth);
  for (const char* e : {"0.", "1.", "2."}) {
    make.Mlp(std::string("model.layers.0.feed_forward.experts.") + e);
  }
  make.NormedMamba1("model.layers.1.mamba.", 24, 5, 3, 2);
  make.Mlp("model.layers.1.feed_forward.");
  make.out.config =
      TinyConfig("jamba", 2,
                 "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
                 "\"attn_layer_period\": 2, \"attn_layer_offset\": 0, \"expert_layer_period\": 2, "
                 "\"expert_layer_offset\": 0, \"num_experts\": 3");
  return make.out;
}

TinyCheckpoint NemotronH() {
  HybridMaker make("backbone.embeddings.weight", "backbone.norm_f.weight");
  for (const std::string i : {"0", "1", "2", "3"}) {
    make.Norm("backbone.layers." + i + ".norm.weight");
  }
  make.Mamba2("backbone.layers.0.mixer.", {.norm_groups = 2});
  make.Attention("backbone.layers.1.mixer.", kAttention);
  make.Matrix("backbone.layers.2.mixer.up_proj.weight", kTinyFf, kWidth);
  make.Matrix("backbone.layers.2.mixer.down_proj.weight", kWidth, kTinyFf);
  const std::string moe = "backbone.layers.3.mixer.";
  make.Matrix(moe + "gate.weight", 4, kWidth);
  make.Vector(moe + "gate.e_score_correction_bias", 4);
  for (const std::string e : {"0.", "1.", "2.", "3."}) {
    make.Matrix(moe + "experts." + e + "up_proj.weight", kTinyFf, kWidth);
    make.Matrix(moe + "experts." + e + "down_proj.weight", kWidth, kTinyFf);
  }
  make.out.config = TinyConfig("nemotron_h", 4,
                               "\"hybrid_override_pattern\": \"M*-E\", \"num_attention_heads\": 4, "
                               "\"head_dim\": 5, \"mamba_head_dim\": 10, \"n_groups\": 2, "
                               "\"ssm_state_size\": 6, \"n_group\": 2, \"topk_group\": 1");
  return make.out;
}

TinyCheckpoint Zamba2() {
  HybridMaker make("model.embed_tokens.weight", "model.final_layernorm.weight");
  const std::string shared = "model.layers.0.shared_transformer.";
  for (const std::string i : {"0", "1"}) {
    const std::string layer = "model.layers." + i + ".";
    make.Norm(layer + "mamba_decoder.input_layernorm.weight");
    make.Mamba2(layer + "mamba_decoder.mamba.", {.norm_groups = 2});
    make.Matrix(layer + "linear.weight", kWidth, kWidth);
    const std::string list = shared + "feed_forward.gate_up_proj_adapter_list." + i;
    make.Matrix(list + ".0.weight", 3, kWidth);
    make.Matrix(list + ".1.weight", 2 * kTinyFf, 3);
  }
  make.Norm(shared + "input_layernorm.weight", 2 * kWidth);
  make.Norm(shared + "pre_ff_layernorm.weight");
  make.Attention(shared + "self_attn.", {.n_kv_heads = 4, .head_dim = 10, .rope = {}}, 2 * kWidth);
  make.Matrix(shared + "feed_forward.gate_up_proj.weight", 2 * kTinyFf, kWidth);
  make.Matrix(shared + "feed_forward.down_proj.weight", kWidth, kTinyFf);
  make.out.config = TinyConfig(
      "zamba2", 2,
      "\"layers_block_type\": [\"hybrid\", \"hybrid\"], \"num_attention_heads\": 4, "
      "\"mamba_ngroups\": 2, \"mamba_d_state\": 6, \"use_mem_rope\": true, \"rope_theta\": 500");
  return make.out;
}

TEST(SameFile, Jamba) {
  ExpectSameFile(Jamba(), "merged experts", [](TinyCheckpoint& c) {
    const std::string experts = "model.layers.0.feed_forward.experts.";
    Merge(&c, experts, {"gate_proj", "up_proj"}, 3, "gate_up_proj");
    Merge(&c, experts, {"down_proj"}, 3, "down_proj");
  });
  ExpectSameFile(Jamba(), "list that agrees",
                 Add("\"layers_block_type\": [\"attention\", \"mamba\"]"));
  ExpectSameFile(Jamba(), "list alone",
                 Replace("\"attn_layer_period\": 2, \"attn_layer_offset\": 0",
                         "\"layer_types\": [\"full_attention\", \"linear_attention\"]"));
  ExpectSameFile(Jamba(), "other key", Replace("\"num_experts\"", "\"num_local_experts\""));
  ExpectSameFile(Jamba(), "no number of key heads",
                 Replace("\"num_key_value_heads\": 2", "\"num_key_value_heads\": null"));
  ExpectSameFile(Jamba(), "architecture",
                 Replace("\"model_type\": \"jamba\"", "\"architectures\": [\"JambaForCausalLM\"]"));
  ExpectSameFile(Jamba(), "text_config", [](TinyCheckpoint& c) {
    c.config = "{\"model_type\": \"jamba\", \"text_config\": " + c.config + "}";
  });
}

TEST(SameFile, NemotronH) {
  ExpectSameFile(NemotronH(), "merged experts", [](TinyCheckpoint& c) {
    const std::string experts = "backbone.layers.3.mixer.experts.";
    Merge(&c, experts, {"up_proj"}, 4, "up_proj");
    Merge(&c, experts, {"down_proj"}, 4, "down_proj");
  });
  ExpectSameFile(NemotronH(), "list",
                 Replace("\"hybrid_override_pattern\": \"M*-E\"",
                         "\"layers_block_type\": [\"mamba2\", \"attention\", \"mlp\", \"moe\"]"));
  ExpectSameFile(NemotronH(), "other root",
                 [](TinyCheckpoint& c) { Rename(&c, "backbone.", "model."); });
  ExpectSameFile(NemotronH(), "predicting several tokens", [](TinyCheckpoint& c) {
    c.weights["mtp.layers.0.norm.weight"] = {{2}, {1, 1}};
  });
  ExpectSameFile(NemotronH(), "keys that do not count",
                 Add("\"time_step_min\": 0.5, \"mamba_proj_bias\": true, \"expand\": 16, "
                     "\"sliding_window\": 4, \"mtp_layers_block_type\": [\"moe\"]"));
}

TEST(SameFile, Zamba2) {
  ExpectSameFile(Zamba2(), "older keys", [](TinyCheckpoint& c) {
    Replace("\"hybrid\", \"hybrid\"", "\"g\", \"g\"")(c);
    Replace("\"mamba_d_state\"", "\"state_size\"")(c);
    Add("\"conv_dimension\": 3, \"expansion_factor\": 2, \"ffn_hidden_size\": 26, "
        "\"lora_rank\": 3")(c);
  });
  ExpectSameFile(Zamba2(), "copies of the shared block", [](TinyCheckpoint& c) {
    const Weights weights = c.weights;
    for (const auto& [name, array] : weights) {
      const std::string shared = "model.layers.0.shared_transformer.";
      if (name.starts_with(shared))
        c.weights["model.layers.1.shared_transformer." + name.substr(shared.size())] = array;
    }
  });
  ExpectSameFile(Zamba2(), "rope_parameters",
                 Replace("\"rope_theta\": 500",
                         "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 500}"));
}

TEST(Refused, Hybrids) {
  ExpectRefused(Zamba2(), "use_long_context", Add("\"use_long_context\": true"));
  ExpectRefused(Zamba2(), "rope_type is \"yarn\"",
                Add("\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2}"));
  ExpectRefused(Zamba2(), "hidden_act", Add("\"hidden_act\": \"silu\""));
  ExpectRefused(Zamba2(), "num_key_value_heads is 2", Add("\"num_key_value_heads\": 2"));
  ExpectRefused(Zamba2(), "layer 0", Replace("\"hybrid\", \"hybrid\"", "\"mlp\", \"hybrid\""));
  ExpectRefused(Zamba2(), "num_mem_blocks", Add("\"num_mem_blocks\": 0"), Code::kCorruptFile);
  ExpectRefused(Zamba2(), "layers_block_type is missing",
                Replace("\"layers_block_type\": [\"hybrid\", \"hybrid\"], ", ""),
                Code::kCorruptFile);

  ExpectRefused(NemotronH(), "[2] is \"?\", expected one of mamba", Replace("M*-E", "M*?E"));
  ExpectRefused(NemotronH(), "lists 3 layers, the checkpoint has 4", Replace("M*-E", "M*-"),
                Code::kCorruptFile);
  ExpectRefused(NemotronH(), "mlp_hidden_act is \"tanh\"", Add("\"mlp_hidden_act\": \"tanh\""));
  ExpectRefused(NemotronH(), "fp8", Add("\"quantization_config\": {\"quant_method\": \"fp8\"}"));
  ExpectRefused(
      NemotronH(), "mixer.experts.2.up_proj.weight",
      [](TinyCheckpoint& c) {
        c.weights.erase("backbone.layers.3.mixer.experts.2.up_proj.weight");
      },
      Code::kNotFound);

  ExpectRefused(Jamba(), "differ in layer 0",
                Add("\"layers_block_type\": [\"mamba\", \"attention\"]"), Code::kCorruptFile);
  ExpectRefused(Jamba(), "hidden_act is \"gelu\"", Add("\"hidden_act\": \"gelu\""));
  ExpectRefused(Jamba(), "attn_layer_period is 0",
                Replace("\"attn_layer_period\": 2", "\"attn_layer_period\": 0"),
                Code::kCorruptFile);
  ExpectRefused(Jamba(), "num_attention_heads is 0",
                Replace("\"num_attention_heads\": 4", "\"num_attention_heads\": 0"),
                Code::kCorruptFile);
  ExpectRefused(Jamba(), "q_proj.weight has shape [20, 20], expected [28, 20]",
                Add("\"head_dim\": 7"), Code::kCorruptFile);
  ExpectRefused(Jamba(), "first generation", [](TinyCheckpoint& c) {
    c = Jamba();
    Replace("\"jamba\"", "\"llama\"")(c);
    Add("\"head_dim\": 4")(c);
    c.mamba_config = "{\"d_inner\": 20, \"d_xb\": 10, \"ssm_cfg\": {\"d_state\": 5}}";
    c.weights["model.layers.0.mamba.in_proj_x.weight"] = {{1, 1}, {1}};
    Rename(&c, "model.layers.0.pre_ff_layernorm", "model.layers.0.post_attention_layernorm");
  });
}

// Whatever was asked for: the router stays float32, experts do not.
TEST(Types, RoutersStayFloat32) {
  const TempDir folder;
  ASSERT_TRUE(ConvertTiny(Jamba(), folder).ok());
  const auto model = Model::Open(folder / "out");
  ASSERT_TRUE(model.ok()) << model.status().message();
  const ModelFile& file = (*model)->file();
  EXPECT_EQ(file.Find("layers.1.router")->dtype, DType::kMatF32);
  EXPECT_EQ(file.Find("layers.1.experts.2.down")->dtype, DType::kMatQ4);
  EXPECT_EQ(file.Find("layers.2.dt_norm")->dtype, DType::kF32);
}

std::vector<float> Frequencies(const std::string& json, size_t dim) {
  const auto root = Json::Parse(json, "config.json");
  EXPECT_TRUE(root.ok());
  const auto f = RopeFrequencies(Config(*root, "config.json"), dim);
  EXPECT_TRUE(f.ok()) << f.status().message();
  return f.ok() ? *f : std::vector<float>();
}

TEST(Rope, DefaultAndLinear) {
  for (const auto& [json, theta, factor] :
       {std::tuple("{}", 1e4, 1.0),
        {"{\"rope_theta\": 100000000000.0}", 1e11, 1.0},
        {"{\"rope_theta\": 7, \"rope_parameters\": {\"rope_theta\": 500}}", 500, 1.0},
        {"{\"rope_theta\": 500, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}}", 500,
         4.0},
        {"{\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 2}}", 1e4, 2.0}}) {
    const std::vector<float> f = Frequencies(json, 64);
    ASSERT_EQ(f.size(), 32u) << json;
    for (size_t i = 0; i < f.size(); ++i) {
      const double expected = std::exp(-std::log(theta) * static_cast<double>(i) / 32) / factor;
      EXPECT_NEAR(f[i] / expected, 1, 1e-6) << json << i;
    }
  }
}

// The rule as published: three bands of wavelengths.
TEST(Rope, Llama3) {
  const std::vector<float> f = Frequencies(
      "{\"rope_theta\": 500000, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, "
      "\"low_freq_factor\": 1, \"high_freq_factor\": 4, "
      "\"original_max_position_embeddings\": 8192}}",
      128);
  ASSERT_EQ(f.size(), 64u);
  size_t kept = 0, ramp = 0, stretched = 0;
  for (size_t i = 0; i < f.size(); ++i) {
    const double plain = std::pow(5e5, -static_cast<double>(i) / 64);
    const double wavelength = 2 * std::numbers::pi / plain;
    double expected = plain;
    if (wavelength > 8192) {
      expected = plain / 8;
      ++stretched;
    } else if (wavelength >= 2048) {
      const double smooth = (8192 / wavelength - 1) / 3;
      expected = (1 - smooth) * plain / 8 + smooth * plain;
      ++ramp;
    } else {
      ++kept;
    }
    EXPECT_NEAR(f[i] / expected, 1, 1e-6) << i;
  }
  EXPECT_TRUE(kept > 20 && ramp > 3 && stretched > 20) << kept << " " << ramp << " " << stretched;
}

}  // namespace
}  // namespace adder::test
