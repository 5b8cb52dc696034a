#include "runtime/kv_ring.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "runtime/math_constants.h"
#include "runtime/scalar_math.h"

namespace adder {
namespace {

static_assert(std::endian::native == std::endian::little, "tokens are read as they lie");

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Where an element of a matrix with `cols` columns lies.
template <typename Element>
size_t At(size_t row, size_t col, size_t cols) {
  if constexpr (std::is_same_v<Element, int8_t>) {
    return row / kLanes * kLanes * cols + col / 4 * (4 * kLanes) + row % kLanes * 4 + col % 4;
  } else {
    return (row / kLanes * cols + col) * kLanes + row % kLanes;
  }
}

inline void Assign(float x, float* element) { *element = x; }
inline void Assign(float x, uint16_t* element) { *element = F32ToF16(x); }
inline bool IsFinite(float x) { return std::fabs(x) <= std::numeric_limits<float>::max(); }
inline bool IsFinite(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

template <typename Element>
void StoreFloats(const KvRing& ring, size_t head, size_t slot, const float* key,
                 const float* value) {
  const size_t head_dim = ring.shape().head_dim, slots = ring.slots();
  Element* keys = ring.keys<Element>(head);
  Element* values = ring.values<Element>(head);
  for (size_t d = 0; d < head_dim; ++d) Assign(key[d], &keys[At<Element>(slot, d, head_dim)]);
  for (size_t d = 0; d < head_dim; ++d) {
    Element* element = &values[At<Element>(d, slot, slots)];
    Assign(value[d], element);
    if (!IsFinite(*element)) {
      *element = Element{};
      Assign(kNan, &keys[At<Element>(slot, 0, head_dim)]);
    }
  }
}

// Quantizes a vector as Kernels::quantize_row does a group; assign(i, value) stores it. Returns the
// scale, NaN where an element is not finite.
template <typename Assigner>
float Quantize(const float* x, size_t n, const Assigner& assign) {
  float largest = 0.0f;
  bool finite = true;
  for (size_t i = 0; i < n; ++i) {
    largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;
    finite = finite && IsFinite(x[i]);
  }
  const bool zero = !finite || largest < kQuantizeMin;
  const float inverse = zero ? 0.0f : 127.0f / largest;
  for (size_t i = 0; i < n; ++i) {
    assign(i, zero ? int8_t{0} : static_cast<int8_t>(RoundToEven(x[i] * inverse)));
  }
  return !finite ? kNan : zero ? 0.0f : largest * (1.0f / 127.0f);
}

// Columns of keys beyond head_dim stay as they are: queries have zeros there.
void StoreInt8(const KvRing& ring, size_t head, size_t slot, const float* key, const float* value) {
  const size_t head_dim = ring.shape().head_dim, key_dim = ring.shape().key_dim();
  int8_t* keys = ring.keys<int8_t>(head);
  int8_t* values = ring.values<int8_t>(head);
  const float key_scale =
      Quantize(key, head_dim, [&](size_t d, int8_t x) { keys[At<int8_t>(slot, d, key_dim)] = x; });
  const float value_scale = Quantize(
      value, head_dim, [&](size_t d, int8_t x) { values[At<int8_t>(d, slot, ring.slots())] = x; });
  const bool finite = IsFinite(value_scale);
  ring.key_scales(head)[slot] = finite ? key_scale : kNan;
  ring.value_scales(head)[slot] = finite ? value_scale : 0.0f;
}

}  // namespace

void KvRing::Store(size_t head, size_t slot, const float* key, const float* value) const {
  switch (shape_.type) {
    case KvType::kF16:
      return StoreFloats<uint16_t>(*this, head, slot, key, value);
    case KvType::kF32:
      return StoreFloats<float>(*this, head, slot, key, value);
    case KvType::kInt8:
      return StoreInt8(*this, head, slot, key, value);
  }
}

template <typename Element, typename Visitor>
void KvRing::VisitElements(size_t slot, const Visitor& visit) const {
  for (size_t head = 0; head < shape_.n_kv_heads; ++head) {
    for (size_t d = 0; d < shape_.head_dim; ++d) {
      visit(&keys<Element>(head)[At<Element>(slot, d, shape_.key_dim())], sizeof(Element));
    }
    if (shape_.type == KvType::kInt8) visit(&key_scales(head)[slot], sizeof(float));
    for (size_t d = 0; d < shape_.head_dim; ++d) {
      visit(&values<Element>(head)[At<Element>(d, slot, slots_)], sizeof(Element));
    }
    if (shape_.type == KvType::kInt8) visit(&value_scales(head)[slot], sizeof(float));
  }
}

template <typename Visitor>
void KvRing::VisitToken(size_t slot, const Visitor& visit) const {
  switch (shape_.type) {
    case KvType::kF16:
      return VisitElements<uint16_t>(slot, visit);
    case KvType::kF32:
      return VisitElements<float>(slot, visit);
    case KvType::kInt8:
      return VisitElements<int8_t>(slot, visit);
  }
}

void KvRing::ReadToken(size_t slot, uint8_t* bytes) const {
  VisitToken(slot, [&](const void* element, size_t size) {
    std::memcpy(bytes, element, size);
    bytes += size;
  });
}

void KvRing::WriteToken(size_t slot, const uint8_t* bytes) const {
  VisitToken(slot, [&](void* element, size_t size) {
    std::memcpy(element, bytes, size);
    bytes += size;
  });
}

}  // namespace adder
