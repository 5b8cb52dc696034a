// Fetching weights ahead of their use. Hardware prefetchers stop at the ends of pages; this does
// not. A prefetch never faults, so it may run past the end.
#pragma once

#include <immintrin.h>
#include <stddef.h>

namespace adder {
namespace {

inline void Prefetch(const void* stream, size_t bytes_ahead) {
  _mm_prefetch(static_cast<const char*>(stream) + bytes_ahead, _MM_HINT_T0);
}

}  // namespace
}  // namespace adder
