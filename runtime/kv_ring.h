// The keys and values that an attention layer keeps of a session's latest tokens.
//
// Token `position` of a text has slot position % slots, for ever. Per key/value head the ring holds
// two matrices as the kernels of its type read them (quant/qtypes.h):
//   keys    [slots, key_dim]    a row per slot: scores = keys * query
//   values  [head_dim, slots]   a column per slot: output = values * weights
// kInt8 adds a scale per slot to each: f32 [slots] of keys, then of values.
// The ring has room for kStoredAhead tokens more than the context, so that many tokens of a prompt
// can be stored and then attend together.
//
// A ring is never cleared: slots that were not written hold anything.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/qtypes.h"

namespace adder {

inline constexpr size_t kStoredAhead = 16;  // tokens that may be stored before they attend

enum class KvType { kF16, kF32, kInt8 };

// What a session asks for.
enum class KvChoice {
  kDefault,  // f16, or f32 where the weights are: then nothing is rounded
  kInt8,     // 8-bit values with a scale per token and head
};

constexpr size_t ElementBytes(KvType type) {
  return type == KvType::kF32 ? 4 : type == KvType::kF16 ? 2 : 1;
}

struct KvShape {
  size_t n_kv_heads = 0;  // 0: no ring
  size_t head_dim = 0;    // padded to kLanes
  KvType type = KvType::kF16;

  // Columns of the matrix of keys.
  size_t key_dim() const { return type == KvType::kInt8 ? RoundUp(head_dim, kGroup) : head_dim; }
  size_t Slots(size_t context) const {
    return RoundUp(context + kStoredAhead, type == KvType::kInt8 ? kGroup : kLanes);
  }
  // What a slot takes in the ring, of all heads together.
  size_t SlotBytes() const {
    return n_kv_heads * ((key_dim() + head_dim) * ElementBytes(type) + ScaleBytes());
  }
  size_t Bytes(size_t context) const { return Slots(context) * SlotBytes(); }
  // What KvRing::ReadToken gives.
  size_t TokenBytes() const {
    return n_kv_heads * (2 * head_dim * ElementBytes(type) + ScaleBytes());
  }

 private:
  size_t ScaleBytes() const { return type == KvType::kInt8 ? 2 * sizeof(float) : 0; }
};

class KvRing {
 public:
  // `memory` is [shape.Bytes(context)], aligned to kAlignment, and anything at the start.
  KvRing(const KvShape& shape, size_t context, void* memory)
      : shape_(shape), slots_(shape.Slots(context)), memory_(static_cast<uint8_t*>(memory)) {}

  const KvShape& shape() const { return shape_; }
  size_t slots() const { return slots_; }

  // Element is uint16_t, float or int8_t, as the type says.
  template <typename Element>
  Element* keys(size_t head) const {
    return reinterpret_cast<Element*>(memory_ + head * HeadBytes());
  }
  template <typename Element>
  Element* values(size_t head) const {
    return keys<Element>(head) + slots_ * shape_.key_dim();
  }
  // [slots] of kInt8.
  float* key_scales(size_t head) const {
    return reinterpret_cast<float*>(values<int8_t>(head) + slots_ * shape_.head_dim);
  }
  float* value_scales(size_t head) const { return key_scales(head) + slots_; }

  // Stores a key and a value [head_dim]. Sums over values also run over slots with weight 0, so
  // values must be finite: a value that is not goes in as 0 with a key of NaN. So the fault reaches
  // the tokens that see the slot, and no others.
  void Store(size_t head, size_t slot, const float* key, const float* value) const;

  // The token in `slot` as bytes that do not depend on slots, and back, bit by bit; also into a
  // ring of the same shape with another number of slots. bytes [TokenBytes()], not aligned, is per
  // head
  //   key elements [head_dim], scale of the key, value elements [head_dim], scale of the value
  // in the element type of the ring, little-endian; scales, f32, with kInt8 only.
  void ReadToken(size_t slot, uint8_t* bytes) const;
  void WriteToken(size_t slot, const uint8_t* bytes) const;

 private:
  size_t HeadBytes() const { return slots_ * shape_.SlotBytes() / shape_.n_kv_heads; }
  // Calls visit(pointer, bytes) for everything of a token, in the order above.
  template <typename Visitor>
  void VisitToken(size_t slot, const Visitor& visit) const;
  template <typename Element, typename Visitor>
  void VisitElements(size_t slot, const Visitor& visit) const;

  KvShape shape_;
  size_t slots_;
  uint8_t* memory_;
};

}  // namespace adder
