// `--preflight`: what a job checks before its ranks load models, and a table of the ranks for the operator.
#pragma once

#include "base/status.h"
#include "cluster/bootstrap.h"
#include "comm/collectives.h"
#include "start/role_threads.h"
#include "start/settings.h"

namespace outrider {

// Collective, once the ranks have compared their settings and weights (rank_setup.h). The coordinator and
// each rank that has a link to it exchange a message, and the ranks compare their clocks. Rank 0 prints one
// line per rank. kUnavailable: a message did not come through; kInvalidArgument: the ranks have several
// versions. Either is the same on all ranks.
Status check_ranks(Collectives& world, RankContext& rank, const ClusterSettings& settings,
                   RoleThreads threads);

// The same for a job of one process.
void print_preflight(const ClusterSettings& settings, RoleThreads threads);

}  // namespace outrider
