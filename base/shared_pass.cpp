#include "base/shared_pass.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

namespace outrider::cuda {
namespace {

constexpr std::chrono::seconds kLongestWait{10};

struct Rank {
  std::thread::id thread;
  uint64_t group = 0;
  bool operator==(const Rank&) const = default;
};
struct Turns {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Rank> passes;  // current passes
  std::vector<Rank> ranks;   // that have begun passes
  int memory = 0;            // current turns
};
// Memory is also freed by destructors that run after main.
Turns& turns() {
  static auto* const instance = new Turns;
  return *instance;
}

bool contains(const std::vector<Rank>& ranks, const Rank& rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}
void forget(std::vector<Rank>& ranks, const Rank& rank) {
  if (const auto at = std::find(ranks.begin(), ranks.end(), rank); at != ranks.end()) ranks.erase(at);
}

// Whether all current passes belong to this thread's group.
bool all_are_own(const Turns& t) {
  return std::all_of(t.passes.begin(), t.passes.end(), [&](const Rank& pass) {
    return contains(t.ranks, {std::this_thread::get_id(), pass.group});
  });
}

}  // namespace

void SharedPass::begin() {
  if (is_under_way_) return;
  Turns& t = turns();
  std::unique_lock lock(t.mutex);
  t.changed.wait(lock, [&] { return t.memory == 0; });
  forget(t.ranks, {thread_, group_});
  thread_ = std::this_thread::get_id();
  t.ranks.push_back({thread_, group_});
  t.passes.push_back({thread_, group_});
  is_under_way_ = true;
}

void SharedPass::end() noexcept {
  if (!is_under_way_) return;
  Turns& t = turns();
  {
    const std::lock_guard lock(t.mutex);
    forget(t.passes, {thread_, group_});
    is_under_way_ = false;
  }
  t.changed.notify_all();
}

SharedPass::~SharedPass() {
  end();
  Turns& t = turns();
  const std::lock_guard lock(t.mutex);
  forget(t.ranks, {thread_, group_});
}

bool SharedPass::is_of_rank() {
  Turns& t = turns();
  const std::lock_guard lock(t.mutex);
  const auto is_own = [](const Rank& rank) { return rank.thread == std::this_thread::get_id(); };
  return std::any_of(t.ranks.begin(), t.ranks.end(), is_own);
}

MemoryTurn::MemoryTurn() {
  Turns& t = turns();
  std::unique_lock lock(t.mutex);
  const bool in_time = t.changed.wait_for(lock, kLongestWait, [&] { return all_are_own(t); });
  if (!in_time) t.passes.clear();  // left by ranks that failed
  ++t.memory;
}

MemoryTurn::~MemoryTurn() {
  Turns& t = turns();
  {
    const std::lock_guard lock(t.mutex);
    --t.memory;
  }
  t.changed.notify_all();
}

}  // namespace outrider::cuda
