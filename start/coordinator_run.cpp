#include "start/coordinator_run.h"

#include <fmt/format.h>

#include <cstdio>

#include "base/printable.h"
#include "base/program/exit_codes.h"

namespace outrider {
namespace {

int fail(const Status& status) {
  tell_error(status.message());
  return status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kDeadlineExceeded
             ? kExitRuntime
             : kExitUsage;
}

int tell(const Result<int>& code) { return code.ok() ? *code : fail(code.status()); }

}  // namespace

int run_coordinator(const ClusterSettings& settings, const CoordinatorSide& coordinate) {
  if (MpiCluster::launched())
    return MpiCluster::run(
        settings, [&](const ClusterSettings& rank_settings, const Preparation& prepared, MpiCluster& mpi) {
          tell_warnings(prepared);
          return tell(coordinate(rank_settings, prepared, &mpi));
        });
  if (!settings.mpi.layout.empty())
    return fail(invalid_argument(fmt::format(
        "--layout {}: this is one process; start it with mpirun, or drop the flag", settings.mpi.layout)));
  if (const Status pool = check_pool_settings(settings); !pool.ok()) return fail(pool);
  auto prepared = prepare(settings);
  if (!prepared.ok()) return fail(prepared.status());
  if (settings.targets_join())
    if (const Status known = identify_target(settings, *prepared); !known.ok()) return fail(known);
  tell_warnings(*prepared);
  return tell(coordinate(settings, *prepared, nullptr));
}

}  // namespace outrider
