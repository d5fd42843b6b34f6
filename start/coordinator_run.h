// How every command that coordinates starts: in one process, with all roles as its threads, or as a rank of
// an mpirun.
#pragma once

#include <functional>

#include "start/mpi_cluster.h"
#include "start/prepare.h"
#include "start/settings.h"

namespace outrider {

// The coordinator's side, from input to report: the exit code, or what went wrong. `mpi` is null in one
// process.
using CoordinatorSide =
    std::function<Result<int>(const ClusterSettings&, const Preparation&, MpiCluster* mpi)>;

// Prepares, and runs this process's role. Returns the exit code; errors were printed.
int run_coordinator(const ClusterSettings& settings, const CoordinatorSide& coordinate);

}  // namespace outrider
