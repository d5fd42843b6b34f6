// One rank of `mpirun outrider generate`: finds its role and serves it. MPI carries the target group's
// collectives and the rendezvous; roles talk over ZeroMQ.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cluster/topology.h"
#include "comm/collectives.h"
#include "comm/transport.h"
#include "start/prepare.h"
#include "start/settings.h"

namespace outrider {

class MpiSession;

class MpiCluster {
 public:
  // Whether mpirun (or srun) started this process as one of several ranks.
  static bool launched();
  // Whether this process tells what all of them see: rank 0, or the only one.
  static bool is_first();

  // Collective over a launched job: where its ranks are, in rank order.
  static std::vector<HostInfo> hosts();

  using Coordinate = std::function<int(const ClusterSettings&, const Preparation&, MpiCluster&)>;
  // Runs this rank's role and returns its exit code; `coordinate` is called on the coordinator's rank.
  static int run(const ClusterSettings& settings, const Coordinate& coordinate);

  // Where all ranks are one target group (`outrider target-group`): what each of them does, with so many
  // cores of its host. `local`: among the ranks of its host. Returns the exit code; a rank that throws ends
  // the job.
  using GroupRank = std::function<int(Collectives& group, int local, int cores)>;
  static int run_group(const GroupRank& rank);

  // For a rank whose command line was refused (or was --help): `out` and `error` are printed once, by rank 0,
  // and a refusal on any rank ends the job. Returns `code`.
  static int leave(const std::string& out, const std::string& error, int code);

  // On the coordinator: input is checked; the other ranks may load. Until then a bad flag costs nobody
  // anything.
  Status start();
  std::unique_ptr<Transport> take_transport();
  int draft_workers() const;

 private:
  struct State;
  explicit MpiCluster(State& state) : state_(state) {}
  static int run_rank(const MpiSession& session, const ClusterSettings& settings,
                      const Coordinate& coordinate);
  State& state_;
};

}  // namespace outrider
