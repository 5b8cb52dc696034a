// Memory between two inaccessible pages, so that a kernel that leaves its buffer faults.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "quant/qtypes.h"

namespace adder {

// Which end of the buffer lies at the inaccessible page.
enum class Guard { kBefore, kAfter };

// Pages between two inaccessible ones. Mappings are kept for the next buffer of their size: making
// them costs far more than the kernels under test.
class GuardedPages {
 public:
  // `size` writable bytes, a multiple of the page size.
  static uint8_t* Take(size_t size) {
    std::vector<uint8_t*>& free = Free()[size];
    if (!free.empty()) {
      uint8_t* pages = free.back();
      free.pop_back();
      return pages;
    }
    void* map = mmap(nullptr, size + 2 * PageSize(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) std::abort();  // a test without memory has nothing to say
    uint8_t* pages = static_cast<uint8_t*>(map) + PageSize();
    mprotect(pages, size, PROT_READ | PROT_WRITE);
    return pages;
  }
  static void Return(uint8_t* pages, size_t size) { Free()[size].push_back(pages); }
  static size_t PageSize() {
    static const size_t size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return size;
  }

 private:
  static std::map<size_t, std::vector<uint8_t*>>& Free() {
    static std::map<size_t, std::vector<uint8_t*>> free;
    return free;
  }
};

// `count` elements at an address that is a multiple of `alignment`. With Guard::kAfter fewer than
// `alignment` bytes may lie between the end and the page; these and all other bytes around the
// buffer hold a pattern that the destructor checks.
template <typename T>
class GuardedBuffer {
 public:
  GuardedBuffer(size_t count, Guard guard, size_t alignment = kAlignment)
      : count_(count), size_(RoundUp(count * sizeof(T) + 1, GuardedPages::PageSize())) {
    pages_ = GuardedPages::Take(size_);
    std::memset(pages_, kPattern, size_);
    offset_ = guard == Guard::kBefore ? 0 : (size_ - count * sizeof(T)) / alignment * alignment;
  }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  ~GuardedBuffer() {
    const uint8_t* end = pages_ + offset_ + count_ * sizeof(T);
    const auto changed = [](const uint8_t* from, const uint8_t* to) {
      return to - from - std::count(from, to, kPattern);
    };
    EXPECT_EQ(changed(pages_, pages_ + offset_), 0) << "bytes written before " << count_;
    EXPECT_EQ(changed(end, pages_ + size_), 0) << "bytes written behind " << count_;
    if (read_only_) mprotect(pages_, size_, PROT_READ | PROT_WRITE);
    GuardedPages::Return(pages_, size_);
  }

  T* data() { return reinterpret_cast<T*>(pages_ + offset_); }
  size_t size() const { return count_; }
  T* begin() { return data(); }
  T* end() { return data() + count_; }
  T& operator[](size_t i) { return data()[i]; }

  // From now on a write to the buffer faults.
  void MakeReadOnly() {
    mprotect(pages_, size_, PROT_READ);
    read_only_ = true;
  }

 private:
  static constexpr uint8_t kPattern = 0xa5;
  size_t count_, size_, offset_;
  uint8_t* pages_;
  bool read_only_ = false;
};

}  // namespace adder
