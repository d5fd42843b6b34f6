#include "base/thread_pool.h"

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "base/relax.h"
#include "base/threads.h"

namespace outrider {
namespace {

// Long enough to bridge the serial work between two loops of a forward pass, short against a scheduler slice.
constexpr int kSpins = 1500;

// Waiting so long for the last pieces of a loop, and longer than it took to do the others, is not the work's.
constexpr std::chrono::microseconds kHeldUp{500};

// Bounds of a pause. On a busy machine, helpers cost one scheduler slice (some milliseconds) each time the
// longest pause ends. Once the machine is idle again, the helpers' work is missing for at most one pause.
constexpr std::chrono::milliseconds kShortestPause{10}, kLongestPause{1000};

// A thread that lost its core for a while leaves the rest of a loop to the others.
constexpr int64_t kChunksPerThread = 8;

}  // namespace

void HelperPause::observe(Clock::duration own, Clock::duration waited, Clock::time_point now) {
  if (waited < kHeldUp || waited < own) return;
  const bool again = now - until_ < 2 * length_;
  length_ = again ? std::min<Clock::duration>(2 * length_, kLongestPause) : kShortestPause;
  until_ = now + length_;
}

int threads_worth(int64_t bytes, int64_t bytes_each, int most) {
  return static_cast<int>(std::clamp<int64_t>(bytes / bytes_each, 1, most));
}

ThreadPool::ThreadPool(int threads, bool spin) : spin_(spin) {
  CHECK(threads >= 1, "threads={}", threads);
  const std::string role = thread_role();
  try {
    for (int i = 1; i < threads; ++i)
      workers_.push_back(start_thread([this, role] {
        set_thread_role(role);
        work();
      }));
  } catch (...) {  // what never was whole is not destroyed, and its workers wait for work
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  start_.notify_all();
  workers_.clear();
}

int64_t ThreadPool::chunks_of(int64_t count, int64_t grain) const {
  return std::min<int64_t>(size() == 1 ? 1 : size() * kChunksPerThread,
                           (count + grain - 1) / std::max<int64_t>(grain, 1));
}

// Chunks get smaller and smaller: whoever is done waits for the others' last chunk. Equal ones cost a matmul
// on two threads 3 to 5 %.
int64_t ThreadPool::first_of(int64_t chunk) const {
  if (chunks_ <= size()) return count_ * chunk / chunks_;
  const int64_t left = chunks_ - chunk;
  return count_ - count_ * left * left / (chunks_ * chunks_);
}

// A thread that takes a chunk sees the right loop: the owner writes the loop before it publishes the chunks,
// and writes no other loop before all chunks are done.
void ThreadPool::run_chunks() {
  for (int64_t left = left_.load(); left != 0;) {
    if (!left_.compare_exchange_weak(left, left - 1)) continue;
    const int64_t chunk = chunks_ - left, begin = first_of(chunk), end = first_of(chunk + 1);
    if (begin < end) invoke_(context_, begin, end);
    if (unfinished_.fetch_sub(1) == 1 && owner_sleeps_.load()) {
      const std::lock_guard lock(mutex_);
      done_.notify_one();
    }
    left = left_.load();
  }
}

void ThreadPool::run(int64_t count, int64_t chunks, Invoke invoke, const void* context) {
  const auto begun = HelperPause::Clock::now();
  if (pause_.is_on(begun)) return invoke(context, 0, count);
  count_ = count;
  chunks_ = chunks;
  invoke_ = invoke;
  context_ = context;
  unfinished_.store(chunks);
  left_.store(chunks);
  wake_helpers();
  run_chunks();
  if (unfinished_.load() != 0) await_helpers(begun);
}

// Wakes each sleeping helper once. Waking a helper again that still has no core would cost a system call each
// time.
void ThreadPool::wake_helpers() {
  if (asleep_.load() == 0) return;
  {
    const std::lock_guard lock(mutex_);
    asleep_.store(0);
  }
  start_.notify_all();
}

void ThreadPool::await_helpers(HelperPause::Clock::time_point begun) {
  for (int i = 0; spin_ && i < kSpins; ++i) {
    relax();
    if (unfinished_.load(std::memory_order_acquire) == 0) return;
  }
  const auto done = HelperPause::Clock::now();
  {
    std::unique_lock lock(mutex_);
    owner_sleeps_.store(true);
    done_.wait(lock, [this] { return unfinished_.load() == 0; });
    owner_sleeps_.store(false);
  }
  const auto now = HelperPause::Clock::now();
  pause_.observe(done - begun, now - done, now);
}

void ThreadPool::work() {
  while (true) {
    for (int i = 0; spin_ && i < kSpins && !has_work(); ++i) relax();
    if (!has_work()) {
      std::unique_lock lock(mutex_);
      while (!stopping_ && (asleep_.fetch_add(1), !has_work())) start_.wait(lock);
      if (stopping_) return;
    }
    run_chunks();
  }
}

}  // namespace outrider
