// The ring of keys and values: sizes, what a stored token reads as, and copies between rings.
#include "runtime/kv_ring.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "runtime/scalar_math.h"

namespace adder::test {
namespace {

constexpr KvType kTypes[] = {KvType::kF16, KvType::kF32, KvType::kInt8};

// A ring in memory of its own, filled with `garbage`.
struct Ring {
  Ring(const KvShape& shape, size_t context, int garbage)
      : memory(static_cast<uint8_t*>(std::aligned_alloc(kAlignment, shape.Bytes(context)))),
        ring(shape, context, memory) {
    std::memset(memory, garbage, shape.Bytes(context));
  }
  ~Ring() { std::free(memory); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  std::vector<uint8_t> Token(size_t slot) const {
    std::vector<uint8_t> bytes(ring.shape().TokenBytes());
    ring.ReadToken(slot, bytes.data());
    return bytes;
  }

  uint8_t* memory;
  KvRing ring;
};

std::vector<float> Random(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& x : values) x = normal(random);
  return values;
}

void StoreRandom(const KvRing& ring, size_t slot) {
  const KvShape& shape = ring.shape();
  for (size_t head = 0; head < shape.n_kv_heads; ++head) {
    const unsigned seed = static_cast<unsigned>(2 * (slot * shape.n_kv_heads + head));
    ring.Store(head, slot, Random(shape.head_dim, seed).data(),
               Random(shape.head_dim, seed + 1).data());
  }
}

template <typename T>
T Take(const uint8_t*& bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  bytes += sizeof(T);
  return value;
}

TEST(KvRing, Sizes) {
  const KvShape halves = {2, 48, KvType::kF16}, floats = {2, 48, KvType::kF32};
  const KvShape bytes = {2, 48, KvType::kInt8};
  EXPECT_EQ(halves.SlotBytes(), 2u * 2 * 48 * 2);
  EXPECT_EQ(floats.SlotBytes(), 2u * 2 * 48 * 4);
  EXPECT_EQ(bytes.SlotBytes(), 2u * (64 + 48 + 8));  // keys padded to groups
  EXPECT_EQ(halves.TokenBytes(), halves.SlotBytes());
  EXPECT_EQ(bytes.TokenBytes(), 2u * (2 * 48 + 8));
  EXPECT_EQ(halves.Slots(17), 48u);
  EXPECT_EQ(bytes.Slots(17), 64u);
  EXPECT_EQ(bytes.Bytes(17), 64 * bytes.SlotBytes());
  EXPECT_EQ(KvShape().Bytes(100), 0u);
  EXPECT_EQ(KvShape().TokenBytes(), 0u);
}

TEST(KvRing, ATokenReadsAsItWasStored) {
  for (const KvType type : kTypes) {
    const Ring r({3, 48, type}, 20, 0xff);
    for (size_t slot = 0; slot < r.ring.slots(); ++slot) StoreRandom(r.ring, slot);
    for (size_t slot = 0; slot < r.ring.slots(); ++slot) {
      const std::vector<uint8_t> token = r.Token(slot);
      const uint8_t* bytes = token.data();
      for (unsigned part = 0; part < 6; ++part) {  // key and value of three heads
        const auto expected = Random(48, static_cast<unsigned>(slot) * 6 + part);
        if (type != KvType::kInt8) {
          for (const float x : expected) {
            if (type == KvType::kF32) {
              ASSERT_EQ(Take<float>(bytes), x);
            } else {
              ASSERT_EQ(Take<uint16_t>(bytes), F32ToF16(x));
            }
          }
          continue;
        }
        float largest = 0;
        for (const float x : expected) largest = std::max(largest, std::fabs(x));
        const uint8_t* scale_at = bytes + 48;
        const float scale = Take<float>(scale_at);
        ASSERT_FLOAT_EQ(scale, largest / 127);
        for (const float x : expected) {
          ASSERT_NEAR(static_cast<float>(Take<int8_t>(bytes)) * scale, x, scale * 0.501f);
        }
        bytes = scale_at;
      }
      ASSERT_EQ(bytes, token.data() + token.size());
    }
  }
}

TEST(KvRing, CopiesIntoARingOfAnotherSizeAreExact) {
  for (const KvType type : kTypes) {
    const KvShape shape = {2, 16, type};
    const Ring from(shape, 20, 0x5a), to(shape, 300, 0xa5), rest(shape, 300, 0xa5);
    for (size_t slot = 0; slot < from.ring.slots(); ++slot) StoreRandom(from.ring, slot);
    for (const auto& [source, target] : {std::pair<size_t, size_t>{0, 299}, {31, 5}, {17, 18}}) {
      const std::vector<uint8_t> token = from.Token(source);
      to.ring.WriteToken(target, token.data());
      EXPECT_EQ(to.Token(target), token);
      // Nothing else has changed.
      to.ring.WriteToken(target, rest.Token(target).data());
      EXPECT_EQ(std::memcmp(to.memory, rest.memory, shape.Bytes(300)), 0);
    }
  }
}

TEST(KvRing, AValueThatIsNotFiniteBecomesAFaultOfItsKey) {
  for (const float bad : {INFINITY, -INFINITY, NAN, 1e6f}) {
    for (const KvType type : kTypes) {
      const Ring r({1, 16, type}, 20, 0);
      std::vector<float> key(16, 1.0f), value(16, 2.0f);
      value[3] = bad;
      r.ring.Store(0, 7, key.data(), value.data());
      if (bad == 1e6f) {
        const bool fault = std::isnan(type == KvType::kF16   ? F16ToF32(r.ring.keys<uint16_t>(0)[7])
                                      : type == KvType::kF32 ? r.ring.keys<float>(0)[7]
                                                             : r.ring.key_scales(0)[7]);
        EXPECT_EQ(fault, type == KvType::kF16);  // f32 and int8 hold it
        continue;
      }
      const std::vector<uint8_t> token = r.Token(7);
      if (type == KvType::kInt8) {
        EXPECT_TRUE(std::isnan(r.ring.key_scales(0)[7]));
        EXPECT_EQ(r.ring.value_scales(0)[7], 0.0f);
      } else if (type == KvType::kF32) {
        EXPECT_TRUE(std::isnan(r.ring.keys<float>(0)[7]));
        const uint8_t* bytes = token.data() + 19 * sizeof(float);
        EXPECT_EQ(Take<float>(bytes), 0.0f);
      } else {
        EXPECT_TRUE(std::isnan(F16ToF32(r.ring.keys<uint16_t>(0)[7])));
        const uint8_t* bytes = token.data() + 19 * sizeof(uint16_t);
        EXPECT_EQ(Take<uint16_t>(bytes), 0u);
      }
    }
  }
  // A key that is not finite needs nothing more.
  const Ring r({1, 16, KvType::kInt8}, 20, 0);
  std::vector<float> key(16, 1.0f);
  const std::vector<float> value(16, 2.0f);
  key[15] = NAN;
  r.ring.Store(0, 7, key.data(), value.data());
  EXPECT_TRUE(std::isnan(r.ring.key_scales(0)[7]));
  EXPECT_FLOAT_EQ(r.ring.value_scales(0)[7], 2.0f / 127);
}

}  // namespace
}  // namespace adder::test
