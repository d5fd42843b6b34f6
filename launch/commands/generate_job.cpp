#include "launch/commands/generate_job.h"

#include <deque>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/program/interrupt.h"
#include "coordinator/coordinator.h"
#include "start/local_cluster.h"

namespace outrider {
namespace {

Status unless_interrupted(const Status& status) {
  return noted_signal() != 0 ? unavailable("interrupted") : status;
}

// The index after the last turn of the conversation that begins at `first`.
size_t end_of_conversation(const std::vector<PromptRequest>& requests, size_t first) {
  size_t end = first + 1;
  while (end < requests.size() && requests[end].follows) ++end;
  return end;
}

// Takes over results from `next` on, up to the first request that must run. A conversation counts as finished
// only with its last turn, since answers are stored as text and continued as tokens.
size_t take_over_finished(const GenerateJob& job, size_t next, Output* output) {
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

}  // namespace

GenerateResult run_generate_job(const GenerateJob& job, std::unique_ptr<Transport> transport, Output* output,
                                Trace* trace, const ErrorOf& error) {
  GenerateResult result;
  result.generated.resize(job.requests.size());
  result.asked.resize(job.requests.size());
  result.asked_as.resize(job.requests.size());
  std::unordered_map<SequenceId, size_t> index_of;
  size_t next = 0, submitted = 0, finished = 0;
  std::deque<size_t> later_turns;  // whose previous turn was answered
  std::map<size_t, RequestResult> ended;
  std::function<void()> submit_next;  // a file may hold more requests than a queue should
  // Submits the next turn of the conversation. If the previous turn failed, the remaining turns fail too,
  // without being sent.
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
            g.prompt_logprobs.insert(g.prompt_logprobs.end(), emit.prompt_logprobs.begin(),
                                     emit.prompt_logprobs.end());
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
  // The policy belongs to this run alone, because it keeps learnt state.
  const auto policy = parse_gamma_policy(job.cluster.speculation.policy());
  if (!policy.ok()) {
    result.status = policy.status();
    return result;
  }
  auto made = make_coordinator(job.cluster, job.prepared, std::move(transport), *policy, callbacks, trace);
  if (!made.ok()) {
    result.status = made.status();
    return result;
  }
  Coordinator& coordinator = **made;
  if (job.listens) note_first_signal();
  const int waits_for =
      job.listens ? job.cluster.pool.wait_for_draft_workers.value_or(job.workers) : job.workers;
  result.status = wait_until_ready(
      coordinator, static_cast<size_t>(waits_for), std::chrono::seconds(job.cluster.models.startup_timeout_s),
      [&] { return unless_interrupted(error()); }, job.cluster.quiet);
  // A streamed text ends with a remark on its end. Models that still load are not waited for.
  const bool is_shown = output && output->is_streamed();
  if (is_shown && result.status.ok()) note_first_signal();
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
    if (noted_signal() != 0 && is_shown && finished < submitted)
      result.status =
          unavailable(fmt::format("interrupted after {} tokens; there is no --output that keeps them",
                                  result.generated[0].ids.size()));
  }
  coordinator.shutdown();
  for (auto& [index, request] : ended) result.requests.push_back(std::move(request));
  result.totals = coordinator.totals();
  const CostModel& cost = coordinator.protocol().cost();
  result.costs = {.verify = cost.verify(), .draft = cost.draft(), .exchange = cost.exchange_seconds()};
  coordinator.fill_report(result.metrics);
  return result;
}

GenerateResult run_in_one_process(const GenerateJob& job, Output* output, Trace* trace) {
  LocalCluster cluster(job.cluster, job.prepared);
  auto transport = cluster.start(job.workers, job.listens);
  if (!transport.ok()) {
    GenerateResult failed;
    failed.status = transport.status();
    return failed;
  }
  return run_generate_job(job, std::move(transport).value(), output, trace, [&] { return cluster.error(); });
}

}  // namespace outrider
