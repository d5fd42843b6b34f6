#include "serve/serve.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/event_log.h"
#include "base/printable.h"
#include "base/program/exit_codes.h"
#include "base/program/interrupt.h"
#include "serve/engine/engine_run.h"
#include "serve/monitor/access_log.h"
#include "serve/monitor/span_exporter.h"
#include "start/coordinator_run.h"
#include "start/describe.h"
#include "start/flags/options.h"
#include "text/chat_template/chat_template.h"

namespace outrider {
namespace {

// Time for sending answers that are complete by then.
constexpr std::chrono::seconds kLastAnswers{5};

// Prints the address. Clients that connect after this line are served.
void tell_address(const ServeOptions& options, const HttpServer& http) {
  tell_error(fmt::format("serving {} on {}",
                         options.served_model_names.empty() ? model_display_name(options.cluster.models)
                                                            : options.served_model_names.front(),
                         http.address()));
}

void tell_drain(const ServeOptions& options, const Engine& engine) {
  const EngineNumbers now = engine.numbers();
  log_event(LogLevel::kInfo, "drain",
            fmt::format("takes no more requests; {} running and {} waiting may finish within {} s "
                        "(--drain-timeout); a second signal ends at once",
                        now.running, now.waiting, options.drain_timeout_s),
            {{"running", static_cast<int64_t>(now.running)},
             {"waiting", static_cast<int64_t>(now.waiting)},
             {"reason", fmt::format("signal {}", noted_signal())}});
}

// Empty: there are no traces.
Result<std::shared_ptr<SpanExporter>> open_traces(const ServeOptions& options) {
  ASSIGN_OR_RETURN(auto traces, otlp_target(options.otlp_endpoint, [](const char* name) {
                     const char* const value = std::getenv(name);
                     return std::string(value ? value : "");
                   }));
  if (!traces.warning.empty()) tell_error(traces.warning);
  std::shared_ptr<SpanExporter> spans;
  if (traces.target) spans = std::make_shared<SpanExporter>(*std::move(traces.target));
  return spans;
}

// A standby waits here, after it has read the weights for their fingerprint: they are in memory when it takes
// over. It has no port until then, so proxies see that it does not serve.
Result<BackgroundSetup> open_journal(const ServeOptions& options, const ClusterSettings& cluster) {
  BackgroundSetup background;
  if (options.journal.empty() || (options.standby && cluster.mpi.preflight)) return background;
  if (!options.standby && cluster.mpi.preflight) {
    RETURN_IF_ERROR(Journal::open(options.journal).status());
    return background;
  }
  std::optional<Journal> journal;
  const auto open = [&](const std::function<void()>& on_wait) -> Status {
    ASSIGN_OR_RETURN(Journal opened, Journal::open(options.journal, on_wait));
    journal.emplace(std::move(opened));
    return {};
  };
  if (!options.standby) RETURN_IF_ERROR(open({}));
  ASSIGN_OR_RETURN(const auto fingerprints, request_fingerprints(cluster.models, cluster.speculation));
  if (options.standby) {
    bool waited = false;
    RETURN_IF_ERROR(open([&] {
      waited = true;
      log_event(LogLevel::kInfo, "standby",
                fmt::format("waits for the end of the server that uses --journal {}", options.journal));
    }));
    if (waited)
      log_event(LogLevel::kInfo, "takeover", "the other server has ended; this one takes its place");
  }
  background.journal.emplace(BackgroundJournal{*std::move(journal), fingerprints});
  return background;
}

// Opens the port before the models load: early clients get the answer that the models are loading.
Result<int> coordinate(const ServeOptions& options, const ClusterSettings& cluster,
                       const Preparation& prepared, MpiCluster* mpi) {
  RETURN_IF_ERROR(check_serve_options(options));
  if (options.standby && mpi)
    return invalid_argument(
        "--standby under mpirun: ranks do not wait; start the server alone, with --listen-targets for its "
        "groups");
  ASSIGN_OR_RETURN(auto policy, parse_gamma_policy(cluster.speculation.policy()));
  ASSIGN_OR_RETURN(auto api_keys, read_api_keys(options.api_key_file));
  api_keys.insert(api_keys.end(), options.api_keys.begin(), options.api_keys.end());
  ASSIGN_OR_RETURN(const auto access_log, AccessLog::open(options.access_log));
  ASSIGN_OR_RETURN(auto spans, open_traces(options));
  if (cluster.mpi.preflight) spans.reset();
  ResponseCounts responses;
  std::fputs(explain_exposure(options).c_str(), stderr);
  CoordinatorEngine engine({.max_num_seqs = cluster.models.sequences(),
                            .max_queued_requests = options.max_queued_requests,
                            .max_queued_tokens = options.max_queued_tokens,
                            .by_priority = cluster.models.scheduling_policy == "priority",
                            .outlives_targets = cluster.targets_join()});
  auto chat = load_chat_template(cluster.models.model, options.chat_template);
  // A missing template of the model is an error only for chats; a template given by name must exist.
  if (!options.chat_template.empty()) RETURN_IF_ERROR(chat.status().in("--chat-template"));
  ASSIGN_OR_RETURN(auto background, open_journal(options, cluster));
  ASSIGN_OR_RETURN(const auto api, make_api(options, prepared, std::move(chat), std::move(api_keys),
                                            responses, engine, std::move(background), std::move(spans)));
  HttpOptions http_options = options.http;
  http_options.is_quick = &Api::is_quick;
  ASSIGN_OR_RETURN(http_options.trusted_proxies, TrustedProxies::parse(options.trusted_proxies));
  http_options.on_answered = [&responses, &access_log](const HttpRecord& record) {
    responses.add(record.status);
    if (!access_log) return;
    access_log->write(record);
    responses.log_lines_dropped = access_log->dropped();
  };
  ASSIGN_OR_RETURN(const auto http, HttpServer::start(options.host, options.port, std::move(http_options),
                                                      [&api](HttpRequest request, auto reply) {
                                                        api->handle(std::move(request), std::move(reply));
                                                      }));
  if (cluster.mpi.preflight) return preflight(cluster, prepared, mpi);
  if (mpi) RETURN_IF_ERROR(mpi->start());
  return run_engine({.cluster = cluster,
                     .prepared = prepared,
                     .files = options.files,
                     .engine = engine,
                     .policy = std::move(policy),
                     .on_ready =
                         [&] {
                           note_first_signal();
                           tell_address(options, *http);
                           api->resume();
                         },
                     .asked_to_drain =
                         [&] {
                           if (noted_signal() == 0) return false;
                           tell_drain(options, engine);
                           api->hand_over();
                           return true;
                         },
                     .drained = [&] { http->drain(kLastAnswers); },
                     .drain_limit = std::chrono::seconds(options.drain_timeout_s)},
                    mpi);
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
  if (!MpiCluster::launched()) leave_at_first_signal();  // until it is ready, and has something to drain
  return run_coordinator(options.cluster,
                         [&options](const ClusterSettings& cluster, const Preparation& prepared,
                                    MpiCluster* mpi) { return coordinate(options, cluster, prepared, mpi); });
}

}  // namespace outrider
