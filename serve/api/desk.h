// Tasks that one thread runs in order, some after a delay: what the thread of the sockets does for a client,
// for answers without a connection.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>

namespace outrider {

// Thread-safe. Tasks that are posted after its end are dropped.
class Desk {
 public:
  using Clock = std::chrono::steady_clock;

  ~Desk() {
    std::multimap<Clock::time_point, std::function<void()>> dropped;
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    is_closed_ = true;
    dropped.swap(tasks_);
  }
  void post(std::function<void()> task) { post_at(Clock::now(), std::move(task)); }
  void post_at(Clock::time_point at, std::function<void()> task) {
    {
      const std::lock_guard<std::recursive_mutex> lock(mutex_);
      if (is_closed_) return;
      tasks_.emplace(at, std::move(task));
    }
    changed_.notify_one();
  }
  // Runs until `done`, which is checked after every task.
  void run(const std::function<bool()>& done) {
    while (!done()) {
      std::unique_lock<std::recursive_mutex> lock(mutex_);
      if (tasks_.empty()) {
        changed_.wait_for(lock, std::chrono::milliseconds(200));
        continue;
      }
      const auto first = tasks_.begin();
      if (first->first > Clock::now()) {
        changed_.wait_until(lock, std::min(first->first, Clock::now() + std::chrono::milliseconds(200)));
        continue;
      }
      const std::function<void()> task = std::move(first->second);
      tasks_.erase(first);
      lock.unlock();
      task();
    }
  }

 private:
  std::recursive_mutex mutex_;  // dropping a task may post another one
  std::condition_variable_any changed_;
  bool is_closed_ = false;
  std::multimap<Clock::time_point, std::function<void()>> tasks_;  // tasks with equal times in their order
};

}  // namespace outrider
