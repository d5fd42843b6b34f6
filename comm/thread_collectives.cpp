#include <algorithm>
#include <atomic>
#include <bit>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>

#include "base/absence.h"
#include "base/log.h"
#include "base/relax.h"
#include "comm/collectives.h"
#include "comm/cores.h"

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;

enum class Operation { kSumFloat, kSum, kMax, kMin, kGather, kBroadcast, kBarrier, kMeet, kMessage };
constexpr const char* kOperationNames[] = {"all_reduce_sum(float)",
                                           "all_reduce_sum",
                                           "all_reduce_max",
                                           "all_reduce_min",
                                           "all_gather",
                                           "broadcast",
                                           "barrier",
                                           "meet",
                                           "broadcast_message"};

// One rank's arguments to the operation in progress. Its buffers belong to the group until the operation
// ends.
struct Call {
  Operation operation = Operation::kBarrier;
  int root = 0;
  size_t elements = 0;              // must agree; 0 for messages
  void* data = nullptr;             // reduced, broadcast or gathered into
  const std::byte* mine = nullptr;  // gathered from
  std::vector<std::byte>* message = nullptr;
  size_t max_bytes = 0;
};

// Polls before sleeping, about 60 us: ranks of one forward differ by that much, and a wake-up costs about
// half.
constexpr int kSpins = 1000;

// Every rank leaves its Call here; the last to arrive does all the work. The others poll for a while if each
// has a core of its own, then sleep, so that one operation costs at most one wake-up per rank, however many
// ranks share a core. Only who sleeps, works or gives up takes the mutex: ranks that arrive together never
// put each other to sleep over it.
class ThreadGroup {
 public:
  ThreadGroup(int size, const CollectiveOptions& options)
      : options_(options), calls_(static_cast<size_t>(size)), spin_(size <= usable_cores()) {}

  int size() const { return static_cast<int>(calls_.size()); }

  void run(int rank, const Call& call) {
    if (failed_.load(std::memory_order_acquire)) {
      const std::lock_guard lock(mutex_);
      throw_if_failed();
    }
    const uint64_t round = round_.load(std::memory_order_relaxed);  // cannot change before this rank arrives
    const Clock::time_point deadline = deadline_of(rank, call);
    calls_[static_cast<size_t>(rank)] = call;
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < size()) return wait(round, deadline);
    {
      const std::lock_guard lock(mutex_);  // a rank that gives up takes its buffers with it: not meanwhile
      if (const std::string mismatch = find_mismatch(); !mismatch.empty()) fail(mismatch);
      throw_if_failed();
      perform();
      arrived_.store(0, std::memory_order_relaxed);
      round_.fetch_add(1, std::memory_order_release);
    }
    wakes_.notify_all();
  }

  void abort() noexcept {
    const std::lock_guard lock(mutex_);
    fail("a rank of the group aborted");
  }

 private:
  // An operation may take `timeout` from its first rank; one that waits for work, from its root; a meeting
  // takes as long as it takes.
  Clock::time_point deadline_of(int rank, const Call& call) const {
    const bool waits_for_work = call.operation == Operation::kMessage && rank != call.root;
    const bool has_none = waits_for_work || call.operation == Operation::kMeet;
    return has_none ? Clock::time_point::max() : Clock::now() + options_.timeout;
  }

  void wait(uint64_t round, Clock::time_point deadline) {
    const auto over = [&] { return round_.load(std::memory_order_acquire) != round; };
    for (int i = 0; spin_ && i < kSpins; ++i) {
      if (over()) return;
      relax();
    }
    MovingDeadline moving(deadline);
    std::unique_lock lock(mutex_);
    while (!over()) {
      throw_if_failed();
      if (wakes_.wait_until(lock, moving.next_look()) == std::cv_status::timeout && moving.is_over() &&
          !over())
        fail(fmt::format("{} of {} ranks arrived within {} ms", arrived_.load(), size(),
                         options_.timeout.count()));
    }
  }

  // The first reason stays. Needs the lock.
  void fail(const std::string& reason) {
    if (failure_.empty()) failure_ = reason;
    failed_.store(true, std::memory_order_release);
    wakes_.notify_all();
  }
  void throw_if_failed() const {
    if (!failure_.empty()) throw CollectiveError(failure_);
  }

  std::string find_mismatch() const {
    const Call& first = calls_[0];
    for (size_t r = 1; r < calls_.size(); ++r) {
      const Call& other = calls_[r];
      if (other.operation != first.operation || other.elements != first.elements || other.root != first.root)
        return fmt::format(
            "ranks disagree: 0 called {} of {} elements from {}, {} called {} of {} elements from {}",
            kOperationNames[static_cast<int>(first.operation)], first.elements, first.root, r,
            kOperationNames[static_cast<int>(other.operation)], other.elements, other.root);
    }
    if (first.operation != Operation::kMessage) return {};
    const size_t bytes = calls_[static_cast<size_t>(first.root)].message->size();
    for (const Call& call : calls_)
      if (bytes > call.max_bytes)
        return fmt::format("a message of {} bytes, at most {}", bytes, call.max_bytes);
    return {};
  }

  void perform() {
    const Call& first = calls_[0];
    switch (first.operation) {
      case Operation::kSumFloat:
        return reduce<float>([](float a, float b) { return a + b; });
      case Operation::kSum:
        return reduce<uint64_t>([](uint64_t a, uint64_t b) { return a + b; });
      case Operation::kMax:
        return reduce<uint64_t>([](uint64_t a, uint64_t b) { return std::max(a, b); });
      case Operation::kMin:
        return reduce<uint64_t>([](uint64_t a, uint64_t b) { return std::min(a, b); });
      case Operation::kGather:
        return gather();
      case Operation::kBroadcast:
        return copy_to_all(static_cast<size_t>(first.root), first.elements);
      case Operation::kBarrier:
      case Operation::kMeet:
        return;
      case Operation::kMessage:
        return copy_message();
    }
  }

  // Level by level, the lower rank's value on the left: the balanced tree of comm/collectives.h.
  template <class T, class Combine>
  void reduce(Combine combine) {
    const size_t elements = calls_[0].elements;
    for (size_t stride = 1; stride < calls_.size(); stride *= 2)
      for (size_t r = 0; r + stride < calls_.size(); r += 2 * stride) {
        T* low = static_cast<T*>(calls_[r].data);
        const T* high = static_cast<const T*>(calls_[r + stride].data);
        for (size_t i = 0; i < elements; ++i) low[i] = combine(low[i], high[i]);
      }
    copy_to_all(0, elements * sizeof(T));
  }

  void copy_to_all(size_t root, size_t bytes) {
    if (bytes == 0) return;
    for (size_t r = 0; r < calls_.size(); ++r)
      if (r != root) std::memcpy(calls_[r].data, calls_[root].data, bytes);
  }

  void gather() {
    const size_t bytes = calls_[0].elements;
    if (bytes == 0) return;
    for (const Call& to : calls_)
      for (size_t r = 0; r < calls_.size(); ++r)
        std::memcpy(static_cast<std::byte*>(to.data) + r * bytes, calls_[r].mine, bytes);
  }

  void copy_message() {
    const auto root = static_cast<size_t>(calls_[0].root);
    for (size_t r = 0; r < calls_.size(); ++r)
      if (r != root) *calls_[r].message = *calls_[root].message;
  }

  const CollectiveOptions options_;
  std::vector<Call> calls_;           // each written by its rank, read by the last to arrive
  std::atomic<int> arrived_ = 0;      // in the operation in progress
  std::atomic<uint64_t> round_ = 0;   // operations completed
  std::atomic<bool> failed_ = false;  // failure_ is set
  std::mutex mutex_;
  std::condition_variable wakes_;
  std::string failure_;  // once set, the group is finished
  const bool spin_;
};

class ThreadCollectives final : public Collectives {
 public:
  ThreadCollectives(std::shared_ptr<ThreadGroup> group, int rank) : group_(std::move(group)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  void all_reduce_sum(std::span<float> values) override {
    CHECK(std::has_single_bit(static_cast<unsigned>(size())), "float sums need 2^k ranks, not {}", size());
    reduce(Operation::kSumFloat, values);
  }
  void all_reduce_sum(std::span<uint64_t> values) override { reduce(Operation::kSum, values); }
  void all_reduce_max(std::span<uint64_t> values) override { reduce(Operation::kMax, values); }
  void all_reduce_min(std::span<uint64_t> values) override { reduce(Operation::kMin, values); }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    CHECK(all.size() == mine.size() * calls(), "mine={} all={} ranks={}", mine.size(), all.size(), size());
    group_->run(
        rank_,
        {.operation = Operation::kGather, .elements = mine.size(), .data = all.data(), .mine = mine.data()});
  }
  void broadcast(std::span<std::byte> bytes, int root) override {
    CHECK(root >= 0 && root < size(), "root={} ranks={}", root, size());
    group_->run(
        rank_,
        {.operation = Operation::kBroadcast, .root = root, .elements = bytes.size(), .data = bytes.data()});
  }
  void barrier() override { group_->run(rank_, {.operation = Operation::kBarrier}); }
  void meet() override { group_->run(rank_, {.operation = Operation::kMeet}); }
  void broadcast_message(std::vector<std::byte>& bytes, int root, size_t max_bytes) override {
    CHECK(root >= 0 && root < size(), "root={} ranks={}", root, size());
    group_->run(rank_,
                {.operation = Operation::kMessage, .root = root, .message = &bytes, .max_bytes = max_bytes});
  }
  void abort() noexcept override { group_->abort(); }

 private:
  size_t calls() const { return static_cast<size_t>(size()); }
  template <class T>
  void reduce(Operation operation, std::span<T> values) {
    group_->run(rank_, {.operation = operation, .elements = values.size(), .data = values.data()});
  }

  const std::shared_ptr<ThreadGroup> group_;
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Collectives>> make_thread_collectives(int size,
                                                                  const CollectiveOptions& options) {
  CHECK(size >= 1, "size={}", size);
  auto group = std::make_shared<ThreadGroup>(size, options);
  std::vector<std::unique_ptr<Collectives>> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(std::make_unique<ThreadCollectives>(group, r));
  return ranks;
}

}  // namespace outrider
