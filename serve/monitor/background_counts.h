// Counts of background responses, for /metrics. Written by one thread, read by any.
#pragma once

#include <atomic>
#include <cstdint>

namespace outrider {

struct BackgroundCounts {
  std::atomic<int64_t> open{0};            // queued or in progress
  std::atomic<int64_t> kept{0};            // finished, and still there to be fetched
  std::atomic<int64_t> run_again{0};       // requests that an earlier server left in the journal
  std::atomic<int64_t> journal_errors{0};  // writes of the journal that failed
};

}  // namespace outrider
