#include "launch/commands/generate.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/hash.h"
#include "base/json_text.h"
#include "base/printable.h"
#include "base/program/exit_codes.h"
#include "base/program/interrupt.h"
#include "coordinator/coordinator.h"
#include "requests/by_category.h"
#include "requests/finished_results.h"
#include "requests/output.h"
#include "requests/report.h"
#include "requests/round_record.h"
#include "start/coordinator_run.h"
#include "start/describe.h"
#include "start/local_cluster.h"
#include "start/make_coordinator.h"
#include "start/mpi_cluster.h"
#include "start/tree_option.h"
#include "transformer/chat_template/chat_template.h"

namespace outrider {
namespace {

// Everything one run of the coordinator needs besides its transport.
struct Job {
  const ClusterSettings& cluster;
  const Preparation& prepared;
  const std::vector<PromptRequest>& requests;
  const FinishedResults& finished;  // requests that need not run
  GammaPolicyFactory policy;
  int workers = 0;       // draft workers of the run itself; none: plain decoding
  bool listens = false;  // others may join
};

struct JobResult {
  std::vector<Generated> generated;
  std::vector<Request> asked;           // later turns with their prompts
  std::vector<int64_t> asked_as;        // ids; 0: never asked
  std::vector<RequestResult> requests;  // that ran and got any text
  Totals totals;
  RecordedCosts costs;
  nlohmann::json metrics;
  Status status;
};

Status unless_interrupted(const Status& status) {
  return noted_signal() != 0 ? unavailable("interrupted") : status;
}

// Behind the last turn of the conversation that begins there.
size_t end_of_conversation(const std::vector<PromptRequest>& requests, size_t first) {
  size_t end = first + 1;
  while (end < requests.size() && requests[end].follows) ++end;
  return end;
}

// From `next` on, to the first request that must run. A conversation is finished with its last turn, since
// answers are told as text and asked about as tokens.
size_t take_over_finished(const Job& job, size_t next, Output* output) {
  while (next < job.requests.size()) {
    const size_t end = end_of_conversation(job.requests, next);
    std::vector<std::string> lines;
    for (size_t at = next; at < end; ++at) {
      std::optional<std::string> line = job.finished.line_for(job.requests[at], at);
      if (!line) return next;
      lines.push_back(std::move(*line));
    }
    for (size_t at = next; at < end && output; ++at) output->finished_line(at, std::move(lines[at - next]));
    next = end;
  }
  return next;
}

RequestResult result_of(const PromptRequest& request, const RequestMetrics& metrics) {
  const auto end = metrics.finished_at.value_or(metrics.submitted_at);
  return {.id = request.id.empty() ? nlohmann::json() : nlohmann::json::parse(request.id),
          .category = request.category,
          .seconds = std::chrono::duration<double>(end - metrics.submitted_at).count(),
          .tokens = metrics.rounds.emitted,
          .passes = metrics.rounds.rounds,
          .acceptance = {.count = metrics.rounds.accepted, .of = metrics.rounds.tested}};
}

// A signal ends a run at once, unless workers have joined that must be told.
JobResult run_job(const Job& job, std::unique_ptr<Transport> transport, Output* output, Trace* trace,
                  const ErrorOf& error) {
  JobResult result;
  result.generated.resize(job.requests.size());
  result.asked.resize(job.requests.size());
  result.asked_as.resize(job.requests.size());
  std::unordered_map<SequenceId, size_t> index_of;
  size_t next = 0, submitted = 0, finished = 0;
  std::deque<size_t> later_turns;  // that can be asked now
  std::map<size_t, RequestResult> ended;
  std::function<void()> submit_next;  // a file may hold more requests than a queue should
  // With the next turn of the conversation; what was not answered is not asked about.
  const auto go_on = [&](size_t index) {
    Status status;
    for (size_t turn = index + 1; turn < end_of_conversation(job.requests, index); ++turn) {
      const Generated& before = result.generated[turn - 1];
      if (before.reason == FinishReason::kError) {
        status = unavailable("the turn before it was not answered");
      } else if (auto request = request_of_turn(job.requests[turn], result.asked[turn - 1], before.ids,
                                                job.prepared.max_model_len);
                 request.ok()) {
        result.asked[turn] = std::move(request).value();
        return later_turns.push_back(turn);
      } else {
        status = request.status();
      }
      Generated& g = result.generated[turn];
      g.reason = FinishReason::kError;
      g.error = status;
      if (output) output->result(turn, job.requests[turn], g);
    }
  };
  const auto as_asked = [&](size_t index) {
    PromptRequest request = job.requests[index];
    request.request.prompt = result.asked[index].prompt;
    return request;
  };
  const CoordinatorCallbacks callbacks{
      .on_emit =
          [&](const Emit& emit) {
            Generated& g = result.generated[index_of.at(emit.request)];
            g.text += emit.text;
            g.ids.insert(g.ids.end(), emit.ids.begin(), emit.ids.end());
            g.logprobs.insert(g.logprobs.end(), emit.logprobs.begin(), emit.logprobs.end());
            if (output) output->stream(emit.text);
          },
      .on_finish =
          [&](const Finish& finish) {
            const size_t index = index_of.at(finish.request);
            Generated& g = result.generated[index];
            g.reason = finish.reason;
            g.error = finish.error;
            if (!g.ids.empty()) ended.emplace(index, result_of(job.requests[index], finish.metrics));
            ++finished;
            if (output) output->result(index, as_asked(index), g);
            go_on(index);
            submit_next();
          },
      .asked_to_stop = [] { return noted_signal() != 0; },
  };
  auto made = make_coordinator(job.cluster, job.prepared, std::move(transport), job.policy, callbacks, trace);
  if (!made.ok()) {
    result.status = made.status();
    return result;
  }
  Coordinator& coordinator = **made;
  if (job.listens) note_first_signal();
  const int waits_for =
      job.listens ? job.cluster.pool.wait_for_draft_workers.value_or(job.workers) : job.workers;
  result.status = wait_until_ready(coordinator, static_cast<size_t>(waits_for),
                                   std::chrono::seconds(job.cluster.models.startup_timeout_s),
                                   [&] { return unless_interrupted(error()); });
  submit_next = [&] {
    size_t index = 0;
    if (output && output->failed()) return;
    if (!later_turns.empty()) {
      index = later_turns.front();
      later_turns.pop_front();
    } else {
      next = take_over_finished(job, next, output);
      if (next == job.requests.size()) return;
      index = std::exchange(next, end_of_conversation(job.requests, next));
      result.asked[index] = job.requests[index].request;
    }
    // Ids are given in order, and a refused request finishes before submit() returns.
    const SequenceId expected(++submitted);
    index_of[expected] = index;
    result.asked_as[index] = static_cast<int64_t>(expected.value());
    const SequenceId id = coordinator.submit(result.asked[index]);
    CHECK(id == expected, "request {} got id {}", index, id.value());
  };
  if (result.status.ok()) {
    for (int i = 0; i < 2 * job.cluster.models.sequences(); ++i) submit_next();
    result.status = coordinator.run();
    if (finished < submitted) result.status = unless_interrupted(result.status);
  }
  coordinator.shutdown();
  for (auto& [index, request] : ended) result.requests.push_back(std::move(request));
  result.totals = coordinator.totals();
  const CostModel& cost = coordinator.protocol().cost();
  result.costs = {.verify = cost.verify(), .draft = cost.draft(), .exchange = cost.exchange_seconds()};
  coordinator.fill_report(result.metrics);
  return result;
}

JobResult run_local(const Job& job, Output* output, Trace* trace) {
  LocalCluster cluster(job.cluster, job.prepared);
  auto transport = cluster.start(job.workers, job.listens);
  if (!transport.ok()) {
    JobResult failed;
    failed.status = transport.status();
    return failed;
  }
  return run_job(job, std::move(transport).value(), output, trace, [&] { return cluster.error(); });
}

RoundRecord record_of(const Job& job, const JobResult& result, const Trace& trace) {
  RoundRecord record{.drafter = job.cluster.models.drafts_from_text() ? job.cluster.models.drafter : "model",
                     .gamma_policy = job.cluster.speculation.policy(),
                     .synthetic = !job.cluster.speculation.synthetic_acceptance.empty(),
                     .max_num_seqs = job.cluster.models.max_num_seqs,
                     .gamma_max = kMaxSpeculativeTokens,
                     .max_context = static_cast<int32_t>(job.prepared.max_model_len),
                     .dropped = static_cast<int64_t>(trace.dropped()),
                     .costs = result.costs,
                     .requests = {},
                     .rounds = {}};
  for (size_t i = 0; i < job.requests.size(); ++i) {
    const Request& request = result.asked[i];
    if (result.asked_as[i] == 0) continue;
    record.requests.push_back({.id = result.asked_as[i],
                               .rule = std::string(rule_name(request.sampling.rule)),
                               .prompt_tokens = static_cast<int32_t>(request.prompt.size()),
                               .max_tokens = request.max_tokens,
                               .emitted = static_cast<int32_t>(result.generated[i].ids.size())});
  }
  for (const RoundDone& round : trace.rounds()) record.rounds.push_back(RecordedRound::of(round));
  return record;
}

bool same_output(const std::vector<Generated>& a, const std::vector<Generated>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Generated& x, const Generated& y) {
    return x.ids == y.ids && x.text == y.text;
  });
}

// What compares or records whole runs has nothing to say of half of one.
Status check_resume(const RunFiles& files, bool compares_plain) {
  if (files.resume.empty()) return {};
  if (files.prompts.empty()) return invalid_argument("--resume needs --prompts, whose results it takes over");
  if (compares_plain) return invalid_argument("--resume and --compare-plain exclude each other; drop one");
  if (!files.record_rounds.empty())
    return invalid_argument("--resume and --record-rounds exclude each other; drop one");
  return {};
}

void tell_what_is_finished(const std::string& file, const std::vector<PromptRequest>& requests,
                           const FinishedResults& finished) {
  const auto found = std::count_if(requests.begin(), requests.end(), [&](const PromptRequest& request) {
    return finished.has(request.fingerprint);
  });
  tell_error(fmt::format("{} of {} requests are finished in {}", found, requests.size(), file));
}

Result<std::vector<PromptRequest>> read_asked(const RunOptions& options, const ClusterSettings& cluster,
                                              const Preparation& prepared, std::vector<std::string>& notes) {
  RequestParams params = options.request;
  ASSIGN_OR_RETURN(params.grammar, form_of(options.form));
  ASSIGN_OR_RETURN(const auto grammars, make_grammars(prepared, options.grammar_library));
  const auto chat = load_chat_template(cluster.models.model);
  RequestModel model = request_model(cluster.models, cluster.speculation, prepared, chat);
  model.grammars = grammars.get();
  return read_requests(params, options.files.prompts, model, &notes);
}

// The coordinator's side of a run, from prompts to report. `mpi` is null in one process.
Result<int> coordinate(const RunOptions& options, const ClusterSettings& cluster, const Preparation& prepared,
                       MpiCluster* mpi) {
  if (!options.request.prompt && options.files.prompts.empty())
    return invalid_argument("nothing to do: give --prompt TEXT or --prompts FILE.jsonl");
  if (options.request.prompt && !options.files.prompts.empty())
    return invalid_argument("--prompt and --prompts exclude each other; drop one");
  if (options.compare_plain && mpi)
    return unsupported("--compare-plain works in one process; drop it or mpirun");
  if (options.compare_plain && !cluster.speculates())
    return invalid_argument(
        "--compare-plain needs a drafter: --draft-model DIR, --drafter suffix or --listen");
  ASSIGN_OR_RETURN(const auto policy, parse_gamma_policy(cluster.speculation.policy()));
  RETURN_IF_ERROR(check_rule_of_trees(cluster.speculation.speculative_tree, options.request.rule));
  RETURN_IF_ERROR(check_resume(options.files, options.compare_plain));
  std::vector<std::string> notes;
  ASSIGN_OR_RETURN(auto requests, read_asked(options, cluster, prepared, notes));
  if (!cluster.quiet)
    for (const std::string& note : notes) tell_error(note);
  ASSIGN_OR_RETURN(const auto fingerprint, request_fingerprints(cluster.models, cluster.speculation));
  for (size_t i = 0; i < requests.size(); ++i) {
    uint64_t& own = requests[i].fingerprint = fingerprint(requests[i]);
    if (!requests[i].follows) continue;  // an answer follows from what it answers to
    own = hash_combine(own, requests[i - 1].fingerprint);
    for (const TokenId id : requests[i].turn) own = hash_combine(own, static_cast<uint64_t>(id.value()));
  }
  FinishedResults finished;
  if (!options.files.resume.empty()) {
    ASSIGN_OR_RETURN(finished, FinishedResults::read(options.files.resume));
    if (!cluster.quiet) tell_what_is_finished(options.files.resume, requests, finished);
  }
  ASSIGN_OR_RETURN(Output output,
                   Output::open({.files = options.files,
                                 .has_one_prompt = options.request.prompt.has_value(),
                                 .synthetic_acceptance = cluster.speculation.synthetic_acceptance,
                                 .quiet = cluster.quiet},
                                *prepared.tokenizer));

  const int own_workers = mpi ? mpi->draft_workers() : cluster.pool.num_draft_workers;
  const Job job{cluster,
                prepared,
                requests,
                finished,
                policy,
                cluster.models.has_draft_workers() ? own_workers : 0,
                !cluster.pool.listen.empty()};
  std::optional<JobResult> plain;
  if (options.compare_plain) {
    ClusterSettings without_drafter = cluster;
    without_drafter.models.drafter.clear();
    without_drafter.models.draft_model.clear();
    without_drafter.models.head_place = "target";
    without_drafter.models.exit_layer = 0;
    const Job plain_job{without_drafter, prepared, requests, finished, policy, 0, false};
    plain = run_local(plain_job, nullptr, nullptr);
    RETURN_IF_ERROR(plain->status);
  }
  Trace trace;
  const bool wanted = !options.files.trace.empty() || !options.files.record_rounds.empty();
  Trace* const traced = wanted ? &trace : nullptr;
  if (mpi) RETURN_IF_ERROR(mpi->start());
  JobResult result = mpi ? run_job(job, mpi->take_transport(), &output, traced, [] { return Status(); })
                         : run_local(job, &output, traced);
  if (const Status whole = result.status.ok() ? output.close() : result.status; !whole.ok()) {
    output.give_up(requests.size());
    return whole;
  }

  std::optional<PlainComparison> comparison;
  if (plain)
    comparison =
        compare_with_plain(plain->totals, result.totals, same_output(plain->generated, result.generated));
  const RunDescription run = describe_run(cluster, prepared);
  const auto categories =
      by_category(result.requests, plain ? plain->requests : std::vector<RequestResult>());
  if (!cluster.quiet) {
    std::fputs(screen_report(run, result.totals, result.metrics, comparison).c_str(), stderr);
    if (categories.size() > 1) std::fputs(category_table(categories).c_str(), stderr);
  }
  if (!options.files.report.empty()) {
    nlohmann::json report = json_report(run, requests, options.request.seed, result.totals,
                                        std::move(result.metrics), comparison);
    report["by_category"] = categories_json(categories);
    report["by_request"] = requests_json(result.requests);
    RETURN_IF_ERROR(write_file(options.files.report, json_text(report, 2) + "\n").in("--report"));
  }
  if (!options.files.trace.empty()) RETURN_IF_ERROR(write_trace(options.files.trace, trace).in("--trace"));
  if (!options.files.record_rounds.empty())
    RETURN_IF_ERROR(
        write_file(options.files.record_rounds, format_round_record(record_of(job, result, trace)))
            .in("--record-rounds"));

  bool failed = false;
  for (size_t i = 0; i < requests.size(); ++i) {
    const Generated& g = result.generated[i];
    if (g.reason != FinishReason::kError) continue;
    failed = true;
    tell_error(fmt::format("request {}: {}", i, g.error.message()));
  }
  return failed ? kExitRequestFailed : kExitOk;
}

}  // namespace

int run_generate(RunOptions options) {
  set_thread_role("coordinator");
  SpeculationSettings& speculation = options.cluster.speculation;
  if (speculation.gamma_policy == "list") {
    std::fputs(list_gamma_policies().c_str(), stdout);
    return kExitOk;
  }
  speculation.synthetic_seed = options.request.seed;
  speculation.record_guesses = !options.files.record_rounds.empty();
  const int code = run_coordinator(
      options.cluster, [&options](const ClusterSettings& cluster, const Preparation& prepared,
                                  MpiCluster* mpi) { return coordinate(options, cluster, prepared, mpi); });
  if (!MpiCluster::launched()) end_as_noted();
  return code;
}

}  // namespace outrider
