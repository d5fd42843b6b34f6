// A fixed pool of threads for the loops of one model. One owner thread calls parallel_for; it takes part
// itself, and is held up by no helper that has taken nothing: on a machine that is busy with other work a
// helper may not get a core before the others have done it all.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace outrider {

// Decides when loops run without helpers: for a while after a helper lost its core with a piece of the loop
// in hand and held the loop up. Pure arithmetic on the times it is given.
class HelperPause {
 public:
  using Clock = std::chrono::steady_clock;

  bool is_on(Clock::time_point now) const { return now < until_; }
  // The owner worked for `own` on a loop and then waited for `waited`, until now. A pause that follows hard
  // on the one before is twice as long.
  void observe(Clock::duration own, Clock::duration waited, Clock::time_point now);

 private:
  Clock::duration length_{};
  Clock::time_point until_{};
};

// Number of threads, 1 to `most`, for a loop over `bytes` bytes of weights, so that each thread has at least
// `bytes_each`.
int threads_worth(int64_t bytes, int64_t bytes_each, int most);

class ThreadPool {
 public:
  // `threads` counts the caller. `spin`: workers watch for the next loop for some microseconds before they
  // sleep; only sensible while the threads of this process have a core each. Throws NoThread
  // (base/threads.h).
  explicit ThreadPool(int threads, bool spin = false);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end) for contiguous chunks of [0, count). There are a few chunks per thread, on average
  // no smaller than `grain`, and the next free thread takes each. How the range is cut never changes a
  // result: every index is computed on its own.
  template <class Body>
  void parallel_for(int64_t count, int64_t grain, const Body& body) {
    const int64_t chunks = chunks_of(count, grain);
    if (chunks <= 1) {
      if (count > 0) body(int64_t{0}, count);
      return;
    }
    run(
        count, chunks,
        [](const void* context, int64_t begin, int64_t end) {
          (*static_cast<const Body*>(context))(begin, end);
        },
        &body);
  }

 private:
  using Invoke = void (*)(const void*, int64_t, int64_t);

  int64_t chunks_of(int64_t count, int64_t grain) const;
  int64_t first_of(int64_t chunk) const;
  void run(int64_t count, int64_t chunks, Invoke invoke, const void* context);
  void wake_helpers();
  void await_helpers(HelperPause::Clock::time_point begun);
  void work();
  void stop();
  bool has_work() const { return left_.load() != 0; }
  void run_chunks();

  // The loop in flight. The owner writes it while no thread has a chunk; threads with a chunk read it.
  int64_t count_ = 0;
  int64_t chunks_ = 0;
  Invoke invoke_ = nullptr;
  const void* context_ = nullptr;

  std::atomic<int64_t> left_{0};        // chunks that are not taken yet
  std::atomic<int64_t> unfinished_{0};  // chunks that are not done
  std::atomic<int> asleep_{0};          // helpers that are asleep and not woken yet
  std::atomic<bool> owner_sleeps_{false};
  std::atomic<bool> stopping_{false};
  HelperPause pause_;  // the owner's
  const bool spin_;
  std::mutex mutex_;  // guards falling asleep and waking
  std::condition_variable start_;
  std::condition_variable done_;
  std::vector<std::jthread> workers_;
};

}  // namespace outrider
