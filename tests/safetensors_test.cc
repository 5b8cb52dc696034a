#include "converter/safetensors.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "tests/safetensors_writer.h"

namespace adder {
namespace {

using test::BytesOf;
using test::RawTensor;
using test::SafetensorsFile;

Result<TensorMap> Parse(const std::vector<uint8_t>& file) {
  std::vector<std::string> warnings;
  return ParseSafetensors(file, "w.safetensors", &warnings);
}

std::vector<float> Values(const RawTensor& raw) {
  const auto file = SafetensorsFile({{"w", raw}});
  const auto tensors = Parse(file);
  EXPECT_TRUE(tensors.ok()) << tensors.status().message();
  const auto values = ReadF32(tensors->at("w"), "w");
  EXPECT_TRUE(values.ok()) << values.status().message();
  return values.ok() ? *values : std::vector<float>();
}

std::string ReadError(const RawTensor& raw) {
  const auto file = SafetensorsFile({{"w", raw}});
  const auto tensors = Parse(file);
  EXPECT_TRUE(tensors.ok()) << tensors.status().message();
  const auto values = ReadF32(tensors->at("w"), "w");
  EXPECT_FALSE(values.ok());
  return values.status().message();
}

TEST(Safetensors, ReadsEveryType) {
  EXPECT_EQ(Values({"F32", {2}, BytesOf<float>({1.5f, -0.0f})}), (std::vector<float>{1.5f, 0}));
  EXPECT_EQ(Values({"BF16", {2}, BytesOf<uint16_t>({0x3fc0, 0xc000})}),
            (std::vector<float>{1.5f, -2}));
  EXPECT_EQ(Values({"F64", {2}, BytesOf<double>({0.1, -1e-300})}), (std::vector<float>{0.1f, 0}));
  EXPECT_EQ(Values({"I32", {2}, BytesOf<int32_t>({-5, 1 << 24})}),
            (std::vector<float>{-5, 16777216}));
  EXPECT_EQ(Values({"I64", {1, 2}, BytesOf<int64_t>({-5, 50280})}),
            (std::vector<float>{-5, 50280}));
  EXPECT_EQ(Values({"F32", {}, BytesOf<float>({3})}), std::vector<float>{3});
  EXPECT_TRUE(Values({"F32", {0, 4}, {}}).empty());
}

// Every finite half against its definition in doubles.
TEST(Safetensors, ReadsEveryHalfExactly) {
  std::vector<uint16_t> halves;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    if ((bits >> 10 & 31) != 31) halves.push_back(static_cast<uint16_t>(bits));
  }
  const auto values = Values({"F16", {halves.size()}, BytesOf(halves)});
  ASSERT_EQ(values.size(), halves.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const int exponent = halves[i] >> 10 & 31, mantissa = halves[i] & 1023;
    const double size =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    const auto expected = static_cast<float>(halves[i] & 0x8000 ? -size : size);
    ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(expected)) << halves[i];
  }
}

TEST(Safetensors, ReadsUnalignedData) {
  std::string header = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  for (int pad = 0; pad < 8; ++pad) {
    const auto file = SafetensorsFile(header, BytesOf<float>({1, 2}));
    const auto tensors = Parse(file);
    ASSERT_TRUE(tensors.ok()) << tensors.status().message();
    EXPECT_EQ(*ReadF32(tensors->at("w"), "w"), (std::vector<float>{1, 2}));
    header += ' ';
  }
}

TEST(Safetensors, RefusesValuesThatAreNoWeights) {
  const float inf = std::numeric_limits<float>::infinity(), nan = NAN;
  struct Row {
    RawTensor tensor;
    const char* message;
  };
  const Row rows[] = {
      {{"F32", {3}, BytesOf<float>({0, nan, inf})}, "w: element 1 of 3 (F32)"},
      {{"F32", {2}, BytesOf<float>({0, -inf})}, "w: element 1 of 2 (F32)"},
      {{"F16", {1}, BytesOf<uint16_t>({0x7c00})}, "w: element 0 of 1 (F16)"},
      {{"F16", {1}, BytesOf<uint16_t>({0xfe01})}, "w: element 0 of 1 (F16)"},
      {{"BF16", {1}, BytesOf<uint16_t>({0x7fc0})}, "w: element 0 of 1 (BF16)"},
      {{"F64", {2}, BytesOf<double>({1, 1e39})}, "w: element 1 of 2 (F64)"},
      {{"I32", {2}, BytesOf<int32_t>({1, -(1 << 24) - 1})}, "w: element 1 of 2 (I32)"},
      {{"I64", {1}, BytesOf<int64_t>({std::numeric_limits<int64_t>::min()})},
       "w: element 0 of 1 (I64)"},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(ReadError(row.tensor),
              std::string("w.safetensors: ") + row.message + " is NaN, infinite or beyond float32");
  }
}

// One tensor of 8 bytes with the given entry, and 8 bytes of data.
std::vector<uint8_t> OneEntry(const std::string& entry) {
  return SafetensorsFile("{\"w\":" + entry + "}", std::vector<uint8_t>(8));
}

TEST(Safetensors, Refuses) {
  const std::string a = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  const auto two = [&a](const std::string& offsets) {
    return SafetensorsFile(
        "{" + a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":)" + offsets + "}}",
        std::vector<uint8_t>(12));
  };
  const auto length = [](uint64_t value) {
    auto file = SafetensorsFile("{}", {});
    std::memcpy(file.data(), &value, 8);
    return file;
  };
  struct Row {
    const char* name;
    std::vector<uint8_t> file;
    const char* message;
  };
  const Row rows[] = {
      {"empty", {}, "0 bytes, a safetensors file has at least 8"},
      {"7 bytes", std::vector<uint8_t>(7), "7 bytes"},
      {"no header", length(0), "a header of 0 bytes, expected 1 to 100000000"},
      {"header too large", length(100'000'001), "a header of 100000001 bytes, expected 1 to"},
      {"header of 2^64 - 1", length(~uint64_t{0}), "a header of 18446744073709551615 bytes"},
      {"header beyond the file", length(3), "a header of 3 bytes in a file of 10 bytes"},
      {"space before {", SafetensorsFile(" {}", {}), "begins with byte 0x20"},
      {"array", SafetensorsFile("[]", {}), "begins with byte 0x5b"},
      {"byte order mark", SafetensorsFile("\xef\xbb\xbf{}", {}), "begins with byte 0xef"},
      {"text behind the JSON", SafetensorsFile("{} x", {}), "not valid JSON at byte 3"},
      {"NUL behind the JSON", SafetensorsFile(std::string_view("{}\0", 3), {}), "a NUL byte"},
      {"cut JSON", SafetensorsFile("{\"w\":", {}), "not valid JSON at byte 5"},
      {"invalid UTF-8", SafetensorsFile("{\"\xff\":1}", {}), "not valid JSON"},
      {"a special float", SafetensorsFile(R"({"__float__":"NaN"})", {}), "the header is nan"},
      {"tensor given twice", SafetensorsFile("{" + a + "," + a + "}", std::vector<uint8_t>(4)),
       "\"a\" is given twice"},
      {"field given twice",
       OneEntry(R"({"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]})"),
       "\"dtype\" is given twice"},
      {"metadata is no object", SafetensorsFile(R"({"__metadata__":[]})", {}),
       "__metadata__ is an array of 0"},
      {"metadata holds a number", SafetensorsFile(R"({"__metadata__":{"k":1}})", {}),
       "__metadata__ k is 1, expected a string"},
      {"entry is no object", OneEntry("7"), "w: is 7, expected an object"},
      {"no dtype", OneEntry(R"({"shape":[2],"data_offsets":[0,8]})"), "w: no dtype"},
      {"no shape", OneEntry(R"({"dtype":"F32","data_offsets":[0,8]})"), "w: no shape"},
      {"no offsets", OneEntry(R"({"dtype":"F32","shape":[2]})"), "w: no data_offsets"},
      {"extra field", OneEntry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})"),
       "w: unexpected field \"x\""},
      {"dtype is a number", OneEntry(R"({"dtype":1,"shape":[2],"data_offsets":[0,8]})"),
       "w: dtype is 1, expected a string"},
      {"unknown dtype", OneEntry(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})"),
       "w: unknown dtype \"F33\""},
      {"shape is a number", OneEntry(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})"),
       "w: shape is 2, expected an array"},
      {"9 axes", OneEntry(R"({"dtype":"F32","shape":[2,1,1,1,1,1,1,1,1],"data_offsets":[0,8]})"),
       "w: shape is an array of 9, expected an array of at most 8"},
      {"negative size", OneEntry(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"),
       "w: shape holds -2, expected an integer from 0 to 2^53"},
      {"fractional size", OneEntry(R"({"dtype":"F32","shape":[2.5],"data_offsets":[0,8]})"),
       "w: shape holds 2.5"},
      {"size written as a float", OneEntry(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"),
       "w: shape holds 2"},
      {"size above 2^53",
       OneEntry(R"({"dtype":"F32","shape":[9007199254740993],"data_offsets":[0,8]})"),
       "w: shape holds 9007199254740993"},
      {"size above 2^64",
       OneEntry(R"({"dtype":"F32","shape":[36893488147419103232],"data_offsets":[0,8]})"),
       "w: shape holds 3.68"},
      {"size is a string", OneEntry(R"({"dtype":"F32","shape":["2"],"data_offsets":[0,8]})"),
       "w: shape holds \"2\""},
      {"product wraps to 8 bytes",
       OneEntry(R"({"dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,8]})"),
       "w: the shape's product exceeds 64 bits"},
      {"element size wraps",
       OneEntry(R"({"dtype":"F64","shape":[2305843009,1000000001],"data_offsets":[0,8]})"),
       "w: the shape's product exceeds 64 bits"},
      {"one offset", OneEntry(R"({"dtype":"F32","shape":[2],"data_offsets":[8]})"),
       "w: data_offsets is an array of 1, expected an array of 2"},
      {"offsets are a string", OneEntry(R"({"dtype":"F32","shape":[2],"data_offsets":"0,8"})"),
       "w: data_offsets is \"0,8\""},
      {"negative offset", OneEntry(R"({"dtype":"F32","shape":[2],"data_offsets":[-1,7]})"),
       "w: data_offsets holds -1"},
      {"fractional offset", OneEntry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8.5]})"),
       "w: data_offsets holds 8.5"},
      {"begin after end", OneEntry(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"),
       "w: begins at 8, after its end 0"},
      {"end beyond the file", OneEntry(R"({"dtype":"F32","shape":[2],"data_offsets":[1,9]})"),
       "w: ends at byte 9 of 8 bytes of data"},
      {"too few bytes", OneEntry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})"),
       "w: 4 bytes, its shape and dtype need 8"},
      {"too many bytes", OneEntry(R"({"dtype":"F16","shape":[2],"data_offsets":[0,8]})"),
       "w: 8 bytes, its shape and dtype need 4"},
      {"overlap", two("[2,6]"), "b begins at byte 2, inside a which ends at 4"},
      {"the same range", two("[0,4]"), "b begins at byte 0, inside a which ends at 4"},
      {"hole", two("[8,12]"), "a hole before b: bytes 4 to 8 belong to no tensor"},
      {"hole at the start",
       SafetensorsFile(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                       std::vector<uint8_t>(8)),
       "a hole before b: bytes 0 to 4"},
  };
  for (const Row& row : rows) {
    const auto tensors = Parse(row.file);
    ASSERT_FALSE(tensors.ok()) << row.name;
    const Status status = tensors.status();
    EXPECT_EQ(status.code(), Code::kCorruptFile) << row.name;
    EXPECT_TRUE(status.message().starts_with("w.safetensors")) << status.message();
    EXPECT_NE(status.message().find(row.message), std::string::npos)
        << row.name << ": " << status.message();
  }
}

TEST(Safetensors, NamesTypesItDoesNotRead) {
  for (const char* dtype : {"U8", "BOOL", "F8_E4M3", "F8_E5M2", "I8", "U16", "F4"}) {
    const auto tensors = Parse(
        OneEntry(std::string(R"({"dtype":")") + dtype + R"(","shape":[8],"data_offsets":[0,8]})"));
    ASSERT_FALSE(tensors.ok());
    EXPECT_EQ(tensors.status().code(), Code::kUnsupported);
    EXPECT_EQ(tensors.status().message(),
              std::string("w.safetensors: w: stored as ") + dtype +
                  "; weights are read from F32, F16, BF16, F64, I32 and I64");
  }
}

TEST(Safetensors, BytesBehindTheLastTensorAreAWarning) {
  auto file = SafetensorsFile({{"w", test::FloatTensor({1}, {1})}});
  file.push_back(0);
  std::vector<std::string> warnings;
  ASSERT_TRUE(ParseSafetensors(file, "w.safetensors", &warnings).ok());
  EXPECT_EQ(warnings,
            std::vector<std::string>{"w.safetensors: 1 bytes after the last tensor are ignored"});
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const auto file = SafetensorsFile({{"a", test::FloatTensor({2, 2}, {1, 2, 3, 4})},
                                     {"b", {"BF16", {3}, BytesOf<uint16_t>({1, 2, 3})}}});
  ASSERT_TRUE(Parse(file).ok());
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(Parse({file.begin(), file.begin() + static_cast<ptrdiff_t>(size)}).ok()) << size;
  }
}

TEST(Safetensors, FlippedBytesNeverReachOutside) {
  const auto file = SafetensorsFile({{"a", test::FloatTensor({2, 2}, {1, 2, 3, 4})},
                                     {"b", {"BF16", {3}, BytesOf<uint16_t>({1, 2, 3})}},
                                     {"c", {"I64", {1}, BytesOf<int64_t>({9})}}});
  std::mt19937 random(7);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<uint8_t> flipped = file;
    for (auto n = random() % 3 + 1; n > 0; --n) {
      flipped[random() % flipped.size()] = static_cast<uint8_t>(random());
    }
    const auto tensors = Parse(flipped);
    if (!tensors.ok()) continue;
    ++accepted;
    for (const auto& [name, tensor] : *tensors) {
      EXPECT_LE(tensor.elements(), flipped.size());
      (void)ReadF32(tensor, name).ok();
    }
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace adder
