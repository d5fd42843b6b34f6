// The roles of a run, wherever they live: threads of one process, or processes of one mpirun.
#pragma once

#include "cluster/slice_doors.h"
#include "comm/collectives.h"
#include "comm/transport.h"
#include "start/prepare.h"
#include "start/role_threads.h"
#include "start/settings.h"
#include "transformer/model/draft_head.h"
#include "transformer/model/model.h"

namespace outrider {

// One life of a worker: a restarted one is told from the one that died.
Generation new_generation();

// Tells this process from every other.
uint64_t this_process();

// Gives a role, a target once it has joined, to the coordinator's thread (InprocHub::lend) until it is told
// to leave; null: it serves on its own.
using Lend = std::function<void(Transport&, const std::function<bool()>& turn)>;

// What a role need not load itself.
struct Loaded {
  Model* model = nullptr;
  float row_price = kUnknownPrice;  // of a target (LoadedTarget)
  std::shared_ptr<const DraftHead> head;
};

// Each loads its model, unless it is given one, and serves until told to leave. An error was also reported to
// the coordinator. `transport` of the target on the leader only, `door` where q may come in slices; an n-gram
// drafter needs no model.
Status run_target_rank(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                       Collectives& group, Transport* transport, Loaded loaded = {},
                       const Lend& lend = nullptr, OpenSliceDoor door = {}, int target_group = 0);
struct JoinedLife {
  std::function<bool()> asked_to_leave;
  std::function<void()> on_joined;  // on the leader
};
// One life of a rank of a group that joined from elsewhere, with a model of this rank's that outlives it. An
// error: the coordinator refused the group, gave it up, or is gone, and the group may join again. Throws
// where the group is finished.
Status run_joined_rank(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                       Collectives& group, Transport* transport, Loaded loaded, const JoinedLife& life);
// `group`: the ranks of the draft worker, of which this is the first; the others run run_draft_follower
// (draft_ranks.h), and end when it ends.
Status run_draft_worker(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                        Collectives& group, Transport& transport, Loaded loaded = {},
                        const Lend& lend = nullptr);

// Tells the coordinator of an error, so that requests end at once and not at a deadline; null: nobody.
Status report_failure(Transport* transport, Status status);

}  // namespace outrider
