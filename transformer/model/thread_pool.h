// A fixed pool of threads for the loops of one model. One owner thread calls parallel_for; it takes part
// itself.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace outrider {

class ThreadPool {
 public:
  // `threads` counts the caller. `spin`: workers watch for the next loop for some microseconds before they
  // sleep; only sensible while every thread of the machine has a core to itself. Throws NoThread
  // (base/threads.h).
  explicit ThreadPool(int threads, bool spin = false);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end) for contiguous chunks of [0, count), a few per thread, each taken by whoever is
  // free, on average no smaller than `grain`. How the range is cut never changes a result: every
  // index is computed on its own.
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
  void work();
  void stop();
  void run_chunks();

  // The loop in flight: written by the owner before `ticket_` changes.
  int64_t count_ = 0;
  int64_t chunks_ = 0;
  Invoke invoke_ = nullptr;
  const void* context_ = nullptr;

  std::atomic<int64_t> next_chunk_{0};  // of the loop in flight: the first that nobody has taken
  std::atomic<uint64_t> ticket_{0};     // number of loops started
  std::atomic<int> pending_{0};         // workers that have not finished the loop in flight
  std::atomic<bool> stopping_{false};
  const bool spin_;
  std::mutex mutex_;
  std::condition_variable start_;
  std::condition_variable done_;
  std::vector<std::jthread> workers_;
};

}  // namespace outrider
