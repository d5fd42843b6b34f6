// The JSON report of metrics.h's sums.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/statistics.h"
#include "coordinator/metrics/counters.h"

namespace outrider {
namespace {

template <class Table, class Sums>
void fill_counters(const Table& table, const Sums& sums, nlohmann::json& out) {
  for (const auto& counter : table) {
    nlohmann::json& section = counter.section.empty() ? out : out[std::string(counter.section)];
    nlohmann::json& entry = section[std::string(counter.key)];
    const auto value = value_of(counter, sums);
    if (counter.unit == Unit::kNanoseconds)
      entry = static_cast<double>(value) * 1e-6;
    else
      entry = value;
  }
}

nlohmann::json percentiles(const DurationHistogram& histogram) {
  return {{"count", histogram.count()},
          {"mean_ms", histogram.mean_ns() * 1e-6},
          {"coefficient_of_variation", histogram.coefficient_of_variation()},
          {"p50_ms", histogram.percentile_ns(0.50) * 1e-6},
          {"p95_ms", histogram.percentile_ns(0.95) * 1e-6},
          {"p99_ms", histogram.percentile_ns(0.99) * 1e-6}};
}

nlohmann::json rounds_json(const RoundSums& sums) {
  nlohmann::json positions = nlohmann::json::array();
  for (size_t i = 0; i < sums.position_tested.size(); ++i) {
    const int64_t accepted = i < sums.position_accepted.size() ? sums.position_accepted[i] : 0;
    positions.push_back(
        share_of(static_cast<double>(accepted), static_cast<double>(sums.position_tested[i])));
  }
  nlohmann::json out = {{"acceptance_rate", sums.acceptance()},
                        {"draft_utilisation", sums.utilisation()},
                        {"tokens_per_round", sums.tokens_per_round()},
                        {"block_efficiency", sums.block_efficiency()},
                        {"position_acceptance", positions},
                        {"position_tested", sums.position_tested},
                        {"position_accepted", sums.position_accepted},
                        {"gamma_histogram", sums.gamma_histogram},
                        {"accepted_count_histogram", sums.accepted_histogram},
                        {"burst_histogram", sums.burst_histogram},
                        {"burst_p99", sums.burst_percentile(0.99)}};
  fill_counters(kRoundCounters, sums, out);
  return out;
}

nlohmann::json phases_json(const PhaseTimes& phases) {
  nlohmann::json out;
  fill_counters(kPhaseCounters, phases, out);
  return out;
}

}  // namespace

void fill_json(const RequestMetrics& metrics, nlohmann::json& out) {
  out["prompt_tokens"] = metrics.prompt_tokens;
  out["cached_tokens"] = metrics.cached_tokens;
  out["ttft_ms"] = metrics.ttft_ms();
  if (metrics.finished_at) out["total_ms"] = in_milliseconds(*metrics.finished_at - metrics.submitted_at);
  out["rounds"] = rounds_json(metrics.rounds);
  out["phases"] = phases_json(metrics.phases);
  out["itl"] = percentiles(metrics.gaps);
  out["itl_bursts"] = percentiles(metrics.bursts);
}

void fill_json(const Totals& totals, nlohmann::json& out) {
  const double busy_ns = totals.busy_seconds() * 1e9;
  const double target_busy = static_cast<double>(totals.forward_ns + totals.verify_ns + totals.commit_ns);
  const double draft_busy =
      static_cast<double>(totals.draft_ingest_ns + totals.draft_ns + totals.preparation.busy_ns);
  nlohmann::json finished, dropped;
  for (size_t i = 0; i < totals.finished.size(); ++i)
    finished[std::string(finish_reason_name(static_cast<FinishReason>(i)))] = totals.finished[i];
  for (size_t i = 0; i < kDropReasonNames.size(); ++i)
    dropped[std::string(kDropReasonNames[i])] = totals.drafts_dropped[i];
  out["rounds"] = rounds_json(totals.rounds);
  out["phases"] = phases_json(totals.phases);
  fill_counters(kEventCounters, totals, out);
  out["requests"]["finished"] = finished;
  out["drafts"]["dropped"] = dropped;
  out["wall_seconds"] = totals.wall_seconds();
  out["busy_seconds"] = totals.busy_seconds();
  out["tokens_per_second"] = share_of(static_cast<double>(totals.rounds.emitted), totals.busy_seconds());
  out["phases"]["target_idle_share"] = busy_ns > 0 ? std::max(0.0, 1 - target_busy / busy_ns) : 0.0;
  out["phases"]["draft_idle_share"] =
      busy_ns > 0 && totals.workers_joined > 0
          ? std::max(0.0, 1 - draft_busy / (busy_ns * static_cast<double>(totals.workers_joined)))
          : 0.0;
  out["ttft"] = percentiles(totals.ttft);
  out["itl"] = percentiles(totals.gaps);
  out["itl_bursts"] = percentiles(totals.bursts);
  out["e2e"] = percentiles(totals.e2e);
  const PreparationTotals& ahead = totals.preparation;
  nlohmann::json& cache = out["outcome_cache"];
  cache = {{"hit_rate", ahead.hit_rate()},
           {"outcomes_per_lookup",
            share_of(static_cast<double>(ahead.outcomes), static_cast<double>(ahead.lookups))}};
  fill_counters(kPreparationCounters, ahead, cache);
  if (totals.trees.rounds > 0) fill_json(totals.trees, out["trees"]);
  if (totals.groups.size() > 1) {
    out["groups"] = nlohmann::json::array();
    for (const GroupTotals& group : totals.groups)
      fill_counters(kGroupCounters, group, out["groups"].emplace_back());
  }
  out["drafters"] = nlohmann::json::array();
  for (const auto& [kind, drafter] : totals.drafters) {
    nlohmann::json entry = {
        {"name", drafter.name},
        {"fingerprint", fmt::format("{:016x}", kind)},
        {"tokens_per_round_second", share_of(static_cast<double>(drafter.emitted), drafter.round_seconds)}};
    fill_counters(kDrafterCounters, drafter, entry);
    out["drafters"].push_back(std::move(entry));
  }
}

void fill_json(const TransportStats& stats, const Totals& totals, nlohmann::json& out) {
  const RoundSums& rounds = totals.rounds;
  const auto per_accepted = [&](auto bytes) {
    return share_of(static_cast<double>(bytes), static_cast<double>(rounds.accepted));
  };
  auto all = static_cast<uint64_t>(totals.slice_bytes + totals.hidden_state_link_bytes);
  for (size_t kind = 0; kind < TransportStats::kKinds; ++kind) {
    const uint64_t bytes = stats.sent_bytes[kind] + stats.received_bytes[kind];
    all += bytes;
    if (bytes == 0) continue;
    out["kinds"][kMessageNames[kind]] = {{"sent_messages", stats.sent_messages[kind]},
                                         {"sent_bytes", stats.sent_bytes[kind]},
                                         {"received_messages", stats.received_messages[kind]},
                                         {"received_bytes", stats.received_bytes[kind]},
                                         {"bytes_per_accepted_token", per_accepted(bytes)}};
  }
  nlohmann::json past;  // the coordinator, by kind
  fill_counters(kSliceCounters, totals, past);
  past["q_slice"]["bytes_per_accepted_token"] = per_accepted(totals.slice_bytes);
  if (totals.slice_bytes > 0) out["kinds"]["q_slice"] = past["q_slice"];
  if (totals.hidden_state_link_bytes > 0) out["kinds"]["state_rows"].update(past["state_rows"]);
  out["bytes_per_accepted_token"] = per_accepted(all);
  out["bytes_per_emitted_token"] = share_of(static_cast<double>(all), static_cast<double>(rounds.emitted));
  fill_counters(kWireCounters, stats, out);
}

}  // namespace outrider
