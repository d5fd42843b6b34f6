// One rank of `mpirun outrider generate`: finds its role and serves it. MPI carries the target group's collectives
// and the rendezvous; roles talk over ZeroMQ.
#pragma once

#include <functional>
#include <memory>

#include "comm/transport.h"
#include "launch/options.h"
#include "launch/prepare.h"

namespace outrider {

class MpiCluster {
 public:
  // Whether mpirun (or srun) started this process as one of several ranks.
  static bool launched();

  using Coordinate = std::function<int(const RunOptions&, const Preparation&, MpiCluster&)>;
  // Runs this rank's role and returns its exit code; `coordinate` is called on the coordinator's rank.
  static int run(const RunOptions& options, const Coordinate& coordinate);

  // On the coordinator: input is checked; the other ranks may load. Until then a bad flag costs nobody anything.
  Status start();
  std::unique_ptr<Transport> take_transport();

 private:
  struct State;
  explicit MpiCluster(State& state) : state_(state) {}
  State& state_;
};

}  // namespace outrider
