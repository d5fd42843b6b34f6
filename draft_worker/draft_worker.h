// The loop of a draft worker: joins a coordinator, answers its Proposes, shows that it is alive. One thread.
#pragma once

#include <deque>
#include <unordered_map>

#include "comm/transport.h"
#include "draft_worker/drafter.h"

namespace outrider {

struct DraftWorkerOptions {
  ModelInfo info;  // for Hello
  Generation generation{1};
  int32_t max_sequences = 16;
  std::chrono::milliseconds heartbeat{250};
  std::chrono::milliseconds join_timeout{60'000};
};

class DraftWorker {
 public:
  // Both must outlive the worker.
  DraftWorker(Drafter& drafter, Transport& transport, DraftWorkerOptions options);

  // Until told to shut down. An error: refused by the coordinator, or it never answered.
  Status run();

 private:
  Status join();
  void handle(Message& message);
  void supersede(Propose propose);
  void answer(const Propose& propose);
  void send(const Message& message);
  void beat();

  Drafter& drafter_;
  Transport& transport_;
  DraftWorkerOptions options_;
  std::deque<Propose> proposes_;  // at most one per sequence: a newer one supersedes
  Clock::time_point last_sent_{};
  bool leaving_ = false;
};

}  // namespace outrider
