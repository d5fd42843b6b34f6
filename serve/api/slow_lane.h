// A thread for requests that may take seconds to read, because a grammar has to be compiled. Clients take
// turns.
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
  SlowLane();
  ~SlowLane();  // what waits is dropped

  // Runs `task` when all that waits before it has run. There are never more than connections.
  void add(const std::string& client, std::function<void()> task);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  FairQueue<std::function<void()>> tasks_;  // guarded, as what follows
  bool stopped_ = false;
  std::jthread thread_;
};

}  // namespace outrider
