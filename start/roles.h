// The roles of a run, in any place: threads of one process, or processes of one mpirun.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "cluster/slice_endpoints.h"
#include "comm/collectives.h"
#include "comm/transport.h"
#include "model/draft_head.h"
#include "model/model.h"
#include "start/block_ends.h"
#include "start/prepare.h"
#include "start/role_threads.h"
#include "start/row_links.h"
#include "start/settings.h"

namespace outrider {

// A number for one life of a worker, which distinguishes it from a restarted one.
Generation new_generation();

// A number that distinguishes this process from all others.
uint64_t this_process();

// Lends a role (a target after it has joined) to the coordinator's thread (InprocHub::lend) until its
// Shutdown; null: the role runs on its own thread.
using Lend = std::function<void(Transport&, const std::function<bool()>& turn)>;

// Parts of a role that tests replace or watch. The defaults are those of every run.
struct RoleSeams {
  std::string gpu;                                  // of a draft worker, for links; empty: linkable_gpu()
  LinkMaker q_links, hidden_state_links;            // NCCL's want a GPU for each end
  std::optional<Device> head_device;                // of a head beside the target; default: the target's
  std::chrono::milliseconds patience{2000};         // with rows that were announced; a loaded machine is slow
  std::chrono::milliseconds connect_timeout{1000};  // of a draft worker, to the target's ranks; the same
  std::function<void(Role, Model&)> ended;          // told each model when its role's work is over
};

// Objects that a role need not load itself.
struct Loaded {
  Model* model = nullptr;
  PassTimes pass_times = {};  // of the model (LoadedModel)
  std::shared_ptr<const DraftHead> head;
  bool is_timed = true;  // as of load_target()
  RoleSeams seams = {};
};

// Each role loads its model, unless it is given one, and serves until its Shutdown. An error was also
// reported to the coordinator. `transport`: of the target, on the leader only. `endpoint`: the endpoint for
// slices of q. Drafters without a model need no weights.
Status run_target_rank(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                       Collectives& group, Transport* transport, Loaded loaded = {},
                       const Lend& lend = nullptr, OpenSliceEndpoint endpoint = {}, int target_group = 0,
                       BlockEnd blocks = {});
struct JoinedLife {
  std::function<bool()> asked_to_leave;
  std::function<void()> on_joined;  // on the leader
};
// One life of a rank of a group that joined from elsewhere, with a model of this rank's that outlives it. An
// error: the coordinator refused the group, gave it up, or is gone, and the group may join again. Throws if
// the group itself is finished.
Status run_joined_rank(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                       Collectives& group, Transport* transport, Loaded loaded, const JoinedLife& life);
// `group`: the ranks of the draft worker, with this one first; the others run run_draft_follower
// (draft_ranks.h), and end with this one.
Status run_draft_worker(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                        Collectives& group, Transport& transport, Loaded loaded = {},
                        const Lend& lend = nullptr);

// Reports an error to the coordinator, so that requests end at once and not at a deadline; null: no report.
Status report_failure(Transport* transport, Status status);

}  // namespace outrider
