// A draft worker and one coordinator: joins, drafts, and joins again, life after life.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "launch/commands/draft_worker_command.h"
#include "start/draft_turns.h"
#include "start/load_models.h"

namespace outrider {

// The models of a worker, as far as its drafter needs them.
struct WorkerModels {
  LoadedModel draft;
  std::shared_ptr<const DraftHead> head;
  std::unique_ptr<Head> hidden_state_head;
};
using LoadWorkerModels = std::function<Result<WorkerModels>()>;

// A worker's part in a process that serves several coordinators. The models are not its own.
struct SharedSession {
  DraftTurns* turns = nullptr;
  size_t index = 0;
  const WorkerModels* models = nullptr;
};

class JoinedWorker {
 public:
  // All arguments must outlive it.
  JoinedWorker(const DraftWorkerSettings& settings, const Preparation& prepared, const ZmqOptions& zmq,
               const LoadWorkerModels& load);
  JoinedWorker(const DraftWorkerSettings& settings, const Preparation& prepared, const ZmqOptions& zmq,
               SharedSession session);

  Status load();
  // Runs until it is asked to leave, the job ends, it is refused, the coordinator violates the protocol, or
  // there is no coordinator for too long.
  Status run();

  const JoiningMessages& messages() const { return messages_; }
  // In all lives of a shared session.
  int64_t drafts() const { return drafts_; }
  int64_t drafted_tokens() const { return drafted_tokens_; }

 private:
  Status live(bool* joined);
  bool is_shared() const { return session_.turns != nullptr; }
  bool must_leave() const;
  bool tries_again_after(const Status& status) const;
  void rest(std::chrono::milliseconds pause) const;

  const DraftWorkerSettings& settings_;
  JoinEndpoints endpoints_{settings_};
  const JoiningMessages messages_;
  const Preparation& prepared_;
  const ZmqOptions& zmq_;
  const LoadWorkerModels load_;  // null if shared
  const SharedSession session_ = {};
  WorkerModels models_;         // its own
  bool unloaded_ = false;       // it was unloaded, and will join again
  std::set<std::string> told_;  // reported reasons for a missing coordinator, since the last one
  int64_t drafts_ = 0, drafted_tokens_ = 0;
};

}  // namespace outrider
