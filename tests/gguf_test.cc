// The GGUF reader: every type of value and tensor, and whatever a file can do wrong.
#include "converter/gguf.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "converter/gguf_checkpoint.h"
#include "tests/gguf_changes.h"
#include "tests/gguf_writer.h"
#include "tests/safetensors_writer.h"

namespace adder::test {
namespace {

using Raws = std::string;

Result<Gguf> Parse(const std::vector<uint8_t>& file) { return ParseGguf(file, "w.gguf"); }

std::string Refusal(const std::vector<uint8_t>& file) {
  const auto gguf = Parse(file);
  return gguf.ok() ? "accepted" : gguf.status().message();
}

// A mamba model of nothing, with a tokenizer of a few pieces.
GgufWriter SmallFile() {
  GgufWriter file;
  file.Add("general.architecture", "mamba").Add("general.alignment", uint32_t{32});
  for (const char* key : {"embedding_length", "block_count", "ssm.inner_size", "ssm.state_size",
                          "ssm.conv_kernel", "ssm.time_step_rank"}) {
    file.Add(std::string("mamba.") + key, uint32_t{1});
  }
  file.Add("mamba.attention.layer_norm_rms_epsilon", 1e-5f).Add("mamba.ssm.dt_b_c_rms", true);
  file.Add("tokenizer.ggml.model", "gpt2").Add("tokenizer.ggml.pre", "gpt-2");
  file.Add("tokenizer.ggml.tokens", std::vector<std::string>{"<s>", "a", "b", "ab"});
  file.Numbers<int32_t>("tokenizer.ggml.token_type", GgufType::kI32, {3, 1, 1, 1});
  file.Add("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
  file.Add("tokenizer.ggml.bos_token_id", uint32_t{0});
  file.Add("tokenizer.chat_template", "{{ x }}");
  file.Tensor("token_embd.weight", {2, 4}, 0, std::vector<uint8_t>(32));
  file.Tensor("blk.0.ssm_a", {32}, 8, std::vector<uint8_t>(34));
  return file;
}

TEST(Gguf, ReadsEveryTypeOfValue) {
  const auto raw = [](auto value) { return GgufWriter::Raw(value); };
  GgufWriter file;
  file.Value("u8", GgufType::kU8, raw(uint8_t{200})).Value("i8", GgufType::kI8, raw(int8_t{-3}));
  file.Value("u16", GgufType::kU16, raw(uint16_t{60000}));
  file.Value("i16", GgufType::kI16, raw(int16_t{-300}));
  file.Value("u32", GgufType::kU32, raw(uint32_t{4000000000}));
  file.Value("i32", GgufType::kI32, raw(int32_t{-5}));
  file.Value("u64", GgufType::kU64, raw(uint64_t{1} << 62));
  file.Value("i64", GgufType::kI64, raw(std::numeric_limits<int64_t>::min()));
  file.Value("huge", GgufType::kU64, raw(~uint64_t{0}));
  file.Value("f64", GgufType::kF64, raw(0.1)).Add("f32", 0.5f).Add("yes", true).Add("no", false);
  file.Add("text", "caf\xC3\xA9").Add("bad text", "\xff");
  file.Add("texts", std::vector<std::string>{"a", "", "bc"});
  file.Add("bad texts", std::vector<std::string>{"a", "\xff"});
  file.Numbers<uint8_t>("bytes", GgufType::kU8, {1, 255});
  file.Numbers<float>("floats", GgufType::kF32, {1.5f, -2});
  for (const uint32_t version : {2u, 3u}) {
    file.version = version;
    const auto bytes = file.File();
    const auto gguf = Parse(bytes);
    ASSERT_TRUE(gguf.ok()) << gguf.status().message();
    const GgufMetadata& m = gguf->metadata;
    EXPECT_EQ(*m.Int("u8", {}), 200);
    EXPECT_EQ(*m.Int("i8", {}), -3);
    EXPECT_EQ(*m.Int("u16", {}), 60000);
    EXPECT_EQ(*m.Int("i16", {}), -300);
    EXPECT_EQ(*m.Int("u32", {}), 4000000000);
    EXPECT_EQ(*m.Int("i32", {}), -5);
    EXPECT_EQ(*m.Int("u64", {}), int64_t{1} << 62);
    EXPECT_EQ(*m.Int("i64", {}), std::numeric_limits<int64_t>::min());
    EXPECT_EQ(*m.Double("f64", {}), 0.1);
    EXPECT_EQ(*m.Double("f32", {}), 0.5);
    EXPECT_TRUE(*m.Bool("yes", {}));
    EXPECT_FALSE(*m.Bool("no", {}));
    EXPECT_EQ(*m.String("text", {}), "caf\xC3\xA9");
    EXPECT_EQ(*m.Strings("texts"), (std::vector<std::string_view>{"a", "", "bc"}));
    EXPECT_EQ(*m.Ints("bytes"), (std::vector<int64_t>{1, 255}));
    EXPECT_EQ(*m.Floats("floats"), (std::vector<float>{1.5f, -2}));
    EXPECT_EQ(*m.Int("absent", 7), 7);
    EXPECT_TRUE(m.Strings("absent")->empty());

    EXPECT_EQ(m.Int("absent", {}).status().message(), "w.gguf: no metadata absent");
    EXPECT_EQ(m.Int("huge", {}).status().message(),
              "w.gguf: huge is UINT64, expected an integer below 2^63");
    EXPECT_EQ(m.Int("yes", {}).status().message(),
              "w.gguf: yes is BOOL, expected an integer below 2^63");
    EXPECT_EQ(m.Int("bytes", 1).status().message(),
              "w.gguf: bytes is an array of UINT8, expected an integer below 2^63");
    EXPECT_EQ(m.String("u8", {}).status().message(), "w.gguf: u8 is UINT8, expected a STRING");
    EXPECT_EQ(m.String("bad text", {}).status().message(),
              "w.gguf: bad text is not valid UTF-8 at byte 0 of 1");
    EXPECT_EQ(m.Strings("bad texts").status().message(),
              "w.gguf: bad texts: element 1 is not valid UTF-8");
    EXPECT_EQ(m.Strings("text").status().message(), "w.gguf: text is STRING, expected an array");
    EXPECT_EQ(m.Strings("bytes").status().message(),
              "w.gguf: bytes is an array of UINT8, expected an array of STRING");
    EXPECT_EQ(m.Ints("floats").status().message(),
              "w.gguf: floats is an array of FLOAT32, expected an array of integers");
    EXPECT_EQ(m.Floats("bytes").status().message(),
              "w.gguf: bytes is an array of UINT8, expected an array of FLOAT32");
  }
}

TEST(Gguf, ReadsTensors) {
  GgufWriter file;
  file.Tensor("a", {3, 2}, 0, BytesOf<float>({1, 2, 3, 4, 5, 6}));
  file.Tensor("b", {2}, 1, BytesOf<uint16_t>({0x3e00, 0xc000}));
  file.Tensor("c", {2, 1, 1, 1}, 30, BytesOf<uint16_t>({0x3fc0, 0xc000}));
  file.Tensor("d", {1}, 28, BytesOf<double>({0.5}));
  const auto bytes = file.File();
  const auto gguf = Parse(bytes);
  ASSERT_TRUE(gguf.ok()) << gguf.status().message();
  const auto values = [&](const char* name) { return *ReadF32(gguf->tensors.at(name), name); };
  EXPECT_EQ(gguf->tensors.at("a").shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(values("a"), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(values("b"), (std::vector<float>{1.5f, -2}));
  EXPECT_EQ(gguf->tensors.at("c").shape, (std::vector<uint64_t>{1, 1, 1, 2}));
  EXPECT_EQ(values("c"), (std::vector<float>{1.5f, -2}));
  EXPECT_EQ(values("d"), std::vector<float>{0.5f});
}

// Experts lie one behind the other, and so do their blocks.
TEST(Gguf, SlicesBlocks) {
  std::vector<uint8_t> blocks(3 * 2 * 34);  // Q8_0: a scale of 1, then 32 integers
  for (size_t i = 0; i < 6; ++i) {
    blocks[i * 34 + 1] = 0x3c;
    std::fill_n(blocks.begin() + static_cast<std::ptrdiff_t>(i * 34 + 2), 32, uint8_t(10 + i));
  }
  const auto bytes = GgufWriter().Tensor("w", {32, 2, 3}, 8, blocks).File();
  const auto gguf = Parse(bytes);
  ASSERT_TRUE(gguf.ok()) << gguf.status().message();
  for (uint64_t i = 0; i < 3; ++i) {
    const SourceTensor slice = gguf->tensors.at("w").Slice(i);
    EXPECT_EQ(slice.shape, (std::vector<uint64_t>{2, 32}));
    std::vector<float> expected(64, static_cast<float>(10 + 2 * i));
    std::fill(expected.begin() + 32, expected.end(), static_cast<float>(11 + 2 * i));
    EXPECT_EQ(*ReadF32(slice, "w"), expected);
  }
}

TEST(Gguf, PutsPairedRowsBack) {
  SourceTensor tensor;
  tensor.shape = {8, 2};
  const std::vector<float> stored = {0, 1, 20, 21, 10, 11, 30, 31, 40, 41, 60, 61, 50, 51, 70, 71};
  const auto bytes = BytesOf(stored);
  tensor.data = bytes.data();
  EXPECT_EQ(*ReadF32(tensor, "q"), stored);
  tensor.paired_heads = 2;
  EXPECT_EQ(*ReadF32(tensor, "q"),
            (std::vector<float>{0, 1, 10, 11, 20, 21, 30, 31, 40, 41, 50, 51, 60, 61, 70, 71}));
}

TEST(Gguf, AlignsAsTheFileSays) {
  for (const uint32_t alignment : {1u, 8u, 64u, 65536u}) {
    GgufWriter file;
    file.alignment = alignment;
    file.Add("general.alignment", alignment);
    file.Tensor("a", {1}, 0, BytesOf<float>({1})).Tensor("b", {1}, 0, BytesOf<float>({2}));
    const auto bytes = file.File();
    const auto gguf = Parse(bytes);
    ASSERT_TRUE(gguf.ok()) << gguf.status().message();
    EXPECT_EQ(*ReadF32(gguf->tensors.at("b"), "b"), std::vector<float>{2});
  }
}

// A scale that is NaN or infinite is found in the values that it makes.
TEST(Gguf, RefusesBlocksThatAreNoWeights) {
  std::vector<uint8_t> block(34, 1);
  block[0] = 0, block[1] = 0x7c;
  GgufWriter file;
  file.Tensor("w", {32}, 8, block);
  const auto bytes = file.File();
  const auto gguf = Parse(bytes);
  ASSERT_TRUE(gguf.ok());
  EXPECT_EQ(ReadF32(gguf->tensors.at("w"), "w").status().message(),
            "w.gguf: w: element 0 of 32 (Q8_0) is NaN, infinite or beyond float32");
}

TEST(Gguf, Refuses) {
  const auto version = [](uint32_t number) {
    GgufWriter file;
    file.version = number;
    return file.File();
  };
  const auto tensor = [](std::vector<uint64_t> shape, uint32_t type, uint64_t offset) {
    return GgufWriter().Tensor("w", shape, type, offset).Data(std::string(64, '\0')).File();
  };
  const auto alignment = [](uint32_t value) {
    return GgufWriter().Add("general.alignment", value).File();
  };
  const auto value = [](GgufType type, const Raws& bytes) {
    return GgufWriter().Value("k", type, bytes).File();
  };
  const uint64_t gib = uint64_t{1} << 30, all = ~uint64_t{0};
  struct Row {
    const char* name;
    std::vector<uint8_t> file;
    const char* message;
  };
  const Row rows[] = {
      {"empty", {}, "the file ends inside the header"},
      {"safetensors", SafetensorsFile("{}", {}), "begins with 0x00000002, not with \"GGUF\""},
      {"big-endian", version(0x03000000), "a big-endian GGUF file"},
      {"version 0", version(0), "GGUF version 0, only 2 and 3 are read"},
      {"version 1", version(1), "GGUF version 1, only 2 and 3 are read"},
      {"version 4", version(4), "GGUF version 4, only 2 and 3 are read"},
      {"2^64 - 1 values", GgufWriter().File(0, all), "the file ends inside a metadata key"},
      {"2^64 - 1 tensors", GgufWriter().File(all, 0), "the file ends inside a tensor name"},
      {"key of 1 GiB", value(GgufType::kString, GgufWriter::Raw(gib)),
       "the file ends inside metadata k"},
      {"string of 2^64 - 1", value(GgufType::kString, GgufWriter::Raw(all)),
       "the file ends inside metadata k, 0 of 18446744073709551615 x 1 bytes are left"},
      {"array of 2^61 + 1 doubles",
       GgufWriter().Array("k", GgufType::kF64, (uint64_t{1} << 61) + 1, "12345678").File(),
       "8 of 2305843009213693953 x 8 bytes are left"},
      {"array of 2^64 - 1 strings",
       GgufWriter().Array("k", GgufType::kString, all, GgufWriter::Text("x")).File(),
       "the file ends inside metadata k"},
      {"array of arrays", GgufWriter().Array("k", GgufType::kArray, 1, "").File(),
       "metadata k is an array of arrays"},
      {"value type 13", value(static_cast<GgufType>(13), ""), "has value type 13"},
      {"element type 13", GgufWriter().Array("k", static_cast<GgufType>(13), 0, "").File(),
       "has value type 13"},
      {"bool of 2", value(GgufType::kBool, "\2"), "metadata k is a BOOL of value 2"},
      {"bools of 2", GgufWriter().Array("k", GgufType::kBool, 2, "\1\2").File(),
       "metadata k is a BOOL of value 2"},
      {"empty key", GgufWriter().Add("", true).File(), "a metadata key has 0 bytes"},
      {"long key", GgufWriter().Add(std::string(65536, 'k'), true).File(),
       "a metadata key has 65536 bytes, expected 1 to 65535"},
      {"key given twice", GgufWriter().Add("k", true).Add("k", "x").File(),
       "metadata k is given twice"},
      {"control characters in a key", GgufWriter().Add("\x1b[2J", true).Add("\x1b[2J", true).File(),
       "metadata \\x1b[2J is given twice"},
      {"alignment 0", alignment(0), "general.alignment is 0, expected a power of two up to 65536"},
      {"alignment 24", alignment(24), "general.alignment is 24"},
      {"alignment 2^30", alignment(1u << 30), "general.alignment is 1073741824"},
      {"alignment is a string", GgufWriter().Add("general.alignment", "32").File(),
       "general.alignment is STRING"},
      {"empty tensor name", GgufWriter().Tensor("", {1}, 0, 0).File(), "a tensor name has 0 bytes"},
      {"long tensor name", GgufWriter().Tensor(std::string(65, 'n'), {1}, 0, 0).File(),
       "a tensor name has 65 bytes, expected 1 to 64"},
      {"no dimensions", tensor({}, 0, 0), "w: 0 dimensions, expected 1 to 4"},
      {"5 dimensions", tensor({1, 1, 1, 1, 1}, 0, 0), "w: 5 dimensions"},
      {"zero dimension", tensor({1, 0}, 0, 0), "w: a dimension of size 0"},
      {"wrapped to 0", tensor({uint64_t{1} << 32, uint64_t{1} << 32}, 0, 0),
       "w: the shape's product exceeds 64 bits"},
      {"wrapped to 2", tensor({(uint64_t{1} << 63) + 1, 2}, 0, 0),
       "w: the shape's product exceeds 64 bits"},
      {"wrapped bytes", tensor({uint64_t{1} << 62}, 0, 0),
       "w: the shape's product exceeds 64 bits"},
      {"wrapped bytes of blocks", tensor({all - 31}, 8, 0),
       "w: the shape's product exceeds 64 bits"},
      {"unknown type", tensor({1}, 77, 0), "w: stored as type 77, which is not known"},
      {"removed type", tensor({1}, 4, 0), "w: stored as type 4, which is not known"},
      {"unsupported type", tensor({256}, 16, 0), "w: stored as IQ2_XXS; weights are read from F32"},
      {"Q2_K", tensor({256}, 10, 0), "w: stored as Q2_K; weights"},
      {"part of a block", tensor({48}, 8, 0),
       "w: rows of 48 elements, Q8_0 needs a multiple of 32"},
      {"part of a large block", tensor({128, 2}, 12, 0),
       "w: rows of 128 elements, Q4_K needs a multiple of 256"},
      {"unaligned", tensor({1}, 0, 4), "w: begins at byte 4, not a multiple of the alignment 32"},
      {"offset behind the end", tensor({1}, 0, 96), "w: 4 bytes from byte 96 of 64 bytes of data"},
      {"offset 2^64 - 32", tensor({1}, 0, all - 31), "w: 4 bytes from byte 18446744073709551584"},
      {"end behind the end", tensor({16}, 0, 32), "w: 64 bytes from byte 32 of 64 bytes of data"},
      {"tensor given twice",
       GgufWriter().Tensor("w", {1}, 0, 0).Tensor("w", {1}, 0, 32).Data(Raws(64, '\0')).File(),
       "w: the tensor is given twice"},
      {"overlap",
       GgufWriter().Tensor("a", {9}, 0, 0).Tensor("b", {1}, 0, 32).Data(Raws(64, '\0')).File(),
       "b begins at byte 32, inside a which ends at 36"},
      {"the same data twice",
       GgufWriter().Tensor("a", {1}, 0, 0).Tensor("b", {1}, 0, 0).Data(Raws(64, '\0')).File(),
       "which ends at 4"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const std::string message = Refusal(row.file);
    EXPECT_NE(message.find(row.message), std::string::npos) << message;
  }
}

TEST(Gguf, RefusesEveryTruncation) {
  const auto file = SmallFile().File();
  ASSERT_TRUE(Parse(file).ok()) << Refusal(file);
  for (size_t size = 0; size < file.size(); ++size) {
    // In memory of its own, so that a sanitizer sees a read behind the end.
    const std::vector<uint8_t> cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
    ASSERT_FALSE(Parse(cut).ok()) << size;
  }
}

// Whatever a changed byte makes of a file, it is read or refused.
TEST(Gguf, SurvivesChangedBytes) {
  const auto file = SmallFile().File();
  ASSERT_TRUE(ReadGguf(file, "w.gguf").ok()) << ReadGguf(file, "w.gguf").status().message();
  ExpectReadOrRefused(file, file.size());
}

std::string CheckpointRefusal(const GgufWriter& file) {
  const auto bytes = file.File();
  const auto checkpoint = ReadGguf(bytes, "w.gguf");
  return checkpoint.ok() ? "accepted" : checkpoint.status().message();
}

TEST(GgufCheckpoint, SaysWhatItCannotRead) {
  EXPECT_EQ(CheckpointRefusal(GgufWriter()), "w.gguf: no metadata general.architecture");
  EXPECT_EQ(
      CheckpointRefusal(GgufWriter().Add("general.architecture", "llama")),
      "w.gguf: architecture \"llama\" is not supported; GGUF files are read of mamba, mamba2, "
      "jamba, granitehybrid, falcon-h1, nemotron_h, nemotron_h_moe");
  EXPECT_EQ(CheckpointRefusal(GgufWriter().Add("general.type", "adapter")),
            "w.gguf: general.type is \"adapter\", only models are converted");
  EXPECT_EQ(CheckpointRefusal(
                GgufWriter().Value("split.count", GgufType::kU16, GgufWriter::Raw(uint16_t{3}))),
            "w.gguf: one of 3 parts; put them together first (llama-gguf-split --merge)");
  EXPECT_EQ(CheckpointRefusal(GgufWriter().Add("general.architecture", "mamba")),
            "w.gguf: no metadata mamba.embedding_length");
}

// Falcon-Mamba calls itself mamba and has a flag.
TEST(GgufCheckpoint, KnowsFalconMambaByItsFlag) {
  const auto bytes = SmallFile().File();
  const auto checkpoint = ReadGguf(bytes, "w.gguf");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(*checkpoint->config.String({"model_type"}, {}), "falcon_mamba");
  EXPECT_NEAR(*checkpoint->config.Double({"mixer_rms_eps"}, {}), 1e-5, 1e-12);
  ASSERT_EQ(checkpoint->warnings.size(), 1u);
  EXPECT_EQ(checkpoint->warnings[0],
            "w.gguf: the epsilon of the dt, B and C norms is not in the file; 1e-05 of the layer "
            "norms is taken");
  EXPECT_EQ(checkpoint->chat_template, "{{ x }}");
  EXPECT_EQ(checkpoint->origin, "GGUF, tensors in F32 Q8_0");
  EXPECT_EQ(*checkpoint->config.Int({"vocab_size"}, {}), 4);
  EXPECT_TRUE(*checkpoint->config.Bool({"tie_word_embeddings"}, false));
  EXPECT_TRUE(checkpoint->tensors.contains("backbone.embeddings.weight"));
  EXPECT_TRUE(checkpoint->tensors.at("backbone.layers.0.mixer.A_log").negative_exp);
}

}  // namespace
}  // namespace adder::test
