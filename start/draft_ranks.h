// A draft model over several ranks of one draft worker. Rank 0 is the worker: it drafts, and alone is known
// to the coordinator. The others hold their part of the model and do what it says.
#pragma once

#include <memory>

#include "comm/collectives.h"
#include "start/prepare.h"
#include "start/role_threads.h"
#include "start/settings.h"
#include "transformer/model/model.h"

namespace outrider {

// Rank 0's hold on the others, which wait for a model to load until it ends. One rank: a plain load_draft().
class DraftRanks {
 public:
  // Must all outlive it.
  DraftRanks(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
             Collectives& group)
      : settings_(settings), prepared_(prepared), threads_(threads), group_(group) {}
  ~DraftRanks();
  DraftRanks(const DraftRanks&) = delete;
  DraftRanks& operator=(const DraftRanks&) = delete;

  // A model at a time, which must end before this does. Throws CollectiveError where a rank is gone, and the
  // model's passes do.
  Result<std::unique_ptr<Model>> load();

 private:
  const RoleSettings& settings_;
  const Preparation& prepared_;
  const RoleThreads threads_;
  Collectives& group_;
};

// Ranks 1 and up, until rank 0 is at its end. An error, which ends the others too: this rank cannot go on, or
// another one is gone.
Status run_draft_follower(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                          Collectives& group);

}  // namespace outrider
