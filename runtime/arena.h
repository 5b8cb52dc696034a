// A bump allocator over one aligned buffer, or over nothing: an arena without a buffer only counts,
// so that the code that lays memory out is also the code that measures it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/qtypes.h"

namespace adder {

class Arena {
 public:
  Arena() = default;  // counts only; Take returns nullptr
  Arena(void* buffer, size_t bytes) : base_(static_cast<uint8_t*>(buffer)), capacity_(bytes) {}

  // Room for `count` values, aligned to kAlignment. The caller has measured before: running out is
  // a fault of the program and gives nullptr.
  template <typename T>
  T* Take(size_t count) {
    const size_t offset = used_;
    used_ += RoundUp(count * sizeof(T), kAlignment);
    return base_ != nullptr && used_ <= capacity_ ? reinterpret_cast<T*>(base_ + offset) : nullptr;
  }

  size_t used() const { return used_; }
  void Rewind(size_t used) { used_ = used; }

 private:
  uint8_t* base_ = nullptr;
  size_t capacity_ = 0;
  size_t used_ = 0;
};

}  // namespace adder
