#include "converter/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <optional>

#include "tests/safetensors_writer.h"
#include "tests/temp_dir.h"
#include "tests/torch_writer.h"

namespace adder {
namespace {

using test::FloatTensor;
using test::SafetensorsFile;
using test::TempDir;

std::string Golden(const std::string& name) {
  return std::string(ADDER_SOURCE_DIR) + "/tests/golden/" + name;
}

std::vector<uint8_t> Tensors(const std::vector<std::string>& names) {
  std::map<std::string, test::RawTensor> tensors;
  for (const std::string& name : names) tensors[name] = FloatTensor({2}, {1, 2});
  return SafetensorsFile(tensors);
}

std::vector<uint8_t> TorchTensor(const std::string& name) {
  return test::ZipFile(
      {{.name = "m/data.pkl",
        .bytes = test::PickleDict(
            test::PickleText(name) +
            test::PickleTensor(test::PickleStorage("FloatStorage", "0", 2), 0, {2}, {1}))},
       {.name = "m/data/0", .bytes = std::string(8, '\0')}});
}

TEST(Checkpoint, ReadsEveryGoldenFolder) {
  struct Row {
    const char* name;
    size_t tensors;
    SourceType type;  // of the embedding
    const char* embedding;
  };
  const Row rows[] = {
      {"codestral-mamba", 21, SourceType::kF32, "backbone.embeddings.weight"},
      {"falcon-mamba", 23, SourceType::kF32, "backbone.embeddings.weight"},
      {"mamba1", 22, SourceType::kF32, "backbone.embeddings.weight"},
      {"mamba1-bf16", 22, SourceType::kBF16, "backbone.embeddings.weight"},
      {"mamba1-odd", 36, SourceType::kF32, "backbone.embeddings.weight"},
      {"mamba1-original", 23, SourceType::kF32, "backbone.embedding.weight"},
      {"mamba1-sharded", 22, SourceType::kF32, "backbone.embeddings.weight"},
      {"mamba2", 20, SourceType::kF32, "backbone.embeddings.weight"},
      {"mamba2-bf16", 20, SourceType::kBF16, "backbone.embeddings.weight"},
      {"mamba2-original", 21, SourceType::kF32, "backbone.embedding.weight"},
  };
  for (const Row& row : rows) {
    const auto checkpoint = Checkpoint::Open(Golden(row.name));
    ASSERT_TRUE(checkpoint.ok()) << row.name << ": " << checkpoint.status().message();
    EXPECT_TRUE(checkpoint->config()) << row.name;
    EXPECT_EQ(checkpoint->tensors().size(), row.tensors) << row.name;
    EXPECT_TRUE(checkpoint->warnings().empty()) << row.name << ": " << checkpoint->warnings()[0];
    const SourceTensor* embedding = checkpoint->Find(row.embedding);
    ASSERT_NE(embedding, nullptr) << row.name;
    EXPECT_EQ(embedding->type, row.type) << row.name;
    for (const auto& [name, tensor] : checkpoint->tensors()) {
      const auto values = checkpoint->ReadF32(name);
      ASSERT_TRUE(values.ok()) << row.name << ": " << values.status().message();
      EXPECT_EQ(values->size(), tensor.elements()) << row.name << ": " << name;
    }
  }
}

// The larger collection of golden checkpoints, of every family.
TEST(Checkpoint, ReadsTheSharedGoldenFolders) {
  const std::string root = std::string(ADDER_SHARED_DIR) + "/golden";
  std::error_code error;
  size_t folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(root, error)) {
    if (!std::filesystem::exists(entry.path() / "config.json")) continue;
    const auto checkpoint = Checkpoint::Open(entry.path().string());
    ASSERT_TRUE(checkpoint.ok()) << entry << ": " << checkpoint.status().message();
    for (const auto& [name, tensor] : checkpoint->tensors()) {
      const auto values = checkpoint->ReadF32(name);
      EXPECT_TRUE(values.ok()) << entry << ": " << values.status().message();
    }
    ++folders;
  }
  if (folders == 0) GTEST_SKIP() << root << " has no checkpoints on this machine";
}

TEST(Checkpoint, TiedTensorsOfTheOriginalLayoutShareStorage) {
  for (const char* name : {"mamba1-original", "mamba2-original"}) {
    const auto checkpoint = Checkpoint::Open(Golden(name));
    ASSERT_TRUE(checkpoint.ok());
    const SourceTensor* head = checkpoint->Find("lm_head.weight");
    const SourceTensor* embedding = checkpoint->Find("backbone.embedding.weight");
    ASSERT_TRUE(head != nullptr && embedding != nullptr);
    EXPECT_TRUE(head->SameStorage(*embedding));
    EXPECT_FALSE(head->SameStorage(*checkpoint->Find("backbone.norm_f.weight")));
  }
}

// The same weights in one file and in four.
TEST(Checkpoint, ShardsHoldWhatOneFileHolds) {
  const auto whole = Checkpoint::Open(Golden("mamba1"));
  const auto shards = Checkpoint::Open(Golden("mamba1-sharded"));
  ASSERT_TRUE(whole.ok() && shards.ok());
  ASSERT_EQ(whole->tensors().size(), shards->tensors().size());
  for (const auto& [name, tensor] : whole->tensors()) {
    EXPECT_EQ(tensor.shape, shards->Find(name)->shape) << name;
    EXPECT_EQ(*whole->ReadF32(name), *shards->ReadF32(name)) << name;
  }
}

TEST(Checkpoint, OpensSingleFilesAndIndexes) {
  for (const char* path : {"mamba1/model.safetensors", "mamba1-original/pytorch_model.bin",
                           "mamba1-sharded/model.safetensors.index.json"}) {
    const auto checkpoint = Checkpoint::Open(Golden(path));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_TRUE(checkpoint->config()) << path;
    EXPECT_GE(checkpoint->tensors().size(), 22u) << path;
  }
  // The golden values of the recordings are a file like any other.
  const auto golden = Checkpoint::Open(Golden("mamba1/golden.safetensors"));
  ASSERT_TRUE(golden.ok()) << golden.status().message();
  EXPECT_EQ(golden->Find("input_ids")->type, SourceType::kI32);
  EXPECT_TRUE(golden->ReadF32("logits").ok());
}

TEST(Checkpoint, ReadsEveryConfigurationFile) {
  TempDir folder;
  folder.Write("model.safetensors", Tensors({"a"}));
  for (const char* name :
       {"config", "params", "mamba_config", "generation_config", "tokenizer_config"}) {
    folder.Write(name + std::string(".json"), std::string("{\"me\": \"") + name + "\"}");
  }
  folder.Write("tokenizer.json", "{not parsed here");
  folder.Write("chat_template.jinja", "{{ messages }}");
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(*checkpoint->config()->String({"me"}, {}), "config");
  EXPECT_EQ(checkpoint->config()->name(), "config.json");
  EXPECT_EQ(*checkpoint->params()->String({"me"}, {}), "params");
  EXPECT_EQ(*checkpoint->mamba_config()->String({"me"}, {}), "mamba_config");
  EXPECT_EQ(*checkpoint->generation_config()->String({"me"}, {}), "generation_config");
  EXPECT_EQ(*checkpoint->tokenizer_config()->String({"me"}, {}), "tokenizer_config");
  EXPECT_EQ(*checkpoint->tokenizer_json(), "{not parsed here");
  EXPECT_EQ(*checkpoint->chat_template(), "{{ messages }}");

  TempDir bare;
  bare.Write("model.safetensors", Tensors({"a"}));
  const auto nothing = Checkpoint::Open(bare.path());
  ASSERT_TRUE(nothing.ok());
  EXPECT_FALSE(nothing->config() || nothing->params() || nothing->mamba_config() ||
               nothing->generation_config() || nothing->tokenizer_config() ||
               nothing->tokenizer_json() || nothing->chat_template());
}

// Files are added from the least to the most preferred; each takes over.
TEST(Checkpoint, PrefersSafetensorsThenTheirIndex) {
  TempDir folder;
  const auto has = [&folder](const char* tensor) {
    const auto checkpoint = Checkpoint::Open(folder.path());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    return checkpoint.ok() && checkpoint->tensors().size() == 1 &&
           checkpoint->Find(tensor) != nullptr;
  };
  folder.Write("golden.safetensors", Tensors({"ignored"}));
  EXPECT_EQ(Checkpoint::Open(folder.path()).status().message(),
            folder.path() +
                ": no weights; looked for model.safetensors.index.json, model.safetensors, "
                "model-0000K-of-0000N.safetensors, pytorch_model.bin.index.json, "
                "pytorch_model.bin, pytorch_model-0000K-of-0000N.bin, consolidated.safetensors");
  folder.Write("pytorch_model-00001-of-00001.bin", TorchTensor("bin_shard"));
  EXPECT_TRUE(has("bin_shard"));
  folder.Write("pytorch_model.bin", TorchTensor("bin"));
  EXPECT_TRUE(has("bin"));
  folder.Write("other.bin", TorchTensor("bin_index"));
  folder.Write("pytorch_model.bin.index.json", R"({"weight_map": {"bin_index": "other.bin"}})");
  EXPECT_TRUE(has("bin_index"));
  folder.Write("consolidated.safetensors", Tensors({"consolidated"}));
  EXPECT_TRUE(has("consolidated"));
  folder.Write("model-00001-of-00001.safetensors", Tensors({"shard"}));
  EXPECT_TRUE(has("shard"));
  folder.Write("model.safetensors", Tensors({"single"}));
  EXPECT_TRUE(has("single"));
  folder.Write("x.safetensors", Tensors({"indexed"}));
  folder.Write("model.safetensors.index.json", R"({"weight_map": {"indexed": "x.safetensors"}})");
  EXPECT_TRUE(has("indexed"));
}

TEST(Checkpoint, ReadsShardsWithoutAnIndex) {
  TempDir folder;
  folder.Write("model-00001-of-00003.safetensors", Tensors({"a"}));
  folder.Write("model-00003-of-00003.safetensors", Tensors({"c"}));
  folder.Write("model-1-of-2.safetensors", Tensors({"ignored"}));
  EXPECT_EQ(
      Checkpoint::Open(folder.path()).status().message(),
      folder.path() + ": model-00002-of-00003.safetensors is missing (2 of 3 shards are there)");
  folder.Write("model-00002-of-00003.safetensors", Tensors({"b"}));
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(checkpoint->tensors().size(), 3u);
  EXPECT_EQ(checkpoint->Find("b")->file, "model-00002-of-00003.safetensors");
  folder.Write("model-00001-of-00002.safetensors", Tensors({"d"}));
  EXPECT_EQ(Checkpoint::Open(folder.path()).status().message(),
            folder.path() + ": shards of 2 and of 3 files, and no index");
}

TEST(Checkpoint, WarnsOfWhatIsHarmless) {
  TempDir folder;
  auto padded = Tensors({"a", "extra"});
  padded.push_back(0);
  folder.Write("s.safetensors", padded);
  folder.Write("model.safetensors.index.json",
               R"({"metadata": {"total_size": 17}, "weight_map": {"a": "s.safetensors"}})");
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(checkpoint->warnings(),
            (std::vector<std::string>{
                "s.safetensors: 1 bytes after the last tensor are ignored",
                "model.safetensors.index.json: 1 tensors of its files are not listed",
                "model.safetensors.index.json: total_size is 17, the tensors have 16 bytes"}));
}

TEST(Checkpoint, AnIndexLeftBehindByAMergeIsAWarning) {
  TempDir folder;
  folder.Write("model.safetensors", Tensors({"a"}));
  folder.Write("model.safetensors.index.json",
               R"({"weight_map": {"a": "model-00001-of-00002.safetensors"}})");
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(checkpoint->warnings(),
            std::vector<std::string>{"model.safetensors.index.json: none of its files is there; "
                                     "reading model.safetensors"});
}

TEST(Checkpoint, Refuses) {
  struct Row {
    const char* name;
    std::vector<std::pair<std::string, std::string>> files;  // beside a.safetensors
    Code code;
    const char* message;
  };
  const auto file = Tensors({"w"});
  const std::string weights(file.begin(), file.end());
  const std::string index = "model.safetensors.index.json";
  const auto map = [&index](const std::string& name) {
    return std::vector<std::pair<std::string, std::string>>{
        {index, "{\"weight_map\": {\"w\": \"" + name + "\"}}"}};
  };
  const Code corrupt = Code::kCorruptFile, unsupported = Code::kUnsupported;
  const Row rows[] = {
      {"no weights", {}, Code::kNotFound, "no weights; looked for model.safetensors.index.json"},
      {"empty file", {{"model.safetensors", ""}}, corrupt, "the file is empty"},
      {"no tensors",
       {{"model.safetensors", std::string("\2\0\0\0\0\0\0\0{}", 10)}},
       corrupt,
       "the weights hold no tensor"},
      {"index is no JSON", {{index, "{"}}, corrupt, "index.json: not valid JSON"},
      {"index without weight_map", {{index, "{}"}}, corrupt, "index.json: weight_map is missing"},
      {"weight_map is a list",
       {{index, R"({"weight_map": []})"}},
       corrupt,
       "weight_map is an array of 0"},
      {"weight_map is empty",
       {{index, R"({"weight_map": {}})"}},
       corrupt,
       "weight_map is an object of 0"},
      {"file is a number",
       {{index, R"({"weight_map": {"w": 1}})"}},
       corrupt,
       "w: is in 1, expected a file name"},
      {"file in a folder", map("sub/a.safetensors"), corrupt,
       "w: \"sub/a.safetensors\" is not a plain file name"},
      {"absolute file", map("/etc/passwd"), corrupt, "\"/etc/passwd\" is not a plain"},
      {"parent folder", map("../a.safetensors"), corrupt, "is not a plain file name"},
      {"dots", map(".."), corrupt, "is not a plain file name"},
      {"dot", map("."), corrupt, "is not a plain file name"},
      {"backslash", map("..\\\\a.safetensors"), corrupt, "is not a plain file name"},
      {"drive", map("c:\\\\a.safetensors"), corrupt, "is not a plain file name"},
      {"NUL", map("a.safetensors\\u0000.bin"), corrupt, "is not a plain file name"},
      {"no name", map(""), corrupt, "\"\" is not a plain file name"},
      {"missing shard", map("b.safetensors"), Code::kNotFound,
       "b.safetensors, which model.safetensors.index.json names, is missing"},
      {"tensor not in its file",
       {{index, R"({"weight_map": {"w": "a.safetensors", "v": "a.safetensors"}})"}},
       corrupt,
       "v: the index says a.safetensors, which does not have it"},
      {"tensor in another file",
       {{index, R"({"weight_map": {"w": "b.safetensors", "v": "a.safetensors"}})"},
        {"b.safetensors",
         [] {
           const auto v = Tensors({"v"});
           return std::string(v.begin(), v.end());
         }()}},
       corrupt,
       "v: the index says a.safetensors, but another file has it"},
      {"tensor in two files",
       {{"model-00001-of-00002.safetensors", weights},
        {"model-00002-of-00002.safetensors", weights}},
       corrupt,
       "w: the tensor is in model-00001-of-00002.safetensors and in "
       "model-00002-of-00002.safetensors"},
      {"config is no JSON", {{"config.json", "{,}"}}, corrupt, "config.json: not valid JSON"},
      {"config is a list",
       {{"config.json", "[1]"}},
       corrupt,
       "config.json: holds an array of 1, expected an object"},
      {"config is empty", {{"config.json", ""}}, corrupt, "config.json: the file is empty"},
      {"generation config is no JSON",
       {{"generation_config.json", "x"}},
       corrupt,
       "generation_config.json: not valid JSON"},
      {"GPTQ",
       {{"config.json", R"({"quantization_config": {"quant_method": "gptq", "bits": 4}})"}},
       unsupported,
       "config.json: quantization_config: the weights are already quantized (method gptq, 4 bits)"},
      {"FP8",
       {{"config.json", R"({"quantization_config": {"quant_method": "fp8"}})"}},
       unsupported,
       "(method fp8)"},
      {"bitsandbytes",
       {{"config.json", R"({"quantization_config": {"load_in_4bit": true}})"}},
       unsupported,
       "(method bitsandbytes)"},
      {"MLX",
       {{"config.json", R"({"quantization": {"group_size": 64, "bits": 4}})"}},
       unsupported,
       "config.json: quantization: the weights are already quantized (method MLX, 4 bits)"},
      {"nested",
       {{"config.json", R"({"text_config": {"quantization_config": {"quant_method": "awq"}}})"}},
       unsupported,
       "(method awq)"},
      {"no method",
       {{"config.json", R"({"quantization_config": {}})"}},
       unsupported,
       "(method not named)"},
  };
  for (const Row& row : rows) {
    TempDir folder;
    folder.Write("a.safetensors", weights);
    for (const auto& [name, text] : row.files) folder.Write(name, text);
    const auto checkpoint = Checkpoint::Open(folder.path());
    ASSERT_FALSE(checkpoint.ok()) << row.name;
    const Status status = checkpoint.status();
    EXPECT_EQ(status.code(), row.code) << row.name << ": " << status.message();
    EXPECT_NE(status.message().find(row.message), std::string::npos)
        << row.name << ": " << status.message();
  }
}

TEST(Checkpoint, NullQuantizationIsNone) {
  TempDir folder;
  folder.Write("model.safetensors", Tensors({"w"}));
  folder.Write("config.json", R"({"quantization_config": null})");
  EXPECT_TRUE(Checkpoint::Open(folder.path()).ok());
}

TEST(Checkpoint, RefusesOtherPaths) {
  TempDir folder;
  EXPECT_EQ(Checkpoint::Open(folder / "absent").status().code(), Code::kNotFound);
  folder.Write("model.ggml", "GGUF");
  const Status status = Checkpoint::Open(folder / "model.ggml").status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(
      status.message().find("model.ggml: expected a folder, a .safetensors, .bin or .gguf file"),
      std::string::npos);
  // A pipe must not make the reader wait.
  ASSERT_EQ(::mkfifo((folder / "model.safetensors").c_str(), 0600), 0);
  EXPECT_NE(Checkpoint::Open(folder.path()).status().message().find("not a regular file"),
            std::string::npos);
  std::filesystem::create_directory(folder / "config.json");
  EXPECT_NE(Checkpoint::Open(folder.path()).status().message().find("config.json: not a regular"),
            std::string::npos);
}

TEST(Checkpoint, ReadF32NamesWhatIsWrong) {
  TempDir folder;
  folder.Write("model.safetensors",
               SafetensorsFile({{"nan", FloatTensor({2, 2}, {0, 1, 2, NAN})}}));
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_EQ(checkpoint->ReadF32("nan").status().message(),
            "model.safetensors: nan: element 3 of 4 (F32) is NaN, infinite or beyond float32");
  EXPECT_EQ(checkpoint->ReadF32("absent").status().code(), Code::kNotFound);
  EXPECT_EQ(checkpoint->ReadF32("absent").status().message(),
            "the checkpoint has no tensor absent");
}

// The mapping lives as long as any copy of the checkpoint.
TEST(Checkpoint, OutlivesMovesAndCopies) {
  std::optional<Checkpoint> copy;
  {
    auto checkpoint = Checkpoint::Open(Golden("mamba1"));
    ASSERT_TRUE(checkpoint.ok());
    copy = *checkpoint;
  }
  EXPECT_TRUE(copy->ReadF32("backbone.norm_f.weight").ok());
}

// First, last and sum as Python's zipfile, pickle and struct read them.
TEST(Checkpoint, GoldenArchivesHaveTheValuesPythonReads) {
  struct Row {
    const char* folder;
    const char* tensor;
    float first, last;
    double sum;
  };
  const Row rows[] = {
      {"mamba1-original", "lm_head.weight", -1.0679171085357666f, 1.2571446895599365f,
       -84.87693598708483},
      {"mamba1-original", "backbone.layers.0.mixer.A_log", 0.20109884440898895f,
       2.8487565517425537f, 3924.384927207604},
      {"mamba1-original", "backbone.layers.0.mixer.conv1d.weight", 0.09716419130563736f,
       0.015019732527434826f, 4.649441661924357},
      {"mamba2-original", "backbone.embedding.weight", 1.2896308898925781f, -0.7370671629905701f,
       -105.50732893427266},
      {"mamba2-original", "backbone.layers.0.mixer.dt_bias", -3.6056571006774902f,
       -3.8536453247070312f, -25.1459139585495},
  };
  for (const Row& row : rows) {
    const auto checkpoint = Checkpoint::Open(Golden(row.folder));
    ASSERT_TRUE(checkpoint.ok());
    const auto values = checkpoint->ReadF32(row.tensor);
    ASSERT_TRUE(values.ok()) << values.status().message();
    EXPECT_EQ(values->front(), row.first) << row.tensor;
    EXPECT_EQ(values->back(), row.last) << row.tensor;
    double sum = 0;
    for (const float value : *values) sum += double{value};
    EXPECT_DOUBLE_EQ(sum, row.sum) << row.tensor;
  }
}

}  // namespace
}  // namespace adder
