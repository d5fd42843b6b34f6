// Timing on a stream: events around the work, warm-up first, the median of several repetitions.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "base/cuda.h"
#include "base/statistics.h"

namespace outrider::gpu {

struct Timing {
  double median_s = 0;
  double spread = 0;  // (95th percentile - 5th) / median
};

inline Timing summarize(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const auto at = [&](double q) {
    return seconds[static_cast<size_t>(q * static_cast<double>(seconds.size() - 1))];
  };
  const double middle = median(seconds);
  return {.median_s = middle, .spread = middle > 0 ? (at(0.95) - at(0.05)) / middle : 0};
}

// `work` queues on the stream; the time of one call is returned, of `calls` queued together.
inline Timing measure(cuda::StreamView stream, int repetitions, int calls,
                      const std::function<void(int)>& work) {
  cuda::Event begin, end;
  std::vector<double> seconds;
  for (int r = -2; r < repetitions; ++r) {
    begin.record(stream);
    for (int c = 0; c < calls; ++c) work(c);
    end.record(stream);
    end.synchronize();
    if (r >= 0) seconds.push_back(end.seconds_since(begin) / calls);
  }
  return summarize(std::move(seconds));
}

}  // namespace outrider::gpu
