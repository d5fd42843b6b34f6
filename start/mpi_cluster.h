// One rank of `mpirun outrider generate`: finds its role and runs it. MPI carries the target group's
// collectives and the start of the job; roles communicate over ZeroMQ.
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
class PreflightWatch;

class MpiCluster {
 public:
  // Whether mpirun (or srun) started this process as one of several ranks.
  static bool launched();
  // Whether this process prints what all ranks share: rank 0, or the only one.
  static bool is_first();

  // Collective over a launched job: the hosts of its ranks, in rank order.
  static std::vector<HostInfo> hosts();

  using Coordinate = std::function<int(const ClusterSettings&, const Preparation&, MpiCluster&)>;
  // Runs this rank's role and returns its exit code; `coordinate` is called on the coordinator's rank.
  static int run(const ClusterSettings& settings, const Coordinate& coordinate);

  // For jobs whose ranks are one target group (`outrider target-group`): the work of each rank, with `cores`
  // cores of its host. `local`: its number among the ranks of its host. Returns the exit code; a rank that
  // throws ends the job.
  using GroupRank = std::function<int(Collectives& group, int local, int cores)>;
  static int run_group(const GroupRank& rank);

  // For a rank whose command line was refused (or was --help): rank 0 prints `out` and `error` once, and a
  // refusal on any rank ends the job. Returns `code`.
  static int leave(const std::string& out, const std::string& error, int code);

  // On the coordinator, after its input is checked: lets the other ranks load. Until then a bad flag costs no
  // loading.
  Status start();
  // In place of start() with --preflight: checks the ranks (check_ranks()), which end then.
  Status preflight();
  std::unique_ptr<Transport> take_transport();
  int draft_workers() const;

 private:
  struct State;
  explicit MpiCluster(State& state) : state_(state) {}
  static int run_rank(const MpiSession& session, const ClusterSettings& settings,
                      const Coordinate& coordinate, std::optional<PreflightWatch>& watch);
  State& state_;
};

}  // namespace outrider
