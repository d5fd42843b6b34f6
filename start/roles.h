// The roles of a run, wherever they live: threads of one process, or processes of one mpirun.
#pragma once

#include "cluster/slice_doors.h"
#include "comm/collectives.h"
#include "comm/transport.h"
#include "coordinator/coordinator.h"
#include "draft_worker/drafter.h"
#include "draft_worker/head_drafting.h"
#include "start/prepare.h"
#include "start/role_threads.h"
#include "start/settings.h"
#include "transformer/model/draft_head.h"
#include "transformer/model/model.h"

namespace outrider {

// This rank's shard of the target, of the target group with this number, and the draft model, or this
// rank's shard of it (draft_ranks.h).
Result<std::unique_ptr<Model>> load_target(const RoleSettings& settings, const Preparation& prepared,
                                           RoleThreads threads, Collectives& group, int target_group = 0);
Result<std::unique_ptr<Model>> load_draft(const RoleSettings& settings, const Preparation& prepared,
                                          RoleThreads threads, Collectives& group);

// With --q-format hidden the draft model's output head, the rows of these ids; else null.
Result<std::shared_ptr<const DraftHead>> load_draft_head(const RoleSettings& settings, IndexRange ids,
                                                         RoleThreads threads);

// The head of --drafter eagle3 and its like, wherever it drafts, for so many sequences; and a drafter of a
// draft worker with it, which it must outlive.
Result<std::unique_ptr<Head>> load_head(const RoleSettings& settings, const Preparation& prepared,
                                        RoleThreads threads, int32_t sequences);
std::unique_ptr<Drafter> make_head_worker(const ModelSettings& models, Head& head,
                                          std::vector<TokenId> eos_ids);

// `head`, if worker 0, 1, ... (device.h) drafts where it can use it: not on a device.
const DraftHead* offered_head(const ModelSettings& models, int worker, const DraftHead* head);

// A drafter for a target with this vocabulary; `model` with --draft-model, its `head`, if it may send states,
// and `rows`, where rows of q may stay on its device, must outlive it.
std::unique_ptr<Drafter> make_drafter(const ModelSettings& models, const Preparation& prepared, Model* model,
                                      int64_t vocab_size, std::vector<TokenId> eos_ids, const DraftHead* head,
                                      RowSender* rows = nullptr);
// One life of a worker: a restarted one is told from the one that died.
Generation new_generation();

// Gives a role that has joined to the coordinator's thread (InprocHub::lend) until it is told to leave; null:
// it serves on its own.
using Lend = std::function<void(Transport&, const std::function<bool()>& turn)>;

// What a role need not load itself.
struct Loaded {
  Model* model = nullptr;
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

using ErrorOf = std::function<Status()>;
// Peers load their models first, which may take minutes; a role that fails says so through `error`.
Status wait_until_ready(Coordinator& coordinator, size_t workers, std::chrono::seconds timeout,
                        const ErrorOf& error);

// Behind --emulate-link, if that was asked for. `prepared` must outlive it.
Result<std::unique_ptr<Coordinator>> make_coordinator(const ClusterSettings& settings,
                                                      const Preparation& prepared,
                                                      std::unique_ptr<Transport> transport,
                                                      GammaPolicyFactory policy,
                                                      CoordinatorCallbacks callbacks, Trace* trace);

// The coordinator's limits for these settings; the same numbers size the workers' buffers.
Result<ProtocolOptions> protocol_options(const ClusterSettings& settings, const Preparation& prepared);

}  // namespace outrider
