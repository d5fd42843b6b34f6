#include "start/coordinator_run.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "base/printable.h"
#include "base/program/exit_codes.h"
#include "comm/cores.h"
#include "start/local_cluster.h"
#include "start/preflight.h"

namespace outrider {
namespace {

// Tasks of an srun without MPI support do not find each other: each task is a run of its own.
int tasks_without_mpi() {
  const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");
  return tasks ? std::atoi(tasks) : 1;
}
bool is_first_task() {
  const char* task = std::getenv("SLURM_PROCID");
  return !task || std::atoi(task) == 0;
}

void tell_all(const Preparation& prepared, const ClusterSettings& settings) {
  tell_warnings(prepared);
  for (const std::string& flag : flags_without_drafter(settings)) tell_error("warning: " + flag);
}

}  // namespace

int run_coordinator(const ClusterSettings& settings, const CoordinatorSide& coordinate) {
  if (MpiCluster::launched())
    return MpiCluster::run(
        settings, [&](const ClusterSettings& rank_settings, const Preparation& prepared, MpiCluster& mpi) {
          tell_all(prepared, rank_settings);
          return told_exit_code(coordinate(rank_settings, prepared, &mpi));
        });
  const int tasks = tasks_without_mpi();
  if (!settings.mpi.layout.empty())
    return told_exit_code(invalid_argument(
        tasks > 1 ? fmt::format("--layout {}: srun started {} tasks without an MPI; add --mpi=pmix to srun",
                                settings.mpi.layout, tasks)
                  : fmt::format("--layout {}: this is one process; start it with mpirun, or with srun "
                                "--mpi=pmix, or drop the flag",
                                settings.mpi.layout)));
  if (tasks > 1 && is_first_task())
    std::fprintf(
        stderr,
        "outrider: warning: srun started %d tasks without an MPI, and each is a run of its own; for one "
        "run over all of them add --mpi=pmix to srun\n",
        tasks);
  if (const Status pool = check_pool_settings(settings); !pool.ok()) return told_exit_code(pool);
  auto prepared = prepare(settings);
  if (!prepared.ok()) return told_exit_code(prepared.status());
  if (settings.targets_join())
    if (const Status known = identify_target(settings, *prepared); !known.ok()) return told_exit_code(known);
  tell_all(*prepared, settings);
  return told_exit_code(coordinate(settings, *prepared, nullptr));
}

Result<int> preflight(const ClusterSettings& settings, const Preparation& prepared, MpiCluster* mpi) {
  if (mpi) {
    RETURN_IF_ERROR(mpi->preflight());
    return kExitOk;
  }
  if (!settings.pool.listen.empty() || settings.targets_join()) {
    LocalCluster cluster(settings, prepared);
    RETURN_IF_ERROR(cluster.listening_end().status());  // opens the ports
  }
  print_preflight(settings, role_threads(settings.models.threads, usable_cores()));
  return kExitOk;
}

}  // namespace outrider
