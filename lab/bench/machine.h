// What the machine itself gives: the speed at which it reads memory, and how much this process took of it.
#pragma once

#include <cstdint>

#include "base/buffer.h"

namespace outrider {

// The speed at which `threads` threads together read memory: the limit that one-token decoding cannot exceed.
class ReadProbe {
 public:
  explicit ReadProbe(int threads) : threads_(threads) {}
  // Bytes per second: the median of some passes over a buffer far larger than any cache.
  double measure();
  // Gives the buffer back until the next measure().
  void release() { buffer_ = Buffer<uint64_t>(); }

 private:
  int threads_;
  Buffer<uint64_t> buffer_;
};

// Peak resident memory of this process in bytes since the last reset; 0 where the system does not tell.
int64_t peak_memory_bytes();
// Where the system does not allow it, the peak is that of the whole life of the process.
void reset_peak_memory();

}  // namespace outrider
