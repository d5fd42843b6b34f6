#include "serve/monitor/status.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace outrider {

using nlohmann::json;

const char* state_name(EngineState state) {
  switch (state) {
    case EngineState::kLoading:
      return "loading";
    case EngineState::kReady:
      return "ready";
    case EngineState::kDraining:
      return "draining";
    case EngineState::kNoTarget:
      return "no target";
    case EngineState::kFailed:
      return "failed";
  }
  return "";
}

std::string weights_name(uint64_t fingerprint) {
  return fingerprint == 0 ? std::string() : fmt::format("{:016x}", fingerprint);
}

namespace {

json worker_json(const WorkerOverview& worker) {
  const auto share = [](int64_t part, int64_t whole) {
    return whole > 0 ? json(static_cast<double>(part) / static_cast<double>(whole)) : json();
  };
  return {{"worker", worker.peer},
          {"host", worker.host},
          {"model", worker.model},
          {"weights", weights_name(worker.weights)},
          {"state", worker.state == WorkerOverview::State::kDrafting ? "drafting" : "left alone"},
          {"sequences", worker.sequences},
          {"room", worker.room},
          {"drafts", worker.drafts},
          {"draft_tokens", worker.drafted},
          {"accepted_tokens", worker.accepted},
          {"acceptance", share(worker.accepted, worker.tested)},
          {"seconds_per_token", worker.seconds_per_token}};
}

json group_json(const GroupOverview& group, const GroupTotals& totals) {
  return {
      {"here", group.here},
      {"role", group.role()},
      {"host", group.host},
      {"running", group.running},
      {"places", group.seq_slots},
      {"kv_cache", {{"tokens", group.kv_tokens}, {"room", group.kv_room}}},
      {"prefix_cache",
       {{"tokens", group.prefix_tokens}, {"queries", totals.prefix_queries}, {"hits", totals.prefix_hits}}},
      {"generated", totals.emitted},
      {"lost", totals.lost},
      {"handed_over", totals.handed_over}};
}

const char* drafting_name(DraftingPace drafting) {
  switch (drafting) {
    case DraftingPace::kIdle:
      return "idle";
    case DraftingPace::kNotMeasured:
      return "not measured yet";
    case DraftingPace::kNotDrafting:
      return "hardly any drafts";
    case DraftingPace::kDrafting:
      return "drafts";
  }
  return "";
}

// Null: there is none.
json speedup(double value) { return value > 0 ? json(value) : json(); }

json percentiles(const DurationHistogram& times) {
  return {{"count", times.count()},
          {"p50_s", times.percentile_ns(0.5) * 1e-9},
          {"p95_s", times.percentile_ns(0.95) * 1e-9},
          {"p99_s", times.percentile_ns(0.99) * 1e-9}};
}

}  // namespace

std::vector<std::string> missing_members(const EngineNumbers& numbers, bool speculates) {
  const Overview& now = numbers.overview;
  std::vector<std::string> out;
  if (!now.can_decode())
    out.emplace_back(now.groups_here() == 0 ? "no target group is there"
                                            : "no target group is there that decodes");
  else
    for (size_t i = 0; i < now.groups.size(); ++i)
      if (now.groups[i].was_lost)
        out.push_back(fmt::format("target group {}{} is gone", i,
                                  now.groups[i].only_prefills ? ", which only prefills," : ""));
  const auto left_alone = std::count_if(
      now.workers.begin(), now.workers.end(),
      [](const WorkerOverview& worker) { return worker.state == WorkerOverview::State::kLeftAlone; });
  if (speculates && numbers.draft_workers <= left_alone) out.emplace_back("no draft worker drafts");
  return out;
}

json status_json(const EngineNumbers& numbers, const EngineStatus& engine, const StatusContext& context) {
  const Totals& totals = numbers.totals;
  const Overview& now = numbers.overview;
  const Pace& pace = numbers.pace;
  json workers = json::array(), responses = json::object();
  for (const WorkerOverview& worker : now.workers) workers.push_back(worker_json(worker));
  json groups = json::array();
  for (size_t i = 0; i < now.groups.size(); ++i)
    groups.push_back(group_json(now.groups[i], i < totals.groups.size() ? totals.groups[i] : GroupTotals()));
  for (const auto& [status, count] : context.responses.all()) responses[std::to_string(status)] = count;
  // Requests are accepted and wait; /ready is 503.
  const bool lacks_target = engine.state == EngineState::kReady && !now.can_decode();
  return {{"state", lacks_target ? "waiting for a target" : state_name(engine.state)},
          {"reason", lacks_target ? "requests wait for a target group to join" : engine.reason},
          {"model", context.model},
          {"gamma_policy", context.policy},
          {"uptime_s", context.uptime_s},
          {"journal_fault", context.journal_fault.empty() ? json() : json(context.journal_fault)},
          {"requests",
           {{"running", numbers.running},
            {"places", context.max_num_seqs},
            {"waiting", numbers.waiting},
            {"most_waiting", context.max_queued_requests},
            {"refused", numbers.refused},
            {"finished", totals.finished[0] + totals.finished[1]},
            {"failed", totals.finished[2]},
            {"cancelled", totals.finished[3]}}},
          {"pace",
           {{"tokens_per_second", pace.tokens_per_second},
            {"prompt_tokens_per_second", pace.prompt_tokens_per_second},
            {"acceptance", pace.acceptance},
            {"tokens_per_round", pace.tokens_per_round},
            {"tokens_per_target_pass", pace.tokens_per_target_pass},
            {"drafting", drafting_name(pace.drafting)},
            {"predicted_speedup", speedup(pace.predicted_speedup)},
            {"measured_speedup", speedup(pace.measured_speedup)}}},
          {"gamma", {{"mean", now.mean_gamma}, {"sequences", now.gammas}}},
          {"kv_cache", {{"tokens", now.kv_tokens}, {"room", now.kv_room}}},
          {"prefix_cache",
           {{"tokens", now.prefix_tokens}, {"queries", totals.prefix_queries}, {"hits", totals.prefix_hits}}},
          {"tokens", {{"prompt", totals.prompt_tokens}, {"generated", totals.rounds.emitted}}},
          {"times",
           {{"queue", percentiles(totals.queued)},
            {"first_token", percentiles(totals.ttft)},
            {"inter_token", percentiles(totals.gaps)},
            {"whole", percentiles(totals.e2e)}}},
          {"workers", std::move(workers)},
          {"draft_workers_wanted", numbers.draft_workers_wanted},
          {"target_groups", std::move(groups)},
          {"responses", std::move(responses)}};
}

}  // namespace outrider
