// Starts every command that coordinates: in one process, with all roles as its threads, or as a rank of an
// mpirun.
#pragma once

#include <functional>

#include "start/mpi_cluster.h"
#include "start/prepare.h"
#include "start/settings.h"

namespace outrider {

// The coordinator's work, from input to report: returns the exit code, or an error. `mpi` is null in one
// process.
using CoordinatorSide =
    std::function<Result<int>(const ClusterSettings&, const Preparation&, MpiCluster* mpi)>;

// Prepares, and runs this process's role. Returns the exit code; errors were printed.
int run_coordinator(const ClusterSettings& settings, const CoordinatorSide& coordinate);

// With --preflight, called once the input was checked, in place of the run: checks the ranks or, in one
// process, the ports of --listen and --listen-targets, and prints what was found.
Result<int> preflight(const ClusterSettings& settings, const Preparation& prepared, MpiCluster* mpi);

}  // namespace outrider
