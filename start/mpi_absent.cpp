// Built without MPI: a launch by mpirun is refused, everything else works.
#include <cstdio>
#include <cstdlib>

#include "base/program/exit_codes.h"
#include "start/mpi_cluster.h"

namespace outrider {

bool MpiCluster::launched() {
  const char* size = std::getenv("OMPI_COMM_WORLD_SIZE");
  return size != nullptr && std::atoi(size) > 1;
}

bool MpiCluster::is_first() { return true; }

int MpiCluster::run(const ClusterSettings&, const Coordinate&) {
  std::fputs("outrider: started by mpirun, but built without MPI; install Open MPI and build again\n",
             stderr);
  return kExitUsage;
}

int MpiCluster::run_group(const GroupRank&) { return run({}, nullptr); }

int MpiCluster::leave(const std::string& out, const std::string& error, int code) {
  std::fputs(out.c_str(), stdout);
  std::fputs(error.c_str(), stderr);
  return code;
}

std::vector<HostInfo> MpiCluster::hosts() { return {}; }

Status MpiCluster::start() { return unsupported("built without MPI"); }
Status MpiCluster::preflight() { return unsupported("built without MPI"); }
std::unique_ptr<Transport> MpiCluster::take_transport() { return nullptr; }
int MpiCluster::draft_workers() const { return 0; }

}  // namespace outrider
