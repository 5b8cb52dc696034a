// This machine's own read bandwidth, the limit that decoding is measured against.
#pragma once

#include <cstddef>

namespace adder::cli {

// GB/s of `threads` threads that read 1 GiB in all, the best of a plain and a four-stream loop,
// each read twice. 0 when the memory cannot be had.
double MeasureReadBandwidth(size_t threads);

}  // namespace adder::cli
