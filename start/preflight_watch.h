// The deadline of a preflight for ranks that never begin it, such as those that run another program: MPI
// itself would wait for them for ever.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace outrider {

// The rank as the launcher describes it in environment variables, without MPI.
struct LaunchedRank {
  std::string job;  // unique on its host; empty: unknown, so that no rank is named
  int rank = 0, size = 1;
  int on_host = 0;  // ranks of this host; 0: unknown
};
LaunchedRank launched_rank();

class PreflightWatch {
 public:
  // Until all_here() is called. At the deadline the first rank of each host prints which of its ranks are
  // missing, and `end` is called, which does not return.
  PreflightWatch(LaunchedRank self, std::chrono::milliseconds limit, void (*end)());
  ~PreflightWatch() { all_here(); }
  PreflightWatch(const PreflightWatch&) = delete;
  PreflightWatch& operator=(const PreflightWatch&) = delete;

  void all_here();

 private:
  void wait();
  std::string missing() const;  // of the ranks of this host; empty: none

  const LaunchedRank self_;
  const std::chrono::milliseconds limit_;
  void (*const end_)();
  int sign_ = -1;  // a socket whose name shows the other ranks of this host that this one has begun
  std::mutex mutex_;
  std::condition_variable woken_;
  bool all_here_ = false;
  std::thread thread_;
};

}  // namespace outrider
