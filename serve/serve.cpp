#include "serve/serve.h"

#include <fmt/format.h>

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
#include "serve/activity_log.h"
#include "serve/coordinator_engine.h"
#include "start/coordinator_run.h"
#include "start/describe.h"
#include "start/local_cluster.h"
#include "transformer/chat_template/chat_template.h"

namespace outrider {
namespace {

// Answers are complete by then, and only have to be sent.
constexpr std::chrono::seconds kLastAnswers{5};

// What the roles of one server share, from before they load until they are gone.
struct Server {
  const ServeOptions& options;
  const ClusterSettings& cluster;  // of this process: under mpirun of its rank
  const Preparation& prepared;
  CoordinatorEngine& engine;
  HttpServer& http;
  GammaPolicyFactory policy;
};

Status write_reports(const Server& server, const Coordinator& coordinator, const Trace& trace) {
  const ServeOptions& options = server.options;
  nlohmann::json metrics;
  coordinator.fill_report(metrics);
  const Totals& totals = coordinator.totals();
  const RunDescription run = describe_run(server.cluster, server.prepared);
  if (!server.cluster.quiet && totals.rounds.emitted > 0)
    std::fputs(screen_report(run, totals, metrics, std::nullopt).c_str(), stderr);
  if (!options.files.report.empty())
    RETURN_IF_ERROR(
        write_file(options.files.report, json_text(json_report(run, totals, std::move(metrics)), 2) + "\n")
            .in("--report"));
  if (!options.files.trace.empty()) RETURN_IF_ERROR(write_trace(options.files.trace, trace).in("--trace"));
  return {};
}

void tell_address(const Server& server) {
  const ServeOptions& options = server.options;
  tell_error(fmt::format(
      "serving {} on {}",
      options.served_model_names.empty() ? server.cluster.models.model : options.served_model_names.front(),
      server.http.address()));
}

// From ready to drained.
Status serve_requests(const Server& server, Coordinator& coordinator) {
  const ServeOptions& options = server.options;
  note_first_signal();
  ActivityLog log(!server.cluster.quiet);
  bool told = false;
  const Status target = server.engine.serve(
      coordinator,
      [&] {
        if (!std::exchange(told, true)) tell_address(server);  // who reads it is served
        log.look(server.engine);
        return noted_signal() != 0;
      },
      std::chrono::seconds(options.drain_timeout_s));
  server.http.drain(kLastAnswers);
  return target;
}

// A thread of a target that failed may hang: nobody waits for it.
[[noreturn]] void end_without_waiting(const Status& status) {
  tell_error(status.message());
  std::fflush(nullptr);
  std::_Exit(kExitRuntime);
}

Result<int> run_roles(const Server& server, MpiCluster* mpi) {
  const ClusterSettings& cluster = server.cluster;
  std::optional<LocalCluster> local;
  if (!mpi) local.emplace(cluster, server.prepared);
  const int workers = !cluster.models.has_draft_workers() ? 0
                      : mpi                               ? mpi->draft_ranks()
                                                          : cluster.pool.num_draft_workers;
  ASSIGN_OR_RETURN(auto transport,
                   mpi ? mpi->take_transport() : local->start(workers, !cluster.pool.listen.empty()));
  Trace trace;
  ASSIGN_OR_RETURN(
      const auto coordinator,
      make_coordinator(cluster, server.prepared, std::move(transport), server.policy,
                       server.engine.callbacks(), server.options.files.trace.empty() ? nullptr : &trace));
  const int waits_for =
      cluster.pool.listen.empty() ? workers : cluster.pool.wait_for_draft_workers.value_or(workers);
  const Status ready = wait_until_ready(*coordinator, static_cast<size_t>(waits_for),
                                        std::chrono::seconds(cluster.models.startup_timeout_s),
                                        [&] { return local ? local->error() : Status(); });
  const Status target = ready.ok() ? serve_requests(server, *coordinator) : ready;
  coordinator->shutdown();
  RETURN_IF_ERROR(ready);
  const Status written = write_reports(server, *coordinator, trace);
  if (!target.ok() && local) end_without_waiting(target);
  RETURN_IF_ERROR(target);
  RETURN_IF_ERROR(written);
  return kExitOk;
}

// The port comes before the models: who asks meanwhile is told that they are being loaded.
Result<int> coordinate(const ServeOptions& options, const ClusterSettings& cluster,
                       const Preparation& prepared, MpiCluster* mpi) {
  RETURN_IF_ERROR(check_serve_options(options));
  ASSIGN_OR_RETURN(auto policy, parse_gamma_policy(cluster.speculation.policy()));
  ASSIGN_OR_RETURN(auto api_key, read_api_key(options.api_key_file));
  std::fputs(explain_exposure(options).c_str(), stderr);
  CoordinatorEngine engine({.max_num_seqs = cluster.models.max_num_seqs,
                            .max_queued_requests = options.max_queued_requests,
                            .max_queued_tokens = options.max_queued_tokens});
  ASSIGN_OR_RETURN(const auto api, make_api(options, prepared, load_chat_template(cluster.models.model),
                                            std::move(api_key), engine));
  ASSIGN_OR_RETURN(const auto http, HttpServer::start(options.host, options.port, options.limits,
                                                      [&api](HttpRequest request, auto reply) {
                                                        api->handle(std::move(request), std::move(reply));
                                                      }));
  if (mpi) RETURN_IF_ERROR(mpi->start());
  return run_roles({options, cluster, prepared, engine, *http, std::move(policy)}, mpi);
}

}  // namespace

int run_serve(const ServeOptions& options) {
  set_thread_role("coordinator");
  if (options.cluster.speculation.gamma_policy == "list") {
    std::fputs(list_gamma_policies().c_str(), stdout);
    return kExitOk;
  }
  // mpirun passes signals on to every rank; the others serve until the coordinator has drained.
  if (!MpiCluster::is_first()) note_first_signal();
  return run_coordinator(options.cluster,
                         [&options](const ClusterSettings& cluster, const Preparation& prepared,
                                    MpiCluster* mpi) { return coordinate(options, cluster, prepared, mpi); });
}

}  // namespace outrider
