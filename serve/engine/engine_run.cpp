#include "serve/engine/engine_run.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/json_text.h"
#include "base/printable.h"
#include "base/program/exit_codes.h"
#include "base/program/interrupt.h"
#include "coordinator/trace.h"
#include "requests/output.h"
#include "requests/report.h"
#include "serve/engine/activity_log.h"
#include "start/describe.h"
#include "start/local_cluster.h"
#include "start/make_coordinator.h"

namespace outrider {
namespace {

Status write_reports(const EngineRun& run, const Coordinator& coordinator, const Trace& trace) {
  nlohmann::json metrics;
  coordinator.fill_report(metrics);
  const Totals& totals = coordinator.totals();
  const RunDescription description = describe_run(run.cluster, run.prepared);
  constexpr int kPatienceMs = 1000;
  if (run.tells_activity && !run.cluster.quiet && totals.rounds.emitted > 0 && can_tell(kPatienceMs))
    std::fputs(screen_report(description, totals, metrics, std::nullopt).c_str(), stderr);
  if (!run.files.report.empty())
    RETURN_IF_ERROR(write_file(run.files.report,
                               json_text(json_report(description, totals, std::move(metrics)), 2) + "\n")
                        .in("--report"));
  if (!run.files.trace.empty()) RETURN_IF_ERROR(write_trace(run.files.trace, trace).in("--trace"));
  return {};
}

// Runs from ready to drained.
Status serve_requests(const EngineRun& run, Coordinator& coordinator) {
  ActivityLog log(run.tells_activity && !run.cluster.quiet);
  bool told = false;
  const Status target = run.engine.serve(
      coordinator,
      [&] {
        if (!std::exchange(told, true)) run.on_ready();
        log.look(run.engine);
        return run.asked_to_drain();
      },
      run.drain_limit);
  run.drained();
  return target;
}

[[noreturn]] void end_at_once(int code) {
  std::fflush(nullptr);
  std::_Exit(code);
}

// Ends the process at once, because a thread of a failed target may hang.
[[noreturn]] void end_without_waiting(const Status& status) {
  tell_error(status.message());
  end_at_once(kExitRuntime);
}

}  // namespace

Result<int> run_engine(const EngineRun& run, MpiCluster* mpi) {
  const ClusterSettings& cluster = run.cluster;
  std::optional<LocalCluster> local;
  if (!mpi) local.emplace(cluster, run.prepared);
  const int workers = !cluster.models.has_draft_workers() ? 0
                      : mpi                               ? mpi->draft_workers()
                                                          : cluster.pool.num_draft_workers;
  ASSIGN_OR_RETURN(auto transport,
                   mpi ? mpi->take_transport() : local->start(workers, !cluster.pool.listen.empty()));
  Trace trace;
  ASSIGN_OR_RETURN(auto coordinator,
                   make_coordinator(cluster, run.prepared, std::move(transport), run.policy,
                                    run.engine.callbacks(), run.files.trace.empty() ? nullptr : &trace));
  const int waits_for =
      cluster.pool.listen.empty() ? workers : cluster.pool.wait_for_draft_workers.value_or(workers);
  if (mpi && !cluster.quiet)
    tell_error(fmt::format(
        "SIGTERM to process {} (rank 0) drains and ends the job; mpirun kills its ranks instead", getpid()));
  if (cluster.targets_join())
    run.engine.wait_for("waits for a target group, or draft workers, to join (--listen-targets)");
  // Peers that have joined already are sent a Shutdown; without one they would take the end for a loss.
  const bool has_peers = mpi || !cluster.pool.listen.empty() || cluster.targets_join();
  if (has_peers) note_first_signal();
  const auto is_stopped = [&] { return has_peers && noted_signal() != 0; };
  const Status ready = wait_until_ready(
      *coordinator, static_cast<size_t>(waits_for), std::chrono::seconds(cluster.models.startup_timeout_s),
      [&] {
        if (is_stopped()) return unavailable("interrupted");
        return local ? local->error() : Status();
      },
      cluster.quiet);
  const Status target = ready.ok() ? serve_requests(run, *coordinator) : ready;
  // Ranks of an mpirun that still load would miss the Shutdown, so they are waited for.
  if (!ready.ok() && is_stopped() && mpi && !cluster.targets_join())
    (void)wait_until_ready(*coordinator, static_cast<size_t>(workers),
                           std::chrono::seconds(cluster.models.startup_timeout_s), [] { return Status(); });
  coordinator->shutdown();
  if (!ready.ok() && is_stopped()) {
    run.drained();
    coordinator.reset();                            // sends what waits
    if (local) end_at_once(run.code_when_stopped);  // its threads may load for minutes
    return run.code_when_stopped;
  }
  RETURN_IF_ERROR(ready);
  const Status written = write_reports(run, *coordinator, trace);
  if (!target.ok() && local) end_without_waiting(target);
  RETURN_IF_ERROR(target);
  RETURN_IF_ERROR(written);
  return kExitOk;
}

}  // namespace outrider
