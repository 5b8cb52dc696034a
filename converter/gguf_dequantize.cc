#include "converter/gguf_dequantize.h"

#include "converter/little_endian.h"

namespace adder {
namespace {

int Low(uint8_t byte) { return byte & 15; }
int High(uint8_t byte) { return byte >> 4; }

float Affine(float scale, int q, float offset) { return scale * static_cast<float>(q) + offset; }
float Scaled(float scale, int q) { return scale * static_cast<float>(q); }

// Elements 0..15 lie in the low halves of 16 bytes, 16..31 in the high halves.

// f16 d, 16 bytes.
void Q4_0(const uint8_t* p, float* out) {
  const float d = LoadHalf(p);
  for (size_t i = 0; i < 16; ++i) {
    out[i] = Scaled(d, Low(p[2 + i]) - 8);
    out[i + 16] = Scaled(d, High(p[2 + i]) - 8);
  }
}

// f16 d, f16 m, 16 bytes.
void Q4_1(const uint8_t* p, float* out) {
  const float d = LoadHalf(p), m = LoadHalf(p + 2);
  for (size_t i = 0; i < 16; ++i) {
    out[i] = Affine(d, Low(p[4 + i]), m);
    out[i + 16] = Affine(d, High(p[4 + i]), m);
  }
}

// The fifth bit of element i is bit i of a 32-bit word.
int FifthBit(uint32_t bits, size_t i) { return static_cast<int>(bits >> i & 1) << 4; }

// f16 d, u32 fifth bits, 16 bytes.
void Q5_0(const uint8_t* p, float* out) {
  const float d = LoadHalf(p);
  const auto bits = LoadLittle<uint32_t>(p + 2);
  for (size_t i = 0; i < 16; ++i) {
    out[i] = Scaled(d, (Low(p[6 + i]) | FifthBit(bits, i)) - 16);
    out[i + 16] = Scaled(d, (High(p[6 + i]) | FifthBit(bits, i + 16)) - 16);
  }
}

// f16 d, f16 m, u32 fifth bits, 16 bytes.
void Q5_1(const uint8_t* p, float* out) {
  const float d = LoadHalf(p), m = LoadHalf(p + 2);
  const auto bits = LoadLittle<uint32_t>(p + 4);
  for (size_t i = 0; i < 16; ++i) {
    out[i] = Affine(d, Low(p[8 + i]) | FifthBit(bits, i), m);
    out[i + 16] = Affine(d, High(p[8 + i]) | FifthBit(bits, i + 16), m);
  }
}

// f16 d, 32 signed bytes.
void Q8_0(const uint8_t* p, float* out) {
  const float d = LoadHalf(p);
  for (size_t i = 0; i < 32; ++i) out[i] = Scaled(d, static_cast<int8_t>(p[2 + i]));
}

// Scale and minimum of each 32 elements of Q4_K and Q5_K: 6 bits each, in 12 bytes. Those of runs
// 0..3 are the low 6 bits of bytes 0..3 and 4..7; of runs 4..7 the low 4 bits are in bytes 8..11,
// the high 2 bits on top of bytes 0..3 and 4..7.
struct ScaleAndMin {
  int scale, min;
};
ScaleAndMin SixBits(const uint8_t* p, size_t run) {
  if (run < 4) return {p[run] & 63, p[run + 4] & 63};
  return {Low(p[run + 4]) | p[run - 4] >> 6 << 4, High(p[run + 4]) | p[run] >> 6 << 4};
}

// f16 d, f16 m, 12 bytes of scales; `high` 32 bytes with bit r of byte i for element i of run r
// (Q5_K only); `low` 4 x 32 bytes, low halves for an even run and high halves for the odd one
// behind it.
void Q45_K(const uint8_t* p, const uint8_t* high, const uint8_t* low, float* out) {
  const float d = LoadHalf(p), m = LoadHalf(p + 2);
  for (size_t run = 0; run < 8; ++run) {
    const ScaleAndMin six = SixBits(p + 4, run);
    const float scale = Scaled(d, six.scale), offset = -Scaled(m, six.min);
    const uint8_t* q = low + run / 2 * 32;
    for (size_t i = 0; i < 32; ++i) {
      const int fifth = high == nullptr ? 0 : (high[i] >> run & 1) << 4;
      out[run * 32 + i] = Affine(scale, (run % 2 == 0 ? Low(q[i]) : High(q[i])) | fifth, offset);
    }
  }
}

void Q4_K(const uint8_t* p, float* out) { Q45_K(p, nullptr, p + 16, out); }
void Q5_K(const uint8_t* p, float* out) { Q45_K(p, p + 16, p + 48, out); }

// 128 bytes of low halves, 64 bytes of upper 2 bits, 16 signed scales, f16 d. Each half of the
// block is 4 runs of 32: runs 0 and 1 are the low halves of 64 bytes, 2 and 3 their high halves;
// the upper bits of run r lie at bit 2 r of 32 bytes.
void Q6_K(const uint8_t* p, float* out) {
  const float d = LoadHalf(p + 208);
  for (size_t run = 0; run < 8; ++run) {
    const size_t half = run / 4, r = run % 4;
    const uint8_t* low = p + half * 64 + r % 2 * 32;
    const uint8_t* upper = p + 128 + half * 32;
    for (size_t i = 0; i < 32; ++i) {
      const int q = (r < 2 ? Low(low[i]) : High(low[i])) | (upper[i] >> (2 * r) & 3) << 4;
      const auto scale = static_cast<int8_t>(p[192 + run * 2 + i / 16]);
      out[run * 32 + i] = Scaled(Scaled(d, scale), q - 32);
    }
  }
}

template <void (*kBlock)(const uint8_t*, float*)>
void EveryBlock(SourceType type, const uint8_t* p, std::span<float> out) {
  const size_t elements = SourceTypeElements(type), bytes = SourceTypeBytes(type);
  for (size_t at = 0; at < out.size(); at += elements, p += bytes) kBlock(p, &out[at]);
}

}  // namespace

void DequantizeBlocks(SourceType type, const uint8_t* blocks, std::span<float> out) {
  switch (type) {
    case SourceType::kQ4_0:
      return EveryBlock<Q4_0>(type, blocks, out);
    case SourceType::kQ4_1:
      return EveryBlock<Q4_1>(type, blocks, out);
    case SourceType::kQ5_0:
      return EveryBlock<Q5_0>(type, blocks, out);
    case SourceType::kQ5_1:
      return EveryBlock<Q5_1>(type, blocks, out);
    case SourceType::kQ8_0:
      return EveryBlock<Q8_0>(type, blocks, out);
    case SourceType::kQ4_K:
      return EveryBlock<Q4_K>(type, blocks, out);
    case SourceType::kQ5_K:
      return EveryBlock<Q5_K>(type, blocks, out);
    case SourceType::kQ6_K:
      return EveryBlock<Q6_K>(type, blocks, out);
    default:  // not stored in blocks
      return;
  }
}

}  // namespace adder
