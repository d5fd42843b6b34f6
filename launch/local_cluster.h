// Every role as a thread of this process, joined by in-memory queues; neither MPI nor ZeroMQ is touched.
#pragma once

#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "launch/roles.h"

namespace outrider {

class LocalCluster {
 public:
  LocalCluster(const RunOptions& options, const Preparation& prepared);
  ~LocalCluster();  // every role was told to leave before

  std::unique_ptr<Transport> coordinator_end() { return hub_->coordinator_end(); }
  void start_target();
  void start_drafter();
  // The first role that failed, if any.
  Status error() const;

 private:
  void note(const Status& status);

  const RunOptions& options_;
  const Preparation& prepared_;
  std::shared_ptr<InprocHub> hub_;
  std::vector<std::unique_ptr<Collectives>> group_;
  mutable std::mutex mutex_;
  Status error_;
  std::vector<std::thread> threads_;
};

}  // namespace outrider
