// Runs an engine with all its roles, from loading models to writing reports, for any kind of clients.
#pragma once

#include <chrono>
#include <functional>

#include "base/program/exit_codes.h"
#include "coordinator/gamma/gamma_policy.h"
#include "requests/run_files.h"
#include "serve/engine/coordinator_engine.h"
#include "start/mpi_cluster.h"
#include "start/prepare.h"
#include "start/settings.h"

namespace outrider {

struct EngineRun {
  const ClusterSettings& cluster;  // of this process; under mpirun of its rank
  const Preparation& prepared;
  const RunFiles& files;  // the report and the trace
  CoordinatorEngine& engine;
  GammaPolicyFactory policy;
  std::function<void()> on_ready;        // called once, on the engine's thread, as is the next one
  std::function<bool()> asked_to_drain;  // polled several times a second
  std::function<void()> drained;         // called before the roles leave
  std::chrono::seconds drain_limit{30};
  int code_when_stopped = kExitOk;  // exit code after a signal that came before the peers were there
  bool tells_activity = true;  // on standard error, now and then and at the end; --quiet leaves out both
};

// The exit code.
Result<int> run_engine(const EngineRun& run, MpiCluster* mpi);

}  // namespace outrider
