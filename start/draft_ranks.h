// A draft model over several ranks of one draft worker. Rank 0 is the worker: it drafts, and the coordinator
// knows only it. The other ranks hold their part of the model and follow rank 0.
#pragma once

#include <memory>

#include "comm/collectives.h"
#include "model/model.h"
#include "start/load_models.h"
#include "start/prepare.h"
#include "start/role_threads.h"
#include "start/settings.h"

namespace outrider {

// Rank 0's control of the other ranks, which wait for models to load until it ends. With one rank: a plain
// load_draft().
class DraftRanks {
 public:
  // Must all outlive it.
  DraftRanks(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
             Collectives& group)
      : settings_(settings), prepared_(prepared), threads_(threads), group_(group) {}
  ~DraftRanks();
  DraftRanks(const DraftRanks&) = delete;
  DraftRanks& operator=(const DraftRanks&) = delete;

  // Loads one model at a time; it must be destroyed before this. Throws CollectiveError if a rank is gone,
  // and so do the model's passes.
  Result<LoadedModel> load();

 private:
  const RoleSettings& settings_;
  const Preparation& prepared_;
  const RoleThreads threads_;
  Collectives& group_;
};

// Runs ranks 1 and up, until rank 0 ends. An error, which ends the other ranks too: this rank cannot go on,
// or another one is gone.
Status run_draft_follower(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                          Collectives& group);

}  // namespace outrider
