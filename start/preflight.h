// `--preflight`: what a job checks before its ranks load models, and a table of the ranks for the operator.
#pragma once

#include <chrono>
#include <string>

#include "base/status.h"
#include "cluster/bootstrap.h"
#include "comm/collectives.h"
#include "start/role_threads.h"
#include "start/settings.h"

namespace outrider {

// "0.2.0, commit 9c86044b".
std::string version_and_commit();

// Collective, once the ranks have compared their settings and weights (rank_setup.h). The coordinator and
// each rank that has a link to it exchange a message, and the ranks compare their clocks. Rank 0 prints one
// line per rank. kUnavailable: a message did not come through; kInvalidArgument: the ranks have several
// versions. Either is the same on all ranks.
struct PreflightOptions {
  std::chrono::milliseconds patience{10'000};  // for the message of each link
  std::string version = version_and_commit();  // of this rank's program
};
Status check_ranks(Collectives& world, RankContext& rank, const ClusterSettings& settings,
                   RoleThreads threads, const PreflightOptions& options = {});

// The same for a job of one process.
void print_preflight(const ClusterSettings& settings, RoleThreads threads);

}  // namespace outrider
