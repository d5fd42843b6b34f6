#include "transformer/model/thread_pool.h"

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "base/relax.h"
#include "base/threads.h"

namespace outrider {
namespace {

// Long enough to bridge the serial work between two loops of a forward pass, short against a scheduler slice.
constexpr int kSpins = 1500;

// A thread that lost its core for a while leaves the rest of a loop to the others.
constexpr int64_t kChunksPerThread = 8;

}  // namespace

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

void ThreadPool::run_chunks() {
  for (int64_t chunk; (chunk = next_chunk_.fetch_add(1, std::memory_order_relaxed)) < chunks_;) {
    const int64_t begin = first_of(chunk), end = first_of(chunk + 1);
    if (begin < end) invoke_(context_, begin, end);
  }
}

void ThreadPool::run(int64_t count, int64_t chunks, Invoke invoke, const void* context) {
  count_ = count;
  chunks_ = chunks;
  next_chunk_.store(0, std::memory_order_relaxed);
  invoke_ = invoke;
  context_ = context;
  pending_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);
    ticket_.fetch_add(1, std::memory_order_release);
  }
  start_.notify_all();
  run_chunks();
  for (int i = 0; spin_ && i < kSpins && pending_.load(std::memory_order_acquire) != 0; ++i) relax();
  if (pending_.load(std::memory_order_acquire) != 0) {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return pending_.load(std::memory_order_acquire) == 0; });
  }
}

void ThreadPool::work() {
  uint64_t seen = 0;
  while (true) {
    for (int i = 0; spin_ && i < kSpins && ticket_.load(std::memory_order_acquire) == seen; ++i) relax();
    if (ticket_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return stopping_ || ticket_.load(std::memory_order_acquire) != seen; });
      if (stopping_) return;
    }
    ++seen;
    run_chunks();
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      std::lock_guard lock(mutex_);
      done_.notify_one();
    }
  }
}

}  // namespace outrider
