// Checkpoints of the hybrid families with every option, converted at float32, against a plain
// version in double precision.
#include <gtest/gtest.h>

#include "tests/equals_reference.h"
#include "tests/hybrid_checkpoints.h"

namespace adder::test {
namespace {

std::string Layer(const std::string& root, size_t i) {
  return root + "layers." + std::to_string(i) + ".";
}

void ExpectEquals(const TinyCheckpoint& checkpoint, const std::string& final_norm,
                  HybridReference::Layers layers, double embedding = 1, double logits = 1) {
  HybridReference reference(checkpoint, final_norm, std::move(layers));
  reference.embedding_multiplier = embedding;
  reference.logits_multiplier = logits;
  ExpectEqualsReference(checkpoint, std::move(reference), 0);
}

TEST(Hybrid, Jamba) {
  constexpr size_t kLayers = 4, kExperts = 3;
  HybridMaker make("model.embed_tokens.weight", "model.final_layernorm.weight");
  const AttentionShape attention = {.head_dim = 5, .scale = 1 / std::sqrt(5.0), .rope = {}};
  for (size_t i = 0; i < kLayers; ++i) {
    const std::string layer = Layer("model.", i);
    make.Norm(layer + "input_layernorm.weight");
    make.Norm(layer + "pre_ff_layernorm.weight");
    if (i % 2 == 1) {
      make.Attention(layer + "self_attn.", attention);
    } else {
      make.NormedMamba1(layer + "mamba.", 24, 5, 3, 2);
    }
    if (i % 3 != 0) {
      make.Mlp(layer + "feed_forward.");
      continue;
    }
    make.Matrix(layer + "feed_forward.router.weight", kExperts, kWidth);
    for (size_t e = 0; e < kExperts; ++e) {
      make.Mlp(layer + "feed_forward.experts." + std::to_string(e) + ".");
    }
  }
  make.out.config =
      TinyConfig("jamba", kLayers,
                 "\"rms_norm_eps\": 1e-5, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
                 "\"attn_layer_period\": 2, \"attn_layer_offset\": 1, \"expert_layer_period\": 3, "
                 "\"expert_layer_offset\": 0, \"num_experts\": 3");
  ExpectEquals(make.out, "model.final_layernorm.weight", [&](HybridReference& r, Vec h) {
    for (size_t i = 0; i < kLayers; ++i) {
      const std::string layer = Layer("model.", i);
      const Vec x = r.Norm(layer + "input_layernorm.weight", h);
      h = h + (i % 2 == 1 ? r.Attention(layer + "self_attn.", attention, x)
                          : r.NormedMamba1(layer + "mamba.", x));
      const Vec y = r.Norm(layer + "pre_ff_layernorm.weight", h);
      if (i % 3 != 0) {
        h = h + r.Mlp(layer + "feed_forward.", y);
        continue;
      }
      Vec weights = r.MatVec(layer + "feed_forward.router.weight", y);
      double sum = 0;
      for (double& w : weights) sum += w = std::exp(w);
      for (const size_t e : HybridReference::Largest(weights, 2)) {
        h = h + (weights[e] / sum) *
                    r.Mlp(layer + "feed_forward.experts." + std::to_string(e) + ".", y);
      }
    }
    return h;
  });
}

// Two groups but one norm over the whole width; limits; biases everywhere; half of a head rotates.
TEST(Hybrid, Bamba) {
  constexpr size_t kLayers = 3;
  HybridMaker make("model.embed_tokens.weight", "model.final_layernorm.weight");
  const SsmShape ssm = {.dt_min = 0.2, .dt_max = 0.6};
  const AttentionShape attention = {
      .head_dim = 8, .scale = 1 / std::sqrt(8.0), .rope = PlainRope(2, 100)};
  for (size_t i = 0; i < kLayers; ++i) {
    const std::string layer = Layer("model.", i);
    make.Norm(layer + "input_layernorm.weight");
    make.Norm(layer + "pre_ff_layernorm.weight");
    if (i == 1) {
      make.Attention(layer + "self_attn.", attention, kWidth, /*bias=*/true);
    } else {
      make.Mamba2(layer + "mamba.", ssm, /*bias=*/true);
    }
    make.Mlp(layer + "feed_forward.", /*bias=*/true);
  }
  make.out.config =
      TinyConfig("bamba", kLayers,
                 "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8, "
                 "\"attn_layer_indices\": [1], \"rope_theta\": 100, \"mamba_d_head\": \"auto\", "
                 "\"mamba_n_groups\": 2, \"mamba_d_state\": 6, \"time_step_limit\": [0.2, 0.6]");
  ExpectEquals(make.out, "model.final_layernorm.weight", [&](HybridReference& r, Vec h) {
    for (size_t i = 0; i < kLayers; ++i) {
      const std::string layer = Layer("model.", i);
      const Vec x = r.Norm(layer + "input_layernorm.weight", h);
      h = h + (i == 1
                   ? r.Attention(layer + "self_attn.", attention, x)
                   : r.Mamba2(layer + "mamba.", ssm, r.MatVec(layer + "mamba.in_proj.weight", x)));
      h = h + r.Mlp(layer + "feed_forward.", r.Norm(layer + "pre_ff_layernorm.weight", h));
    }
    return h;
  });
}

void CheckGranite(bool experts, bool rope) {
  constexpr size_t kLayers = 3, kExperts = 4;
  HybridMaker make("model.embed_tokens.weight", "model.norm.weight");
  const SsmShape ssm;
  const AttentionShape attention = {.scale = 0.3, .rope = rope ? PlainRope(3, 10000) : Vec()};
  for (size_t i = 0; i < kLayers; ++i) {
    const std::string layer = Layer("model.", i);
    make.Norm(layer + "input_layernorm.weight");
    make.Norm(layer + "post_attention_layernorm.weight");
    if (i == 1) {
      make.Attention(layer + "self_attn.", attention, kWidth, /*bias=*/true);
    } else {
      make.Mamba2(layer + "mamba.", ssm, /*bias=*/true);
    }
    make.Matrix(layer + "shared_mlp.input_linear.weight", 2 * kTinyFf, kWidth);
    make.Matrix(layer + "shared_mlp.output_linear.weight", kWidth, kTinyFf);
    if (!experts) continue;
    make.Matrix(layer + "block_sparse_moe.router.layer.weight", kExperts, kWidth);
    make.Stack(layer + "block_sparse_moe.input_linear.weight", kExperts, 2 * 9, kWidth);
    make.Stack(layer + "block_sparse_moe.output_linear.weight", kExperts, kWidth, 9);
  }
  make.out.config = TinyConfig(
      "granitemoehybrid", kLayers,
      "\"rms_norm_eps\": 1e-5, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
      "\"head_dim\": 6, \"layer_types\": [\"mamba\", \"attention\", \"mamba\"], "
      "\"mamba_n_groups\": 2, \"mamba_d_state\": 6, \"mamba_d_head\": 10, "
      "\"embedding_multiplier\": 1.5, \"residual_multiplier\": 0.7, "
      "\"attention_multiplier\": 0.3, \"logits_scaling\": 3, \"position_embedding_type\": " +
          std::string(rope ? "\"rope\"" : "null") +
          ", \"num_local_experts\": " + std::to_string(experts ? kExperts : 0));
  ExpectEquals(
      make.out, "model.norm.weight",
      [&](HybridReference& r, Vec h) {
        for (size_t i = 0; i < kLayers; ++i) {
          const std::string layer = Layer("model.", i);
          const Vec x = r.Norm(layer + "input_layernorm.weight", h);
          h = h + 0.7 * (i == 1 ? r.Attention(layer + "self_attn.", attention, x)
                                : r.Mamba2(layer + "mamba.", ssm,
                                           r.MatVec(layer + "mamba.in_proj.weight", x)));
          const Vec y = r.Norm(layer + "post_attention_layernorm.weight", h);
          h = h + 0.7 * r.MergedMlp(layer + "shared_mlp.input_linear.weight",
                                    layer + "shared_mlp.output_linear.weight", y);
          if (!experts) continue;
          const std::string moe = layer + "block_sparse_moe.";
          const Vec logits = r.MatVec(moe + "router.layer.weight", y);
          const std::vector<size_t> best = HybridReference::Largest(logits, 2);
          const double sum = std::exp(logits[best[0]]) + std::exp(logits[best[1]]);
          for (const size_t e : best) {
            const Vec both = r.SliceVec(moe + "input_linear.weight", e, y);
            const Vec up = HybridReference::SiluTimes(Slice(both, 0, 9), Slice(both, 9, 9));
            h = h +
                (0.7 * std::exp(logits[e]) / sum) * r.SliceVec(moe + "output_linear.weight", e, up);
          }
        }
        return h;
      },
      1.5, 1 / 3.0);
}

TEST(Hybrid, Granite) { CheckGranite(/*experts=*/false, /*rope=*/true); }
TEST(Hybrid, GraniteWithExperts) { CheckGranite(/*experts=*/true, /*rope=*/false); }

// Projection biases, a head width of its own, experts at a latent width behind a biased choice.
TEST(Hybrid, NemotronH) {
  constexpr size_t kLayers = 4, kExperts = 6, kLatent = 12, kFf = 14;
  HybridMaker make("backbone.embeddings.weight", "backbone.norm_f.weight");
  const SsmShape ssm = {.norm_groups = 2};
  const AttentionShape attention = {.head_dim = 7, .scale = 1 / std::sqrt(7.0), .rope = {}};
  for (size_t i = 0; i < kLayers; ++i) make.Norm(Layer("backbone.", i) + "norm.weight");
  make.Mamba2("backbone.layers.0.mixer.", ssm, /*bias=*/true);
  make.Attention("backbone.layers.1.mixer.", attention);
  make.Linear("backbone.layers.2.mixer.up_proj", kTinyFf, kWidth, true);
  make.Linear("backbone.layers.2.mixer.down_proj", kWidth, kTinyFf, true);
  const std::string moe = "backbone.layers.3.mixer.";
  make.Matrix(moe + "gate.weight", kExperts, kWidth);
  make.Vector(moe + "gate.e_score_correction_bias", kExperts);
  make.Matrix(moe + "fc1_latent_proj.weight", kLatent, kWidth);
  make.Matrix(moe + "fc2_latent_proj.weight", kWidth, kLatent);
  make.Stack(moe + "experts.up_proj", kExperts, kFf, kLatent);
  make.Stack(moe + "experts.down_proj", kExperts, kLatent, kFf);
  make.Matrix(moe + "shared_experts.up_proj.weight", kTinyFf, kWidth);
  make.Matrix(moe + "shared_experts.down_proj.weight", kWidth, kTinyFf);
  make.out.config = TinyConfig(
      "nemotron_h", 99,
      "\"hybrid_override_pattern\": \"M*-E\", \"num_attention_heads\": 4, "
      "\"num_key_value_heads\": 2, \"attention_head_dim\": 7, \"mamba_head_dim\": 10, "
      "\"mamba_n_groups\": 2, \"ssm_state_size\": 6, \"time_step_min\": 0.5, "
      "\"moe_latent_size\": 12, \"routed_scaling_factor\": 2.5, \"num_experts_per_tok\": 3");
  const auto relu2 = [](Vec x) {
    for (double& value : x) value = value > 0 ? value * value : 0;
    return x;
  };
  ExpectEquals(make.out, "backbone.norm_f.weight", [&](HybridReference& r, Vec h) {
    const auto normed = [&](size_t i) { return r.Norm(Layer("backbone.", i) + "norm.weight", h); };
    h = h + r.Mamba2("backbone.layers.0.mixer.", ssm,
                     r.MatVec("backbone.layers.0.mixer.in_proj.weight", normed(0)));
    h = h + r.Attention("backbone.layers.1.mixer.", attention, normed(1));
    const Vec up = r.MatVec("backbone.layers.2.mixer.up_proj.weight", normed(2));
    h = h + r.MatVec("backbone.layers.2.mixer.down_proj.weight", relu2(up));

    const Vec x = normed(3), bias = r.Values(moe + "gate.e_score_correction_bias");
    Vec score = r.MatVec(moe + "gate.weight", x);
    for (double& s : score) s = 1 / (1 + std::exp(-s));
    const Vec latent = r.MatVec(moe + "fc1_latent_proj.weight", x);
    Vec sum(kLatent, 0.0);
    double total = 0;
    for (const size_t e : HybridReference::Largest(score + bias, 3)) {
      sum = sum + score[e] * r.SliceVec(moe + "experts.down_proj", e,
                                        relu2(r.SliceVec(moe + "experts.up_proj", e, latent)));
      total += score[e];
    }
    const Vec shared = r.MatVec(moe + "shared_experts.up_proj.weight", x);
    return h + r.MatVec(moe + "fc2_latent_proj.weight", (2.5 / total) * sum) +
           r.MatVec(moe + "shared_experts.down_proj.weight", relu2(shared));
  });
}

// Three uses of two shared blocks, with and without rotation and adapters of attention.
void CheckZamba2(bool everything) {
  constexpr size_t kLayers = 5, kRank = 3;
  HybridMaker make("model.embed_tokens.weight", "model.final_layernorm.weight");
  const SsmShape ssm = {.norm_groups = 2};
  const AttentionShape attention = {.n_kv_heads = 4,
                                    .head_dim = 10,
                                    .scale = 1 / std::sqrt(5.0),
                                    .rope = everything ? PlainRope(5, 10000) : Vec()};
  const auto uses = [](size_t i) { return i == 0 ? SIZE_MAX : i == 1 ? 0 : i - 2; };  // of layer i
  const auto hybrid = [&](size_t i) { return i == 1 || i >= 3; };
  for (size_t i = 0; i < kLayers; ++i) {
    const std::string layer = Layer("model.", i);
    if (!hybrid(i)) {
      make.Norm(layer + "input_layernorm.weight");
      make.Mamba2(layer + "mamba.", ssm);
      continue;
    }
    make.Norm(layer + "mamba_decoder.input_layernorm.weight");
    make.Mamba2(layer + "mamba_decoder.mamba.", ssm);
    make.Matrix(layer + "linear.weight", kWidth, kWidth);
    const size_t use = uses(i);
    const std::string shared = Layer("model.", use % 2 == 0 ? 1 : 3) + "shared_transformer.";
    if (use < 2) {
      make.Norm(shared + "input_layernorm.weight", 2 * kWidth);
      make.Norm(shared + "pre_ff_layernorm.weight");
      make.Attention(shared + "self_attn.", attention, 2 * kWidth);
      make.Matrix(shared + "feed_forward.gate_up_proj.weight", 2 * kTinyFf, kWidth);
      make.Matrix(shared + "feed_forward.down_proj.weight", kWidth, kTinyFf);
    }
    const std::string number = std::to_string(use) + ".";
    const std::string mlp = shared + "feed_forward.gate_up_proj_adapter_list." + number;
    make.Matrix(mlp + "0.weight", kRank, kWidth);
    make.Matrix(mlp + "1.weight", 2 * kTinyFf, kRank);
    for (const std::string part : {"q", "k", "v"}) {
      if (!everything) break;
      const std::string list = shared + "self_attn.linear_" + part + "_adapter_list." + number;
      make.Matrix(list + "0.weight", kRank, 2 * kWidth);
      make.Matrix(list + "1.weight", 40, kRank);
    }
  }
  make.out.config = TinyConfig(
      "zamba2", kLayers,
      "\"layers_block_type\": [\"mamba\", \"hybrid\", \"mamba\", \"hybrid\", \"hybrid\"], "
      "\"num_mem_blocks\": 2, \"num_attention_heads\": 4, \"mamba_headdim\": 10, "
      "\"mamba_ngroups\": 2, \"mamba_d_state\": 6, \"time_step_min\": 0.5, \"use_mem_rope\": " +
          std::string(everything ? "true" : "false") +
          ", \"use_shared_attention_adapter\": " + (everything ? "true" : "false"));
  ExpectEquals(make.out, "model.final_layernorm.weight", [&](HybridReference& r, Vec h) {
    const Vec e = h;
    for (size_t i = 0; i < kLayers; ++i) {
      const std::string layer = Layer("model.", i);
      if (!hybrid(i)) {
        h = h + r.Mamba2(layer + "mamba.", ssm,
                         r.MatVec(layer + "mamba.in_proj.weight",
                                  r.Norm(layer + "input_layernorm.weight", h)));
        continue;
      }
      const std::string shared = Layer("model.", uses(i) % 2 == 0 ? 1 : 3) + "shared_transformer.";
      const std::string number = std::to_string(uses(i)) + ".";
      Vec both = h;
      both.insert(both.end(), e.begin(), e.end());
      both = r.Norm(shared + "input_layernorm.weight", both);
      const auto project = [&](const std::string& part) {
        const Vec y = r.MatVec(shared + "self_attn." + part + "_proj.weight", both);
        const std::string list = shared + "self_attn.linear_" + part + "_adapter_list." + number;
        if (!everything) return y;
        return y + r.MatVec(list + "1.weight", r.MatVec(list + "0.weight", both));
      };
      Vec x = r.MatVec(shared + "self_attn.o_proj.weight",
                       r.Attend(layer, attention, project("q"), project("k"), project("v")));
      x = r.Norm(shared + "pre_ff_layernorm.weight", x);
      const std::string list = shared + "feed_forward.gate_up_proj_adapter_list." + number;
      const Vec gate_up = r.MatVec(shared + "feed_forward.gate_up_proj.weight", x) +
                          r.MatVec(list + "1.weight", r.MatVec(list + "0.weight", x));
      Vec product(kTinyFf);
      for (size_t k = 0; k < kTinyFf; ++k) {
        product[k] =
            0.5 * gate_up[k] * (1 + std::erf(gate_up[k] / std::sqrt(2.0))) * gate_up[kTinyFf + k];
      }
      x = r.MatVec(layer + "linear.weight",
                   r.MatVec(shared + "feed_forward.down_proj.weight", product));
      h = h + r.Mamba2(layer + "mamba_decoder.mamba.", ssm,
                       r.MatVec(layer + "mamba_decoder.mamba.in_proj.weight",
                                r.Norm(layer + "mamba_decoder.input_layernorm.weight", h + x)));
    }
    return h;
  });
}

TEST(Hybrid, Zamba2) { CheckZamba2(/*everything=*/false); }
TEST(Hybrid, Zamba2RotationAndAttentionAdapters) { CheckZamba2(/*everything=*/true); }

// All multipliers and biases, with the three ways to combine gate and norm.
void CheckFalconH1(bool norm, bool norm_first) {
  constexpr size_t kLayers = 2;
  HybridMaker make("model.embed_tokens.weight", "model.final_layernorm.weight");
  SsmShape ssm = {.norm_groups = norm ? 2u : 0u, .norm_first = norm_first, .dt_max = 0.7};
  ssm.z = 0.9, ssm.x = 0.8, ssm.b = 0.7, ssm.c = 1.3, ssm.dt = 1.2;
  const AttentionShape attention = {
      .scale = 1 / std::sqrt(6.0), .key = 0.6, .rope = PlainRope(3, 1e11)};
  for (size_t i = 0; i < kLayers; ++i) {
    const std::string layer = Layer("model.", i);
    make.Norm(layer + "input_layernorm.weight");
    make.Norm(layer + "pre_ff_layernorm.weight");
    make.Mamba2(layer + "mamba.", ssm, /*bias=*/true);
    make.Attention(layer + "self_attn.", attention, kWidth, /*bias=*/true);
    make.Mlp(layer + "feed_forward.", /*bias=*/true);
  }
  make.out.config = TinyConfig(
      "falcon_h1", kLayers,
      "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 6, "
      "\"rope_theta\": 100000000000.0, \"mamba_d_ssm\": 40, \"mamba_d_head\": 10, "
      "\"mamba_n_groups\": 2, \"mamba_d_state\": 6, \"time_step_limit\": [0.0, 0.7], "
      "\"embedding_multiplier\": 2.5, \"lm_head_multiplier\": 0.4, \"key_multiplier\": 0.6, "
      "\"attention_in_multiplier\": 1.4, \"attention_out_multiplier\": 0.5, "
      "\"ssm_in_multiplier\": 1.25, \"ssm_out_multiplier\": 0.75, "
      "\"ssm_multipliers\": [0.9, 0.8, 0.7, 1.3, 1.2], \"mlp_multipliers\": [0.65, 1.1], "
      "\"mamba_rms_norm\": " +
          std::string(norm ? "true" : "false") +
          ", \"mamba_norm_before_gate\": " + (norm_first ? "true" : "false"));
  ExpectEquals(
      make.out, "model.final_layernorm.weight",
      [&](HybridReference& r, Vec h) {
        for (size_t i = 0; i < kLayers; ++i) {
          const std::string layer = Layer("model.", i);
          const Vec x = r.Norm(layer + "input_layernorm.weight", h);
          const Vec in = r.MatVec(layer + "mamba.in_proj.weight", 1.25 * x);
          h = h + 0.75 * r.Mamba2(layer + "mamba.", ssm, in) +
              0.5 * r.Attention(layer + "self_attn.", attention, 1.4 * x);
          const Vec y = r.Norm(layer + "pre_ff_layernorm.weight", h);
          h = h + 1.1 * r.Mlp(layer + "feed_forward.", y, 0.65);
        }
        return h;
      },
      2.5, 0.4);
}

TEST(Hybrid, FalconH1) { CheckFalconH1(false, true); }
TEST(Hybrid, FalconH1NormThenGate) { CheckFalconH1(true, true); }
TEST(Hybrid, FalconH1GateThenNorm) { CheckFalconH1(true, false); }

// The original package's attention: convolution without activation, an MLP beside it, rotation of
// the leading dimensions.
TEST(Hybrid, OriginalAttention) {
  constexpr size_t kMlp = 9;
  Mamba2Shape shape;
  shape.original = true;
  shape.layers = 1;
  shape.d_model = kWidth;
  shape.vocab = kTinyVocab;
  TinyCheckpoint checkpoint = MakeMamba2(shape);
  WeightMaker make(&checkpoint.weights);
  const AttentionShape attention = {.head_dim = 8, .scale = 0.25, .rope = PlainRope(2, 50)};
  constexpr size_t kQ = 4 * 8, kKv = 2 * 8, kQkv = kQ + 2 * kKv;
  const std::string mixer = "backbone.layers.1.mixer.";
  make.Add("backbone.layers.1.norm.weight", {kWidth}, 1, 0.5);
  make.Matrix(mixer + "in_proj.weight", kQkv + 2 * kMlp, kWidth);
  make.Add(mixer + "in_proj.bias", {kQkv + 2 * kMlp}, 0, 0.5);
  make.Add(mixer + "conv1d.weight", {kQkv, 1, 3}, 0, 1);
  make.Add(mixer + "conv1d.bias", {kQkv}, 0, 0.5);
  make.Matrix(mixer + "out_proj.weight", kWidth, kQ + kMlp);
  make.Add(mixer + "out_proj.bias", {kWidth}, 0, 0.5);
  checkpoint.config = OriginalConfig(
      kWidth, 2, kTinyVocab, 0,
      "\"layer\": \"Mamba2\", \"d_state\": 8, \"headdim\": 16}, \"attn_layer_idx\": [1], "
      "\"attn_cfg\": {\"num_heads\": 4, \"num_heads_kv\": 2, \"head_dim\": 8, \"causal\": true, "
      "\"softmax_scale\": 0.25, \"d_conv\": 3, \"mlp_dim\": 18, \"rotary_emb_dim\": 4, "
      "\"rotary_emb_base\": 50");
  const SsmShape ssm = {.n_heads = 4, .head_dim = 16, .n_groups = 1, .d_state = 8, .d_conv = 4};
  ExpectEquals(checkpoint, "backbone.norm_f.weight", [&](HybridReference& r, Vec h) {
    const std::string first = "backbone.layers.0.";
    h = h + r.Mamba2(first + "mixer.", ssm,
                     r.MatVec(first + "mixer.in_proj.weight", r.Norm(first + "norm.weight", h)));
    const Vec in = r.MatVec(mixer + "in_proj.weight", r.Norm("backbone.layers.1.norm.weight", h));
    const Vec qkv = r.Convolve(mixer, Slice(in, 0, kQkv));
    Vec context = r.Attend(mixer, attention, Slice(qkv, 0, kQ), Slice(qkv, kQ, kKv),
                           Slice(qkv, kQ + kKv, kKv));
    const Vec mlp = HybridReference::SiluTimes(Slice(in, kQkv + kMlp, kMlp), Slice(in, kQkv, kMlp));
    context.insert(context.end(), mlp.begin(), mlp.end());
    return h + r.MatVec(mixer + "out_proj.weight", context);
  });
}

// x and B of one head serve two, before or after the convolution; a Llama layer between.
void CheckMambaInLlama(bool repeat_before_conv) {
  constexpr size_t kLayers = 2, kN = 6, kHeads = 4, kXb = 2 * kN, kInner = kHeads * kN;
  HybridMaker make("model.embed_tokens.weight", "model.norm.weight");
  const AttentionShape attention = {
      .head_dim = 6, .scale = 1 / std::sqrt(6.0), .rope = PlainRope(3, 10000)};
  const SsmShape ssm = {.n_heads = kHeads,
                        .head_dim = kN,
                        .n_groups = kHeads,
                        .d_state = kN,
                        .d_conv = 3,
                        .norm_groups = kHeads};
  for (size_t i = 0; i < kLayers; ++i) {
    const std::string layer = Layer("model.", i);
    make.Norm(layer + "input_layernorm.weight");
    make.Norm(layer + "post_attention_layernorm.weight");
    make.Attention(layer + "self_attn.", attention);  // in layer 0 a leftover
    make.Mlp(layer + "mlp.");
  }
  const std::string mixer = "model.layers.0.mamba.";
  make.Matrix(mixer + "in_proj.weight", 2 * kInner + 2 * kXb + kHeads, kWidth);
  make.Matrix(mixer + "out_proj.weight", kWidth, kInner);
  make.Recurrence(mixer, ssm, repeat_before_conv ? 3 * kInner : kInner + 2 * kXb);
  make.out.config =
      TinyConfig("llama", kLayers,
                 "\"rms_norm_eps\": 1e-5, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
                 "\"head_dim\": 6");
  make.out.mamba_config =
      "{\"d_model\": 20, \"d_inner\": 24, \"d_xb\": 12, \"attn_layers\": [1], \"ssm_cfg\": "
      "{\"expand\": 1, \"ngroups\": 4, \"d_state\": 6, \"repeat_kv_before_conv\": " +
      std::string(repeat_before_conv ? "true" : "false") + "}}";
  const auto repeat = [](const Vec& x) {  // every head of kN twice
    Vec out;
    for (size_t head = 0; head < x.size(); head += kN) {
      for (int times = 0; times < 2; ++times) {
        out.insert(out.end(), x.begin() + static_cast<std::ptrdiff_t>(head),
                   x.begin() + static_cast<std::ptrdiff_t>(head + kN));
      }
    }
    return out;
  };
  // x and B, both repeated, then C.
  const auto repeat_xb = [&](Vec xbc) {
    Vec out = repeat(Slice(xbc, 0, 2 * kXb));
    out.insert(out.end(), xbc.begin() + 2 * kXb, xbc.end());
    return out;
  };
  ExpectEquals(make.out, "model.norm.weight", [&](HybridReference& r, Vec h) {
    for (size_t i = 0; i < kLayers; ++i) {
      const std::string layer = Layer("model.", i);
      const Vec x = r.Norm(layer + "input_layernorm.weight", h);
      if (i == 1) {
        h = h + r.Attention(layer + "self_attn.", attention, x);
      } else {
        const Vec in = r.MatVec(mixer + "in_proj.weight", x);
        const Vec xbc = Slice(in, kInner, 2 * kXb + kInner);
        const Vec z = Slice(in, 0, kInner), dt = Slice(in, 2 * kInner + 2 * kXb, kHeads);
        h = h + (repeat_before_conv ? r.Ssm(mixer, ssm, z, repeat_xb(xbc), dt)
                                    : r.Ssm(mixer, ssm, z, xbc, dt, repeat_xb));
      }
      h = h + r.Mlp(layer + "mlp.", r.Norm(layer + "post_attention_layernorm.weight", h));
    }
    return h;
  });
}

TEST(Hybrid, MambaInLlama) { CheckMambaInLlama(/*repeat_before_conv=*/false); }
TEST(Hybrid, MambaInLlamaRepeatedBeforeTheConvolution) { CheckMambaInLlama(true); }

}  // namespace
}  // namespace adder::test
