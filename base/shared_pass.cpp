#include "base/shared_pass.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

namespace outrider::cuda {
namespace {

constexpr std::chrono::seconds kLongestWait{10};

struct Turns {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::thread::id> passes;  // the threads of those that are under way
  std::vector<std::thread::id> ranks;   // the threads that have begun passes
  int memory = 0;                       // turns that are held
};
// Memory is also freed by destructors that run after main.
Turns& turns() {
  static auto* const instance = new Turns;
  return *instance;
}

bool contains(const std::vector<std::thread::id>& threads, std::thread::id thread) {
  return std::find(threads.begin(), threads.end(), thread) != threads.end();
}
void forget(std::vector<std::thread::id>& threads, std::thread::id thread) {
  if (const auto at = std::find(threads.begin(), threads.end(), thread); at != threads.end())
    threads.erase(at);
}

}  // namespace

void SharedPass::begin() {
  if (is_under_way_) return;
  Turns& t = turns();
  std::unique_lock lock(t.mutex);
  t.changed.wait(lock, [&] { return t.memory == 0; });
  forget(t.ranks, thread_);
  thread_ = std::this_thread::get_id();
  t.ranks.push_back(thread_);
  t.passes.push_back(thread_);
  is_under_way_ = true;
}

void SharedPass::end() noexcept {
  if (!is_under_way_) return;
  Turns& t = turns();
  {
    const std::lock_guard lock(t.mutex);
    forget(t.passes, thread_);
    is_under_way_ = false;
  }
  t.changed.notify_all();
}

SharedPass::~SharedPass() {
  end();
  Turns& t = turns();
  const std::lock_guard lock(t.mutex);
  forget(t.ranks, thread_);
}

bool SharedPass::is_of_rank() {
  Turns& t = turns();
  const std::lock_guard lock(t.mutex);
  return contains(t.ranks, std::this_thread::get_id());
}

MemoryTurn::MemoryTurn() {
  Turns& t = turns();
  std::unique_lock lock(t.mutex);
  const auto self = std::this_thread::get_id();
  const bool in_time =
      t.changed.wait_for(lock, kLongestWait, [&] { return t.passes.empty() || contains(t.ranks, self); });
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
