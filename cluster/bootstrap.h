// From "mpirun started me" to a role with its connections. MPI is used here and inside the target group only;
// from then on roles talk over ZeroMQ. Ports are never fixed: the coordinator binds any, and tells the others
// through MPI.
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

struct BootstrapOptions {
  std::string layout;             // --layout, empty: default_layout; rank 0's counts
  int groups = 1;                 // --data-parallel-size; the same
  int draft_width = 1;            // --draft-tensor-parallel-size; the same
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

// What one rank starts its role with. Must end before the MPI session does.
struct RankContext {
  Topology topology;
  RankPlace self;
  std::string endpoint;  // of the coordinator
  bool one_host = true;  // for all ranks
  std::string host;      // several hosts, target ranks: this one's address for the others; may be empty
  std::optional<CurveKeys> curve;  // of this rank's end
  // Coordinator: its end of every link. Draft workers and the leader: their end. Other ranks of theirs: null.
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Collectives> collectives;  // target ranks, and draft workers of several ranks
};

// Collective. Everybody's status: a failure anywhere is a failure everywhere. A rank that failed keeps its
// own words, the others get those of the lowest one, and its name.
Status agree(Collectives& world, const Status& mine);

// Collective. Where each rank runs, in rank order; `gpus`: on this rank's host.
std::vector<HostInfo> gather_hosts(Collectives& world, int gpus);

// Collective over `world`, all ranks of the job, and so is its failure: every rank gets an error, each with
// its own view.
Result<RankContext> bootstrap(const MpiComm& world, const BootstrapOptions& options);

}  // namespace outrider
