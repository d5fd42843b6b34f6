// A thread for what may take seconds: a request that has a grammar to be compiled, a long answer to be
// written. Clients take turns.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "serve/fair_queue.h"

namespace outrider {

class SlowLane {
 public:
  explicit SlowLane(std::string thread_role);
  ~SlowLane();  // what waits is dropped

  // Runs `task` when all that waits before it has run. There are never more than connections.
  void add(const std::string& client, std::function<void()> task);

 private:
  void run();

  const std::string role_;
  std::mutex mutex_;
  std::condition_variable changed_;
  FairQueue<std::function<void()>> tasks_;  // guarded, as what follows
  bool stopped_ = false;
  std::jthread thread_;
};

}  // namespace outrider
