// What conversion promises: the same weights give the same bytes whatever they come in, every
// option of the published layouts is computed as written, and contradictions are named.
#include <gtest/gtest.h>

#include <functional>

#include "converter/safetensors.h"
#include "runtime/mapped_file.h"
#include "tests/converted_model.h"
#include "tests/equals_reference.h"
#include "tests/tiny_checkpoint.h"

namespace adder::test {
namespace {

namespace fs = std::filesystem;

ConvertOptions OptionsFor(WeightType type) {
  ConvertOptions options;
  options.type = type;
  return options;
}

// The bytes of the model file that `source` becomes.
std::vector<uint8_t> Converted(const std::string& source, WeightType type) {
  const TempDir folder;
  const auto report = Convert(source, folder / "out", OptionsFor(type));
  EXPECT_TRUE(report.ok()) << report.status().message();
  return report.ok() ? ReadFileBytes(folder / "out") : std::vector<uint8_t>();
}
std::vector<uint8_t> Converted(const TinyCheckpoint& checkpoint, WeightType type) {
  const TempDir folder;
  checkpoint.Write(folder);
  return Converted(folder.path(), type);
}

// EXPECT_EQ would print both files.
void ExpectSame(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  EXPECT_FALSE(a.empty());
  EXPECT_TRUE(a == b) << a.size() << " and " << b.size() << " bytes";
}

constexpr WeightType kAllTypes[] = {WeightType::kF32, WeightType::kF16, WeightType::kQ8,
                                    WeightType::kQ4};

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}
std::string ReadText(const std::string& path) {
  const auto bytes = ReadFileBytes(path);
  return {bytes.begin(), bytes.end()};
}

// A copy of a golden folder whose files a test may change.
void CopyGolden(const std::string& name, const TempDir& folder) {
  for (const auto& entry : fs::directory_iterator(GoldenFolder(name))) {
    if (entry.path().filename() != "golden.safetensors") fs::copy(entry.path(), folder.path());
  }
}

TEST(SameBytes, ConvertingTwiceAndFromAnyFolder) {
  for (const WeightType type : kAllTypes) {
    for (const char* name : {"mamba1", "codestral-mamba"}) {
      const TempDir copy;
      CopyGolden(name, copy);
      const auto once = Converted(GoldenFolder(name), type);
      ExpectSame(once, Converted(GoldenFolder(name), type));
      ExpectSame(once, Converted(copy.path(), type));
      ExpectSame(once, Converted(copy / "model.safetensors", type));
    }
  }
}

TEST(SameBytes, EverySpellingOfAnInfiniteLimit) {
  std::vector<uint8_t> first;
  const TinyCheckpoint checkpoint = MakeMamba2({});
  for (const char* limit : {"[0.0, Infinity]", "[0.0, {\"__float__\": \"Infinity\"}]",
                            "[0.0, 1e308]", "[0, 1e30]", "[null, null]", "null"}) {
    TinyCheckpoint spelled = checkpoint;
    spelled.config = Replaced(checkpoint.config, "[0.000000, Infinity]", limit);
    const auto bytes = Converted(spelled, WeightType::kQ8);
    if (first.empty()) first = bytes;
    SCOPED_TRACE(limit);
    ExpectSame(bytes, first);
  }
  TinyCheckpoint finite = checkpoint;
  finite.config = Replaced(checkpoint.config, "[0.000000, Infinity]", "[0.0, 0.5]");
  EXPECT_FALSE(Converted(finite, WeightType::kQ8) == first);
}

TEST(SameBytes, Bf16AndF32CopiesOfOneModel) {
  for (const char* name : {"mamba1-bf16", "mamba2-bf16"}) {
    const TempDir copy;
    CopyGolden(name, copy);
    const auto file = MappedFile::Open(GoldenFolder(name) + "/model.safetensors");
    ASSERT_TRUE(file.ok());
    std::vector<std::string> warnings;
    const auto tensors = ParseSafetensors(file->bytes(), name, &warnings);
    ASSERT_TRUE(tensors.ok());
    std::map<std::string, RawTensor> f32;
    size_t halves = 0;
    for (const auto& [tensor_name, tensor] : *tensors) {
      const auto values = ReadF32(tensor, tensor_name);
      ASSERT_TRUE(values.ok());
      f32[tensor_name] = FloatTensor(tensor.shape, *values);
      if (tensor.type != SourceType::kBF16) continue;
      // Not by ReadF32: the bits, shifted.
      std::vector<uint32_t> bits(tensor.elements());
      for (size_t i = 0; i < bits.size(); ++i) {
        bits[i] = static_cast<uint32_t>(tensor.data[2 * i] | tensor.data[2 * i + 1] << 8) << 16;
      }
      f32[tensor_name].bytes = BytesOf(bits);
      ++halves;
    }
    ASSERT_GT(halves, 10u);
    copy.Write("model.safetensors", SafetensorsFile(f32));
    for (const WeightType type : kAllTypes) {
      ExpectSame(Converted(GoldenFolder(name), type), Converted(copy.path(), type));
    }
  }
}

TEST(SameBytes, ShardedEqualsWhole) {
  for (const WeightType type : kAllTypes) {
    // The shards put together into one file.
    const TempDir whole;
    CopyGolden("mamba1-sharded", whole);
    std::map<std::string, RawTensor> all;
    for (int i = 1; i <= 4; ++i) {
      const std::string shard = "model-0000" + std::to_string(i) + "-of-00004.safetensors";
      const auto file = MappedFile::Open(whole / shard);
      ASSERT_TRUE(file.ok());
      std::vector<std::string> warnings;
      const auto tensors = ParseSafetensors(file->bytes(), shard, &warnings);
      ASSERT_TRUE(tensors.ok());
      for (const auto& [name, tensor] : *tensors) {
        const auto values = ReadF32(tensor, name);
        ASSERT_TRUE(values.ok());
        all[name] = FloatTensor(tensor.shape, *values);
      }
      fs::remove(whole / shard);
    }
    fs::remove(whole / "model.safetensors.index.json");
    whole.Write("model.safetensors", SafetensorsFile(all));
    ExpectSame(Converted(GoldenFolder("mamba1-sharded"), type), Converted(whole.path(), type));
  }
}

// The same mamba_ssm checkpoint under Hugging Face's names and keys.
TEST(SameBytes, OriginalEqualsHuggingFaceLayout) {
  Mamba2Shape shape;
  shape.n_groups = 2;
  TinyCheckpoint hf = MakeMamba2(shape);
  shape.original = true;
  const TinyCheckpoint original = MakeMamba2(shape);
  for (const WeightType type : kAllTypes) {
    ExpectSame(Converted(hf, type), Converted(original, type));
  }
}

// ---- Arithmetic, against the independent implementation in double precision ----

struct NamedMamba2 {
  const char* name;
  std::function<void(Mamba2Shape&)> change;
};

class Mamba2Options : public testing::TestWithParam<NamedMamba2> {};

TEST_P(Mamba2Options, EqualTheReference) {
  Mamba2Shape shape;
  GetParam().change(shape);
  const TinyCheckpoint checkpoint = MakeMamba2(shape);
  ExpectEqualsReference(checkpoint, ReferenceMamba2(checkpoint, shape), shape.layers);
}

const NamedMamba2 kMamba2Options[] = {
    {"Plain", [](Mamba2Shape&) {}},
    {"OddHeads",
     [](Mamba2Shape& s) {
       s.d_model = 44, s.n_heads = 6, s.head_dim = 20, s.n_groups = 2, s.d_state = 5, s.d_conv = 3;
       s.bias = true;
     }},
    {"SixGroupsOfOneHead", [](Mamba2Shape& s) { s.n_heads = s.n_groups = 6, s.head_dim = 7; }},
    {"ManyHeads", [](Mamba2Shape& s) { s.n_heads = 34, s.head_dim = 2, s.n_groups = 2; }},
    {"WideHeads", [](Mamba2Shape& s) { s.n_heads = 2, s.head_dim = 33; }},
    {"NoConvBias", [](Mamba2Shape& s) { s.conv_bias = false; }},
    {"Limits", [](Mamba2Shape& s) { s.dt_min = 0.2, s.dt_max = 0.5; }},
    {"LowerLimitOnly", [](Mamba2Shape& s) { s.dt_min = 0.4; }},
    {"OneTap", [](Mamba2Shape& s) { s.d_conv = 1; }},
    {"EightTaps", [](Mamba2Shape& s) { s.d_conv = 8; }},
    {"Original",
     [](Mamba2Shape& s) { s.original = true, s.n_groups = 2, s.dt_max = 0.3, s.bias = true; }},
    {"NormBeforeGate",
     [](Mamba2Shape& s) {
       s.original = true, s.norm = NormKind::kNormThenGate, s.n_groups = 2, s.head_dim = 20;
     }},
    {"NoNorm", [](Mamba2Shape& s) { s.original = true, s.norm = NormKind::kNone; }},
    {"Mlp", [](Mamba2Shape& s) { s.original = true, s.d_ff = 24; }},
    {"PartOfTheWidth",
     [](Mamba2Shape& s) {
       s.original = true, s.bias = true, s.d_mlp = 23, s.head_dim = 20, s.n_groups = 2;
     }},
    {"PartOfTheWidthBeforeAnMlp",
     [](Mamba2Shape& s) {
       s.original = true, s.d_mlp = 48, s.d_ff = 24, s.norm = NormKind::kNone;
     }},
    {"DOfEveryChannel",
     [](Mamba2Shape& s) { s.original = true, s.d_has_hdim = true, s.head_dim = 20; }}};
INSTANTIATE_TEST_SUITE_P(Tiny, Mamba2Options, testing::ValuesIn(kMamba2Options),
                         [](const auto& test) { return test.param.name; });

TEST(Mamba1Options, EqualTheReference) {
  for (const auto& [bias, conv_bias] : {std::pair(true, true), {false, true}, {true, false}}) {
    for (const size_t d_conv : {1u, 2u, 4u}) {
      Mamba1Shape shape;
      shape.bias = bias;
      shape.conv_bias = conv_bias;
      shape.d_conv = d_conv;
      const TinyCheckpoint checkpoint = MakeMamba1(shape);
      ExpectEqualsReference(checkpoint, ReferenceMamba1(checkpoint, shape), shape.layers);
    }
  }
}

TEST(Mamba1Options, OriginalWithMlpEqualsTheReference) {
  Mamba1Shape shape;
  shape.original = true;
  shape.d_ff = 40;
  const TinyCheckpoint checkpoint = MakeMamba1(shape);
  ExpectEqualsReference(checkpoint, ReferenceMamba1(checkpoint, shape), shape.layers);
}

// ---- Heads and vocabularies ----

struct HeadCase {
  bool tied, present, expect_tied;
  const char* error;  // nullptr: converts
};

TEST(Head, TyingAsWritten) {
  for (const HeadCase& c :
       {HeadCase{true, false, true, nullptr}, HeadCase{true, true, false, nullptr},
        HeadCase{false, true, false, nullptr},
        HeadCase{false, false, false, "lm_head.weight is missing"}}) {
    TinyCheckpoint checkpoint = MakeMamba1({});
    if (!c.present) checkpoint.weights.erase("lm_head.weight");
    if (c.tied) {
      checkpoint.config = Replaced(checkpoint.config, "\"tie_word_embeddings\": false",
                                   "\"tie_word_embeddings\": true");
    }
    const TempDir folder;
    checkpoint.Write(folder);
    const auto report = Convert(folder.path(), folder / "out", OptionsFor(WeightType::kQ8));
    ASSERT_EQ(report.ok(), c.error == nullptr) << report.status().message();
    if (c.error != nullptr) {
      EXPECT_NE(report.status().message().find(c.error), std::string::npos);
      continue;
    }
    EXPECT_EQ(report->config.tied_head, c.expect_tied);
    const auto warned = std::any_of(
        report->warnings.begin(), report->warnings.end(), [](const std::string& warning) {
          return warning.find("differs from the embedding") != std::string::npos;
        });
    EXPECT_EQ(warned, c.tied && c.present);
  }
}

TEST(Head, EqualHeadIsStoredOnce) {
  TinyCheckpoint checkpoint = MakeMamba1({});
  checkpoint.weights["lm_head.weight"] = checkpoint.weights[checkpoint.embedding];
  checkpoint.config = Replaced(checkpoint.config, "\"tie_word_embeddings\": false",
                               "\"tie_word_embeddings\": true");
  TinyCheckpoint absent = checkpoint;
  absent.weights.erase("lm_head.weight");
  ExpectSame(Converted(checkpoint, WeightType::kQ4), Converted(absent, WeightType::kQ4));
}

TEST(Head, RowsBeyondTheVocabularyStay) {
  TinyCheckpoint checkpoint = MakeMamba1({});
  checkpoint.config = Replaced(checkpoint.config, "\"vocab_size\": 40", "\"vocab_size\": 37");
  const TempDir folder;
  checkpoint.Write(folder);
  const auto converted = ConvertedModel(folder.path(), WeightType::kQ8);
  ASSERT_NE(converted->model, nullptr);
  EXPECT_EQ(converted->model->config().vocab_size, 37u);
  EXPECT_EQ(converted->model->config().vocab_rows, 40u);
}

// ---- Contradictions ----

struct Refusal {
  const char* what;
  std::function<void(TinyCheckpoint&)> damage;
  Code code;
  const char* message;
};

std::function<void(TinyCheckpoint&)> Key(const char* from, const char* to) {
  return [=](TinyCheckpoint& c) { c.config = Replaced(c.config, from, to); };
}
std::function<void(TinyCheckpoint&)> AddKey(const char* key) {
  return
      [=](TinyCheckpoint& c) { c.config = Replaced(c.config, "{", std::string("{") + key + ", "); };
}
std::function<void(TinyCheckpoint&)> Without(const char* tensor) {
  return [=](TinyCheckpoint& c) { ASSERT_EQ(c.weights.erase(tensor), 1u) << tensor; };
}
std::function<void(TinyCheckpoint&)> WithValue(const char* tensor, size_t index, float value) {
  return [=](TinyCheckpoint& c) { c.weights.at(tensor).values.at(index) = value; };
}

void ExpectRefusals(const TinyCheckpoint& good, std::initializer_list<Refusal> refusals) {
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.what);
    TinyCheckpoint checkpoint = good;
    refusal.damage(checkpoint);
    const TempDir folder;
    checkpoint.Write(folder);
    folder.Write("out", "was here");
    const auto report = Convert(folder.path(), folder / "out", OptionsFor(WeightType::kQ4));
    EXPECT_FALSE(report.ok());
    EXPECT_EQ(report.status().code(), refusal.code) << report.status().message();
    EXPECT_NE(report.status().message().find(refusal.message), std::string::npos)
        << report.status().message();
    EXPECT_EQ(ReadText(folder / "out"), "was here");
    size_t files = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder.path())) ++files;
    EXPECT_EQ(files, 3u);  // no temporary file stays
  }
}

TEST(Refused, Mamba1) {
  ExpectRefusals(
      MakeMamba1({}),
      {{"vocabulary larger than the rows", Key("\"vocab_size\": 40", "\"vocab_size\": 41"),
        Code::kCorruptFile, "vocab_size is 41, but backbone.embeddings.weight has 40 rows"},
       {"vocabulary of 0", Key("\"vocab_size\": 40", "\"vocab_size\": 0"), Code::kCorruptFile,
        "vocab_size is 0"},
       {"width", Key("\"hidden_size\": 20", "\"hidden_size\": 24"), Code::kCorruptFile,
        "has 20 columns, config.json says hidden_size 24"},
       {"layers", Key("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3"), Code::kCorruptFile,
        "has 2 layers under backbone.layers., config.json says 3"},
       {"fewer layers", Key("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1"),
        Code::kCorruptFile, "says 1"},
       {"family", Key("\"mamba\"", "\"rwkv7\""), Code::kUnsupported, "\"rwkv7\""},
       {"activation", AddKey("\"hidden_act\": \"gelu\""), Code::kUnsupported, "\"gelu\""},
       {"quantized", AddKey("\"quantization_config\": {\"quant_method\": \"gptq\"}"),
        Code::kUnsupported, "gptq"},
       {"missing tensor", Without("backbone.layers.1.mixer.x_proj.weight"), Code::kNotFound,
        "backbone.layers.1.mixer.x_proj.weight"},
       {"missing norm", Without("backbone.norm_f.weight"), Code::kNotFound,
        "backbone.norm_f.weight"},
       {"missing embedding", Without("backbone.embeddings.weight"), Code::kNotFound,
        "backbone.embeddings.weight"},
       {"unknown tensor in a layer",
        [](TinyCheckpoint& c) {
          c.weights["backbone.layers.0.mixer.b_norm.weight"] = {{3}, {1, 1, 1}};
        },
        Code::kUnsupported, "backbone.layers.0.mixer.b_norm.weight"},
       {"shape",
        [](TinyCheckpoint& c) {
          c.weights["backbone.layers.0.mixer.D"] = {{3}, {1, 1, 1}};
        },
        Code::kCorruptFile, "backbone.layers.0.mixer.D has shape [3], expected [50]"},
       {"NaN", WithValue("backbone.layers.1.mixer.out_proj.weight", 5, NAN), Code::kCorruptFile,
        "backbone.layers.1.mixer.out_proj.weight"},
       {"infinity", WithValue("backbone.layers.0.mixer.D", 3, INFINITY), Code::kCorruptFile,
        "backbone.layers.0.mixer.D"},
       {"state matrix that overflows", WithValue("backbone.layers.0.mixer.A_log", 3, 200),
        Code::kCorruptFile, "layers.0.a"},
       {"epsilon", AddKey("\"layer_norm_epsilon\": NaN"), Code::kCorruptFile,
        "layer_norm_epsilon is nan"},
       {"negative epsilon", AddKey("\"layer_norm_epsilon\": -1"), Code::kCorruptFile,
        "layer_norm_epsilon is -1"},
       {"taps",
        [](TinyCheckpoint& c) {
          c.weights["backbone.layers.0.mixer.conv1d.weight"] = {{50, 1, 9},
                                                                std::vector<float>(450, 0.1f)};
        },
        Code::kUnsupported, "d_conv"}});
}

TEST(Refused, Mamba2) {
  Mamba2Shape shape;
  shape.n_groups = 2;
  ExpectRefusals(
      MakeMamba2(shape),
      {{"groups", Key("\"n_groups\": 2", "\"n_groups\": 4"), Code::kCorruptFile, "n_groups 4"},
       {"heads of another width", Key("\"head_dim\": 16", "\"head_dim\": 32"), Code::kCorruptFile,
        "head_dim 32"},
       {"groups of 0", Key("\"n_groups\": 2", "\"n_groups\": 0"), Code::kCorruptFile,
        "n_groups is 0"},
       {"groups that do not divide the heads",
        [](TinyCheckpoint& c) {
          Mamba2Shape s;
          s.n_heads = 5, s.n_groups = 2;
          c = MakeMamba2(s);
        },
        Code::kUnsupported, "n_heads"},
       {"limits", Key("[0.000000, Infinity]", "[0.5, 0.1]"), Code::kCorruptFile, "[0.5, 0.1]"},
       {"limits that are text", Key("[0.000000, Infinity]", "\"none\""), Code::kCorruptFile,
        "time_step_limit"},
       {"limits with NaN", Key("[0.000000, Infinity]", "[0, NaN]"), Code::kCorruptFile,
        "time_step_limit[1]"},
       {"lower limit beyond float", Key("[0.000000, Infinity]", "[1e300, Infinity]"),
        Code::kCorruptFile, "time_step_limit"}});
  shape.original = true;
  ExpectRefusals(MakeMamba2(shape),
                 {{"Mamba-4", Key("\"Mamba2\"", "\"Mamba4\""), Code::kUnsupported, "Mamba4"},
                  {"LayerNorm", AddKey("\"rms_norm\": false"), Code::kUnsupported, "rms_norm"},
                  {"missing MLP", Key("\"d_intermediate\": 0", "\"d_intermediate\": 64"),
                   Code::kNotFound, "layers.0.mlp.fc2.weight is missing"},
                  {"attention", AddKey("\"attn_layer_idx\": [1]"), Code::kCorruptFile,
                   "attn_cfg: num_heads is missing"},
                  {"part of the width",
                   [](TinyCheckpoint& c) {
                     FloatArray& in_proj = c.weights.at("backbone.layers.0.mixer.in_proj.weight");
                     in_proj.shape[0] += 16;
                     in_proj.values.resize(in_proj.shape[0] * in_proj.shape[1], 0.1f);
                   },
                   Code::kCorruptFile, "d_ssm"}});
}

TEST(Refused, FalconMambaWithoutNorms) {
  TinyCheckpoint falcon = MakeMamba1({});
  falcon.config = Replaced(falcon.config, "\"mamba\"", "\"falcon_mamba\"");
  ExpectRefusals(falcon, {{"epsilon of 0", AddKey("\"mixer_rms_eps\": 0"), Code::kCorruptFile,
                           "mixer_rms_eps is 0"}});
}

TEST(Refused, CancelLeavesNothing) {
  const TempDir folder;
  MakeMamba1({}).Write(folder);
  ConvertOptions options;
  int calls = 0;
  options.progress = [&](const ConvertProgress& progress) {
    EXPECT_LE(progress.weights_done, progress.weights_total);
    return ++calls < 5;
  };
  EXPECT_EQ(Convert(folder.path(), folder / "out", options).status().code(), Code::kCancelled);
  EXPECT_EQ(calls, 5);
  EXPECT_FALSE(fs::exists(folder / "out"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 2);
}

}  // namespace
}  // namespace adder::test
