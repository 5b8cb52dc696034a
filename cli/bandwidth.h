// How fast this machine reads memory.
#pragma once

#include <cstddef>

namespace adder::cli {

// A region of 1 GiB, larger than any cache, and the time that reading it takes.
class ReadBandwidth {
 public:
  ReadBandwidth();
  ~ReadBandwidth();
  ReadBandwidth(const ReadBandwidth&) = delete;
  ReadBandwidth& operator=(const ReadBandwidth&) = delete;

  // GB/s right now, by `threads` threads together: the better of a plain and a four-stream loop
  // over the region. 0: no memory for it.
  double Measure(size_t threads) const;

 private:
  void* memory_;
};

}  // namespace adder::cli
