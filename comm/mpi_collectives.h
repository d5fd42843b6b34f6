// Collectives whose ranks are processes of one MPI communicator.
#pragma once

#include <memory>

#include "comm/collectives.h"
#include "comm/mpi.h"

namespace outrider {

// How a rank passes the time until a message arrives. Busy polling is fastest if every rank has its own core,
// and a thousand times slower than yielding if not.
enum class Waiting { kSpin, kYield };

// Collective. Spin only if the ranks on every host have a core each, by affinity and CPU quota.
Waiting choose_waiting(const MpiComm& world);

// Collective. After a CollectiveError the group is finished, and the job with it: end with
// MpiSession::abort_job.
std::unique_ptr<Collectives> make_mpi_collectives(MpiComm comm, Waiting waiting,
                                                  const CollectiveOptions& options = {});

}  // namespace outrider
