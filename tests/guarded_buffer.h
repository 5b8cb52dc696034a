// Memory between two inaccessible pages, so that a kernel that leaves its buffer faults.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "quant/qtypes.h"

namespace adder {

// Which end of the buffer lies at the inaccessible page.
enum class Guard { kBefore, kAfter };

// `count` elements at an address that is a multiple of `alignment`. With Guard::kAfter fewer than
// `alignment` bytes may lie between the end and the page; these and all other bytes around the
// buffer hold a pattern that the destructor checks.
template <typename T>
class GuardedBuffer {
 public:
  GuardedBuffer(size_t count, Guard guard, size_t alignment = kAlignment) : count_(count) {
    page_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t bytes = count * sizeof(T);
    size_ = RoundUp(bytes + 1, page_);
    void* map = mmap(nullptr, size_ + 2 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
      ADD_FAILURE() << "mmap of " << size_ << " bytes failed";
      std::abort();
    }
    begin_ = static_cast<uint8_t*>(map) + page_;
    mprotect(begin_, size_, PROT_READ | PROT_WRITE);
    std::memset(begin_, kPattern, size_);
    offset_ = guard == Guard::kBefore ? 0 : (size_ - bytes) / alignment * alignment;
  }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  ~GuardedBuffer() {
    const size_t end = offset_ + count_ * sizeof(T);
    size_t changed = 0;
    for (size_t i = 0; i < size_; ++i) {
      if (i == offset_) i = end;
      if (i < size_ && begin_[i] != kPattern) ++changed;
    }
    EXPECT_EQ(changed, 0u) << "bytes written around a buffer of " << count_ << " elements";
    munmap(begin_ - page_, size_ + 2 * page_);
  }

  T* data() { return reinterpret_cast<T*>(begin_ + offset_); }
  size_t size() const { return count_; }
  T* begin() { return data(); }
  T* end() { return data() + count_; }
  T& operator[](size_t i) { return data()[i]; }

  // From now on a write to the buffer faults.
  void MakeReadOnly() { mprotect(begin_, size_, PROT_READ); }

 private:
  static constexpr uint8_t kPattern = 0xa5;
  size_t count_, page_, size_, offset_;
  uint8_t* begin_;
};

}  // namespace adder
