// Counts heap allocations of a test program: include it in the program's only source file.
//
// With glibc it stands in front of malloc and its relatives, and so sees every allocation of every
// library. With sanitizers, which do the same, and elsewhere it replaces operator new only.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ADDER_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define ADDER_TEST_SANITIZED 1
#endif
#endif
#if defined(__GLIBC__) && !defined(ADDER_TEST_SANITIZED)
#define ADDER_TEST_COUNTS_MALLOC 1
#endif

namespace adder_test {

inline std::atomic<uint64_t> allocation_count{0};

// Allocations of the whole process so far; compare two readings.
inline uint64_t AllocationCount() { return allocation_count.load(std::memory_order_relaxed); }
inline void CountAllocation() { allocation_count.fetch_add(1, std::memory_order_relaxed); }

}  // namespace adder_test

#if defined(ADDER_TEST_COUNTS_MALLOC)

extern "C" {

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

[[gnu::visibility("default")]] void* malloc(size_t size) {
  adder_test::CountAllocation();
  return __libc_malloc(size);
}

[[gnu::visibility("default")]] void* calloc(size_t count, size_t size) {
  adder_test::CountAllocation();
  return __libc_calloc(count, size);
}

[[gnu::visibility("default")]] void* realloc(void* pointer, size_t size) {
  adder_test::CountAllocation();
  return __libc_realloc(pointer, size);
}

[[gnu::visibility("default")]] void* memalign(size_t alignment, size_t size) {
  adder_test::CountAllocation();
  return __libc_memalign(alignment, size);
}

[[gnu::visibility("default")]] void* aligned_alloc(size_t alignment, size_t size) {
  adder_test::CountAllocation();
  return __libc_memalign(alignment, size);
}

[[gnu::visibility("default")]] int posix_memalign(void** out, size_t alignment, size_t size) {
  adder_test::CountAllocation();
  void* pointer = __libc_memalign(alignment, size);
  if (pointer == nullptr) return ENOMEM;
  *out = pointer;
  return 0;
}

}  // extern "C"

#else

// Every form, lest a sanitizer's own operator new meets our operator delete.
[[gnu::noinline]] void* operator new(size_t size) {
  adder_test::CountAllocation();
  if (void* pointer = std::malloc(size != 0 ? size : 1)) return pointer;
  std::abort();
}

[[gnu::noinline]] void* operator new(size_t size, std::align_val_t alignment) {
  adder_test::CountAllocation();
  void* pointer = nullptr;
  const size_t align = static_cast<size_t>(alignment);
  if (posix_memalign(&pointer, align, size != 0 ? size : 1) == 0) return pointer;
  std::abort();
}

[[gnu::noinline]] void* operator new[](size_t size) { return operator new(size); }
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return operator new(size);
}
[[gnu::noinline]] void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return operator new(size);
}
[[gnu::noinline]] void* operator new(size_t size, std::align_val_t alignment,
                                     const std::nothrow_t&) noexcept {
  return operator new(size, alignment);
}
[[gnu::noinline]] void* operator new[](size_t size, std::align_val_t alignment,
                                       const std::nothrow_t&) noexcept {
  return operator new(size, alignment);
}
[[gnu::noinline]] void* operator new[](size_t size, std::align_val_t alignment) {
  return operator new(size, alignment);
}
[[gnu::noinline]] void operator delete(void* pointer) noexcept { std::free(pointer); }
[[gnu::noinline]] void operator delete(void* pointer, size_t) noexcept { std::free(pointer); }
[[gnu::noinline]] void operator delete(void* pointer, std::align_val_t) noexcept {
  std::free(pointer);
}
[[gnu::noinline]] void operator delete(void* pointer, size_t, std::align_val_t) noexcept {
  std::free(pointer);
}
[[gnu::noinline]] void operator delete(void* pointer, const std::nothrow_t&) noexcept {
  std::free(pointer);
}
[[gnu::noinline]] void operator delete(void* pointer, std::align_val_t,
                                       const std::nothrow_t&) noexcept {
  std::free(pointer);
}
[[gnu::noinline]] void operator delete[](void* pointer, const std::nothrow_t&) noexcept {
  std::free(pointer);
}
[[gnu::noinline]] void operator delete[](void* pointer, std::align_val_t,
                                         const std::nothrow_t&) noexcept {
  std::free(pointer);
}
[[gnu::noinline]] void operator delete[](void* pointer) noexcept { std::free(pointer); }
[[gnu::noinline]] void operator delete[](void* pointer, size_t) noexcept { std::free(pointer); }
[[gnu::noinline]] void operator delete[](void* pointer, std::align_val_t) noexcept {
  std::free(pointer);
}
[[gnu::noinline]] void operator delete[](void* pointer, size_t, std::align_val_t) noexcept {
  std::free(pointer);
}

#endif
