// Runs every role as a thread of this process, connected by in-memory queues; uses neither MPI nor ZeroMQ.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "start/roles.h"

namespace outrider {

// Models that outlive a cluster, for programs that run several clusters of one target group.
struct LocalModels {
  std::vector<std::unique_ptr<Collectives>> group;
  std::vector<std::unique_ptr<Model>> target;  // by tp_rank
  PassTimes target_times, draft_times;         // see LoadedModel
  std::unique_ptr<Collectives> single;
  std::unique_ptr<Model> draft;           // with --draft-model, on one rank
  std::shared_ptr<const DraftHead> head;  // with --q-format hidden

  // Loads all models at the same time, with the threads they will have in a cluster.
  static Result<LocalModels> load(const RoleSettings& settings, const Preparation& prepared);
};

class LocalCluster {
 public:
  // Every role loads its own model, unless `models` contains it; all arguments must outlive the cluster.
  LocalCluster(const ClusterSettings& settings, const Preparation& prepared, LocalModels* models = nullptr,
               RoleSeams seams = {});
  ~LocalCluster();  // every role must have been shut down before

  std::unique_ptr<Transport> coordinator_end() { return hub_->coordinator_end(); }
  // The coordinator's end, with an endpoint for draft workers (--listen) if requested.
  Result<std::unique_ptr<Transport>> listening_end();
  // After an error destroy the coordinator's end, so that the started roles leave.
  Status start_target();   // all its groups
  Status start_drafter();  // call once for each drafter
  // Starts everything: the target groups, unless they join (--listen-targets), `drafters` drafters, and the
  // coordinator's end; `listens`: the listening end.
  Result<std::unique_ptr<Transport>> start(int drafters, bool listens);
  // The error of the first role that failed, if any.
  Status error() const;
  // The same once all roles have ended, which were shut down before.
  Status wait();

 private:
  void note(const Status& status);
  Status start_role(std::function<void()> role);
  // A single target shares the coordinator's thread, which is idle during its passes; so does the drafter
  // where it never works at the same time. Null: a thread of its own.
  Lend lend(Role role) const;

  const ClusterSettings& settings_;
  const Preparation& prepared_;
  LocalModels* const models_;
  const RoleSeams seams_;
  std::shared_ptr<InprocHub> hub_;
  std::vector<std::vector<std::unique_ptr<Collectives>>> groups_;        // of target ranks
  std::vector<std::vector<std::unique_ptr<Collectives>>> draft_groups_;  // of the ranks of each draft worker
  mutable std::mutex mutex_;
  Status error_;
  std::vector<std::jthread> threads_;
  int drafters_ = 0;
  std::shared_ptr<const DraftHead> head_;  // of all roles; null: none, or not loaded
};

}  // namespace outrider
