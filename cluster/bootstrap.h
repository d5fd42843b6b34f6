// Brings a process started by mpirun to its role, with its connections. MPI is used here and inside the
// target group only; afterwards roles use ZeroMQ. No port is fixed: the coordinator binds a free one, and
// sends it to the others through MPI.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cluster/topology.h"
#include "comm/collectives.h"
#include "comm/mpi.h"
#include "comm/transport.h"

namespace outrider {

struct RendezvousOptions {
  std::string layout;             // --layout, empty: default_layout; rank 0's value applies
  int groups = 1;                 // --data-parallel-size and --prefill-groups; rank 0's value applies
  int prefill_groups = 0;         // --prefill-groups, which are among `groups`; rank 0's value applies
  int draft_width = 1;            // --draft-tensor-parallel-size; rank 0's value applies
  int gpus = 0;                   // on this host
  CollectiveOptions collectives;  // of target groups, and of the ranks of a draft worker
  // Keys are drawn at random where TCP is used. Without CURVE in libzmq ranks on several hosts need
  // `allow_remote`.
  ZmqOptions zmq;
  enum class Wire { kAuto, kTcp } wire = Wire::kAuto;  // kAuto: ipc when all ranks share a host
  // Several hosts: the address or interface the coordinator binds. Empty: choose_address
  // (cluster/host_address.h).
  std::string bind_host;
  std::chrono::milliseconds timeout{60'000};  // of each step; a rank may be slow to start
};

// The inputs of one rank's role. Must be destroyed before the MPI session.
struct RankContext {
  Topology topology;
  RankPlace self;
  std::string endpoint;  // of the coordinator
  bool one_host = true;  // for all ranks
  std::string host;      // several hosts, target ranks: the host's address for other ranks; may be empty
  std::optional<CurveKeys> curve;  // of this rank's end
  // The ends of links: the coordinator's; that of a draft worker or leader; null for their other ranks.
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Collectives> collectives;  // target ranks, and draft workers of several ranks
};

// Collective. Combines the statuses of all ranks: a failure of any rank is a failure of all. A failed rank
// keeps its own message, the others get that of the lowest failed rank, with its name.
Status agree(Collectives& world, const Status& mine);

// Collective. The hosts of all ranks, in rank order; `gpus`: on this rank's host.
std::vector<HostInfo> gather_hosts(Collectives& world, int gpus);

// Collective over `world`, all ranks of the job. A failure is collective, too: every rank gets an error.
Result<RankContext> bootstrap(const MpiComm& world, const RendezvousOptions& options);

}  // namespace outrider
