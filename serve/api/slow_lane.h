// A thread for tasks that may take seconds: compiling a request's grammar, or writing a long answer. Clients
// take turns.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "base/fair_queue.h"

namespace outrider {

class SlowLane {
 public:
  explicit SlowLane(std::string thread_role);
  ~SlowLane();  // drops waiting tasks

  // Runs `task` after all tasks that wait before it. Their number is bounded by that of connections.
  void add(const std::string& client, std::function<void()> task);

 private:
  void run();

  const std::string role_;
  std::mutex mutex_;
  std::condition_variable changed_;
  FairQueue<std::function<void()>> tasks_;  // guarded by the mutex, as are the following members
  bool stopped_ = false;
  std::jthread thread_;
};

}  // namespace outrider
