// Collectives whose ranks are processes of one MPI communicator.
#pragma once

#include <memory>

#include "comm/collectives.h"
#include "comm/mpi.h"

namespace outrider {

// The way of waiting for a message. Busy polling is fastest if every rank has its own core, and a thousand
// times slower than yielding otherwise.
enum class Waiting { kSpin, kYield };

// Collective. kSpin only if all ranks of every host have a core each, by affinity and CPU quota.
Waiting choose_waiting(const MpiComm& world);

// Collective. After a CollectiveError the group and the job are finished: end with MpiSession::abort_job.
std::unique_ptr<Collectives> make_mpi_collectives(MpiComm comm, Waiting waiting,
                                                  const CollectiveOptions& options = {});

}  // namespace outrider
