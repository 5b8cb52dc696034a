#include "quant/pack.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "quant/quantize.h"
#include "runtime/scalar_math.h"

namespace adder {
namespace {

constexpr DType kTypes[] = {DType::kMatF32, DType::kMatF16, DType::kMatQ8, DType::kMatQ4};

std::vector<float> Matrix(MatrixShape shape) {
  std::vector<float> m(shape.rows * shape.cols);
  uint32_t state = 12345;
  for (float& v : m) {
    state = state * 1664525u + 1013904223u;
    v = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  }
  return m;
}

std::vector<uint8_t> Pack(DType type, MatrixShape shape, const std::vector<float>& m) {
  std::vector<uint8_t> out(MatrixBytes(type, shape.rows, shape.cols), 0xcd);
  const Status status = PackMatrix(type, shape, m, {}, out);
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

template <typename T>
T At(const std::vector<uint8_t>& bytes, size_t offset) {
  T value;
  std::memcpy(&value, &bytes.at(offset), sizeof value);
  return value;
}

TEST(Pack, F32AndF16LayoutByteForByte) {
  // 18 rows: two row blocks, the second with 14 rows of padding. Weight = 100 row + col.
  constexpr MatrixShape kShape{18, 3};
  std::vector<float> m;
  for (size_t row = 0; row < 18; ++row) {
    for (size_t col = 0; col < 3; ++col) m.push_back(static_cast<float>(100 * row + col));
  }
  const auto f32 = Pack(DType::kMatF32, kShape, m);
  const auto f16 = Pack(DType::kMatF16, kShape, m);
  ASSERT_EQ(f32.size(), 2u * 3 * 16 * 4);
  ASSERT_EQ(f16.size(), 2u * 3 * 16 * 2);
  for (size_t row = 0; row < 32; ++row) {
    for (size_t col = 0; col < 3; ++col) {
      const float expected = row < 18 ? static_cast<float>(100 * row + col) : 0.0f;
      const size_t index = (row / 16 * 3 + col) * 16 + row % 16;
      EXPECT_EQ(At<float>(f32, 4 * index), expected);
      EXPECT_EQ(At<uint16_t>(f16, 2 * index), F32ToF16(expected));
    }
  }
}

TEST(Pack, Q8LayoutByteForByte) {
  // One row of 5 columns: 15 rows and 27 columns of padding.
  const std::vector<float> m = {1.0f, -2.0f, 3.0f, -4.0f, 127.0f};
  const auto packed = Pack(DType::kMatQ8, {1, 5}, m);
  ASSERT_EQ(packed.size(), 16u * 32 + 16 * 4);
  std::vector<uint8_t> expected(packed.size(), 0);
  expected[0] = 1;
  expected[1] = 0xfe;  // -2
  expected[2] = 3;
  expected[3] = 0xfc;        // -4
  expected[64] = 127;        // column 4: the next run of 16 rows x 4 columns
  expected[512 + 2] = 0x80;  // scale 1.0f = 3f800000
  expected[512 + 3] = 0x3f;
  EXPECT_EQ(packed, expected);
}

TEST(Pack, Q8PlacesEveryRowAndColumn) {
  constexpr MatrixShape kShape{19, 37};
  std::vector<float> m(19 * 37);
  for (size_t row = 0; row < 19; ++row) {
    for (size_t col = 0; col < 37; ++col) {
      m[row * 37 + col] = static_cast<float>(static_cast<int>((row * 7 + col * 3) % 251) - 125);
    }
    m[row * 37 + 36] = 127.0f;  // scale 1
  }
  const auto packed = Pack(DType::kMatQ8, kShape, m);
  ASSERT_EQ(packed.size(), 2u * 16 * 64 + 32 * 4);
  for (size_t row = 0; row < 32; ++row) {
    for (size_t col = 0; col < 64; ++col) {
      const size_t offset = row / 16 * 1024 + col / 4 * 64 + row % 16 * 4 + col % 4;
      const int expected = row < 19 && col < 37 ? static_cast<int>(m[row * 37 + col]) : 0;
      EXPECT_EQ(At<int8_t>(packed, offset), expected) << row << " " << col;
    }
    EXPECT_EQ(At<float>(packed, 2048 + 4 * row), row < 19 ? 1.0f : 0.0f);
  }
}

TEST(Pack, Q4LayoutByteForByte) {
  // Row 0 of 33 columns; integers and scale are exact: column c has c % 16 - 8, the group of the
  // last column has that one weight, 8 = -1 * -8.
  std::vector<float> m;
  for (int col = 0; col < 32; ++col) m.push_back(static_cast<float>((col + col / 16) % 16 - 8));
  m.push_back(8.0f);
  const auto packed = Pack(DType::kMatQ4, {1, 33}, m);
  ASSERT_EQ(packed.size(), 2u * 256 + 2 * 16 * 2);
  std::vector<uint8_t> expected(packed.size(), 0x88);
  for (size_t col = 0; col < 16; ++col) {
    // Column c low: nibble c; column c + 16 high: nibble (c + 17) % 16.
    expected[col / 4 * 64 + col % 4] = static_cast<uint8_t>(col | (col + 1) % 16 << 4);
  }
  expected[256] = 0x80;  // nibble 0 is -8
  for (size_t i = 512; i < expected.size(); ++i) expected[i] = 0;
  expected[513] = 0x3c;       // 1.0
  expected[512 + 33] = 0xbc;  // -1.0, group 1
  EXPECT_EQ(packed, expected);
}

TEST(Pack, Q4PlacesEveryRowAndGroup) {
  constexpr MatrixShape kShape{35, 72};
  const std::vector<float> m = Matrix(kShape);
  const auto packed = Pack(DType::kMatQ4, kShape, m);
  const size_t weight_bytes = 3 * 3 * 256;
  ASSERT_EQ(packed.size(), weight_bytes + 3 * 3 * 16 * 2);
  for (size_t row = 0; row < 48; ++row) {
    for (size_t group = 0; group < 3; ++group) {
      GroupQ4 q{0, {}, 0.0};
      float x[kGroup] = {};
      for (size_t k = 0; k < kGroup; ++k) {
        if (row < 35 && group * 32 + k < 72) x[k] = m[row * 72 + group * 32 + k];
      }
      ASSERT_TRUE(QuantizeGroupQ4(x, nullptr, &q));
      const size_t base = (row / 16 * 3 + group) * 256;
      for (size_t k = 0; k < 16; ++k) {
        const uint8_t byte = packed[base + k / 4 * 64 + row % 16 * 4 + k % 4];
        EXPECT_EQ(byte & 15, q.nibbles[k]);
        EXPECT_EQ(byte >> 4, q.nibbles[k + 16]);
      }
      const size_t scale = weight_bytes + ((row / 16 * 3 + group) * 16 + row % 16) * 2;
      EXPECT_EQ(At<uint16_t>(packed, scale), q.scale);
    }
  }
}

TEST(Pack, RoundTripsOddShapes) {
  for (MatrixShape shape : {MatrixShape{131, 72}, {1, 1}, {16, 32}, {17, 5}, {5, 48}, {48, 33}}) {
    const std::vector<float> m = Matrix(shape);
    for (DType type : kTypes) {
      const auto packed = Pack(type, shape, m);
      std::vector<float> back(m.size(), NAN);
      ASSERT_TRUE(UnpackMatrix(type, shape, packed, back).ok());
      for (size_t i = 0; i < m.size(); ++i) {
        float bound = 0.0f;
        if (type == DType::kMatF16) bound = 0x1p-12f;        // |m| < 1
        if (type == DType::kMatQ8) bound = 0.501f / 127.0f;  // half a step
        if (type == DType::kMatQ4) bound = 0.25f;            // clipped extremes
        ASSERT_NEAR(back[i], m[i], bound) << DTypeName(type) << " " << i;
      }
      // What came back is representable: packing it again changes no weight.
      if (!IsQuantized(type)) {
        EXPECT_EQ(Pack(type, shape, back), packed);
      }
    }
  }
}

TEST(Pack, BlocksOneByOneAreTheMatrix) {
  constexpr MatrixShape kShape{131, 72};
  const std::vector<float> m = Matrix(kShape);
  for (DType type : kTypes) {
    const auto whole = Pack(type, kShape, m);
    const size_t weight_bytes = BlockWeightBytes(type, 72), scale_bytes = BlockScaleBytes(type, 72);
    std::vector<uint8_t> weights(9 * weight_bytes), scales(9 * scale_bytes);
    for (size_t block = 9; block-- > 0;) {
      // Unaligned, from a copy that ends where the rows end.
      const size_t rows = std::min<size_t>(16, 131 - block * 16);
      const std::vector<float> part(&m[block * 16 * 72], &m[block * 16 * 72] + rows * 72);
      std::vector<uint8_t> w(weight_bytes + 1), s(scale_bytes + 1);
      ASSERT_TRUE(
          PackRowBlock(type, kShape, block, part.data(), nullptr, &w[1], s.data() + 1).ok());
      std::memcpy(&weights[block * weight_bytes], &w[1], weight_bytes);
      if (scale_bytes > 0) std::memcpy(&scales[block * scale_bytes], &s[1], scale_bytes);
    }
    weights.insert(weights.end(), scales.begin(), scales.end());
    EXPECT_EQ(weights, whole) << DTypeName(type);
  }
}

TEST(Pack, ImportanceReachesTheSearch) {
  constexpr MatrixShape kShape{4, 40};
  const std::vector<float> m = Matrix(kShape);
  std::vector<float> importance(40, 0.001f);
  importance[5] = 1000.0f;
  importance[38] = 1000.0f;
  std::vector<uint8_t> plain(MatrixBytes(DType::kMatQ4, 4, 40)), weighted(plain.size());
  ASSERT_TRUE(PackMatrix(DType::kMatQ4, kShape, m, {}, plain).ok());
  ASSERT_TRUE(PackMatrix(DType::kMatQ4, kShape, m, importance, weighted).ok());
  std::vector<float> a(m.size()), b(m.size());
  ASSERT_TRUE(UnpackMatrix(DType::kMatQ4, kShape, plain, a).ok());
  ASSERT_TRUE(UnpackMatrix(DType::kMatQ4, kShape, weighted, b).ok());
  for (size_t col : {5u, 38u}) {
    float plain_error = 0.0f, weighted_error = 0.0f;
    for (size_t row = 0; row < 4; ++row) {
      plain_error += std::fabs(a[row * 40 + col] - m[row * 40 + col]);
      weighted_error += std::fabs(b[row * 40 + col] - m[row * 40 + col]);
    }
    EXPECT_LT(weighted_error, plain_error * 0.2f) << col;
  }
}

std::string PackError(DType type, MatrixShape shape, const std::vector<float>& m,
                      const std::vector<float>& importance = {}, size_t extra = 0) {
  std::vector<uint8_t> out(MatrixBytes(type, shape.rows, shape.cols) + extra);
  const Status status = PackMatrix(type, shape, m, importance, out);
  return status.message();
}

TEST(Pack, WeightsThatDoNotFitAreNamed) {
  constexpr MatrixShape kShape{20, 70};
  for (float bad : {INFINITY, -INFINITY, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> m = Matrix(kShape);
    m[18 * 70 + 66] = bad;
    for (DType type : kTypes) {
      EXPECT_NE(PackError(type, kShape, m).find("row 18, column 66: weight "), std::string::npos);
    }
  }
  std::vector<float> m = Matrix(kShape);
  m[18 * 70 + 66] = -65519.0f;
  EXPECT_EQ(PackError(DType::kMatF16, kShape, m), "");
  m[18 * 70 + 66] = -65520.0f;
  EXPECT_EQ(PackError(DType::kMatF16, kShape, m),
            "row 18, column 66: weight -65520 exceeds f16, at most 65504");
  m[18 * 70 + 66] = -1e6f;
  EXPECT_EQ(PackError(DType::kMatQ4, kShape, m),
            "row 18, group 2 (columns 64 to 69): weights need a scale above 65504, the largest of "
            "f16");
  EXPECT_EQ(PackError(DType::kMatQ8, kShape, m), "");
  EXPECT_EQ(PackError(DType::kMatF32, kShape, m), "");
}

TEST(Pack, WrongArgumentsAreNamed) {
  const std::vector<float> m(6, 1.0f);
  EXPECT_EQ(PackError(DType::kF32, {2, 3}, m), "type 1 (f32) is not a matrix type");
  EXPECT_EQ(PackError(static_cast<DType>(99), {2, 3}, m), "type 99 (unknown) is not a matrix type");
  EXPECT_EQ(PackError(DType::kMatQ8, {2, 4}, m), "matrix of 6 floats, expected 8");
  EXPECT_EQ(PackError(DType::kMatQ8, {0, 3}, m), "matrix of 0 x 3, expected 1..268435456 each");
  EXPECT_EQ(PackError(DType::kMatQ8, {2, 3}, m, {}, 1), "buffer of 577 bytes, expected 576");
  EXPECT_EQ(PackError(DType::kMatQ4, {2, 3}, m, {1.0f}), "1 importances, expected 3");
  EXPECT_EQ(PackError(DType::kMatQ4, {2, 3}, m, {1.0f, -1.0f, 1.0f}),
            "importance -1 of column 1, expected finite and >= 0");
  EXPECT_NE(PackError(DType::kMatQ4, {2, 3}, m, {1.0f, 1.0f, NAN}), "");
  std::vector<uint8_t> bytes(575);
  std::vector<float> out(6);
  EXPECT_EQ(UnpackMatrix(DType::kMatQ8, {2, 3}, bytes, out).message(), "575 bytes, expected 576");
  EXPECT_FALSE(
      PackRowBlock(DType::kMatF32, {16, 1}, 1, m.data(), nullptr, bytes.data(), nullptr).ok());
  // The shape is judged before anything is multiplied by it.
  constexpr size_t kHuge = std::numeric_limits<size_t>::max() / 2 + 2;
  EXPECT_FALSE(PackMatrix(DType::kMatQ8, {kHuge, 2}, {}, {}, {}).ok());
}

}  // namespace
}  // namespace adder
