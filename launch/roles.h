// The roles of a run, wherever they live: threads of one process, or processes of one mpirun.
#pragma once

#include "comm/collectives.h"
#include "comm/transport.h"
#include "coordinator/protocol.h"
#include "launch/options.h"
#include "launch/prepare.h"

namespace outrider {

// How the threads of one process are shared out.
struct RoleThreads {
  int count = 1;
  bool spin = false;
};

// Loads this rank's shard and serves until told to leave. `transport` on the leader only. An error was also
// reported to the coordinator.
Status run_target_rank(const RunOptions& options, const Preparation& prepared, RoleThreads threads,
                       Collectives& group, Transport* transport);

// Loads the draft model (or none, for n-gram) and serves until told to leave.
Status run_draft_worker(const RunOptions& options, const Preparation& prepared, RoleThreads threads,
                        Transport& transport);

// The coordinator's limits for these options; the same numbers size the workers' buffers.
Result<ProtocolOptions> protocol_options(const RunOptions& options, const Preparation& prepared);

}  // namespace outrider
