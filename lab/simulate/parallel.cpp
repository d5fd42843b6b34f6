#include "lab/simulate/parallel.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <thread>
#include <vector>

#include "base/threads.h"

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;

class Counter {
 public:
  Counter(const std::string& what, size_t total)
      : what_(what), total_(total), terminal_(isatty(STDERR_FILENO) == 1) {}
  void count_one() {
    if (what_.empty()) return;
    const std::lock_guard lock(mutex_);
    ++done_;
    const auto now = Clock::now();
    const double elapsed = seconds(now - start_);
    const bool last = done_ == total_;
    if (seconds(now - said_) < (terminal_ ? 0.1 : 3.0) && !(last && said_any_)) return;
    said_ = now;
    said_any_ = true;
    const double left = elapsed / static_cast<double>(done_) * static_cast<double>(total_ - done_);
    const std::string line = fmt::format("simulate: {}: {} of {}, {:.0f} s left", what_, done_, total_, left);
    std::fprintf(stderr, terminal_ ? "\r%s\033[K%s" : "%s%s", line.c_str(), !terminal_ || last ? "\n" : "");
  }

 private:
  static double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

  const std::string& what_;
  size_t total_, done_ = 0;
  bool terminal_, said_any_ = false;
  Clock::time_point start_ = Clock::now(), said_ = start_;
  std::mutex mutex_;
};

}  // namespace

Status for_each_in_parallel(size_t count, int threads, const std::string& what,
                            const std::function<Status(size_t)>& work) {
  std::vector<Status> statuses(count);
  std::atomic<size_t> next{0};
  Counter counter(what, count);
  const size_t wanted =
      threads > 0 ? static_cast<size_t>(threads) : std::max(1u, std::thread::hardware_concurrency());
  run_on_threads(static_cast<int>(std::max<size_t>(1, std::min(wanted, count))), [&](int) {
    for (size_t i = next++; i < count; i = next++) {
      statuses[i] = work(i);
      counter.count_one();
    }
  });
  for (const Status& status : statuses) RETURN_IF_ERROR(status);
  return {};
}

}  // namespace outrider
