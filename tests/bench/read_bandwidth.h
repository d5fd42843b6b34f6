// Measures the read bandwidth of memory, the upper bound of every kernel that streams weights.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/statistics.h"
#include "base/thread_pool.h"

namespace outrider::bench {

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Sums 1 GiB, far beyond any cache. Lines are asked for 2 KiB ahead: in order, that reads fastest.
class ReadProbe {
 public:
  ReadProbe() : data_(kWords) {
    for (int64_t i = 0; i < kWords; i += 512) data_[i] = static_cast<uint64_t>(i);
  }

  // Median of `passes`, bytes per second.
  double bytes_per_second(ThreadPool& pool, int passes = 5) {
    std::vector<double> seconds;
    for (int i = 0; i < passes; ++i) {
      const double start = seconds_now();
      pool.parallel_for(kWords / kChunk, 1, [&](int64_t begin, int64_t end) {
        const uint64_t total = sum(data_.data() + begin * kChunk, (end - begin) * kChunk);
        if (total == 1) sink_ = total;  // the sum is needed, as far as the compiler knows
      });
      seconds.push_back(seconds_now() - start);
    }
    return kWords * 8 / median(std::move(seconds));
  }

 private:
  static constexpr int64_t kWords = int64_t{1} << 27;
  static constexpr int64_t kChunk = int64_t{1} << 10;

  static uint64_t sum(const uint64_t* words, int64_t count) {
    uint64_t lanes[4][8] = {};
    for (int64_t i = 0; i < count; i += 32)
      for (int64_t s = 0; s < 4; ++s) {
        const uint64_t* at = words + i + 8 * s;
        __builtin_prefetch(at + 256);
        for (int64_t j = 0; j < 8; ++j) lanes[s][j] += at[j];
      }
    uint64_t total = 0;
    for (const auto& line : lanes)
      for (uint64_t lane : line) total += lane;
    return total;
  }

  Buffer<uint64_t> data_;
  volatile uint64_t sink_ = 0;
};

}  // namespace outrider::bench
