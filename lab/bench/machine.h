// Measurements of the machine itself: its speed of reading memory, and the memory taken by this process.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>

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

// Processor time used by anything besides this program and the children that it has waited for.
struct CpuLoad {
  double load_before = 0, load_after = 0;  // load averages of one minute
  double other_cores = 0;  // that other programs kept busy, on average, as far as the system tells
  double steal_share = 0;  // of the time of all cores, that the hypervisor gave to others
};
nlohmann::json cpu_load_json(const CpuLoad& load);

class LoadWatch {
 public:
  LoadWatch();           // begins
  CpuLoad load() const;  // since then

 private:
  struct Moment {
    std::chrono::steady_clock::time_point at;
    double busy_s = 0, steal_s = 0, all_s = 0;  // of all cores, since the system started
    double own_s = 0;
    double load = 0;
  };
  static Moment now();
  Moment begin_;
};

// Peak resident memory of this process in bytes since the last reset; 0 where the system does not tell.
int64_t peak_memory_bytes();
// Where the system does not allow it, the peak is that of the whole life of the process.
void reset_peak_memory();

}  // namespace outrider
