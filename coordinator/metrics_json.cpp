// The JSON report of metrics.h's sums.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "coordinator/metrics.h"

namespace outrider {
namespace {

double ratio(double numerator, double denominator) { return denominator > 0 ? numerator / denominator : 0.0; }
double milliseconds(std::chrono::nanoseconds duration) {
  return static_cast<double>(duration.count()) * 1e-6;
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
    positions.push_back(ratio(static_cast<double>(accepted), static_cast<double>(sums.position_tested[i])));
  }
  return {{"rounds", sums.rounds},
          {"first_rounds", sums.first_rounds},
          {"g0_rounds", sums.g0_rounds},
          {"drafted_tokens", sums.drafted},
          {"tested_tokens", sums.tested},
          {"accepted_tokens", sums.accepted},
          {"emitted_tokens", sums.emitted},
          {"acceptance_rate", sums.acceptance()},
          {"draft_utilisation", sums.utilisation()},
          {"tokens_per_target_pass", sums.tokens_per_pass()},
          {"block_efficiency", sums.block_efficiency()},
          {"position_acceptance", positions},
          {"gamma_histogram", sums.gamma_histogram},
          {"accepted_count_histogram", sums.accepted_histogram},
          {"burst_histogram", sums.burst_histogram},
          {"burst_p99", sums.burst_percentile(0.99)},
          {"rollbacks", sums.rollbacks},
          {"rolled_back_tokens", sums.rolled_back_tokens}};
}

nlohmann::json phases_json(const PhaseTimes& phases) {
  return {{"draft_wait_ms", milliseconds(phases.draft_wait)},
          {"plan_wait_ms", milliseconds(phases.plan_wait)},
          {"verify_ms", milliseconds(phases.verify)}};
}

}  // namespace

void fill_json(const RequestMetrics& metrics, nlohmann::json& out) {
  out["prompt_tokens"] = metrics.prompt_tokens;
  out["ttft_ms"] = metrics.ttft_ms();
  if (metrics.finished_at) out["total_ms"] = milliseconds(*metrics.finished_at - metrics.submitted_at);
  out["rounds"] = rounds_json(metrics.rounds);
  out["phases"] = phases_json(metrics.phases);
  out["itl"] = percentiles(metrics.gaps);
  out["itl_bursts"] = percentiles(metrics.bursts);
}

void fill_json(const Totals& totals, nlohmann::json& out) {
  const double wall_ns = totals.wall_seconds() * 1e9;
  const double target_busy = static_cast<double>(totals.forward_ns + totals.verify_ns + totals.commit_ns);
  const double draft_busy =
      static_cast<double>(totals.draft_ingest_ns + totals.draft_ns + totals.preparation.busy_ns);
  nlohmann::json finished, dropped;
  for (size_t i = 0; i < totals.finished.size(); ++i)
    finished[std::string(finish_reason_name(static_cast<FinishReason>(i)))] = totals.finished[i];
  for (size_t i = 0; i < kDropReasonNames.size(); ++i)
    dropped[std::string(kDropReasonNames[i])] = totals.drafts_dropped[i];
  out["requests"] = {{"submitted", totals.submitted}, {"refused", totals.refused}, {"finished", finished}};
  out["prompt_tokens"] = totals.prompt_tokens;
  out["wall_seconds"] = totals.wall_seconds();
  out["tokens_per_second"] = ratio(static_cast<double>(totals.rounds.emitted), totals.wall_seconds());
  out["rounds"] = rounds_json(totals.rounds);
  out["phases"] = phases_json(totals.phases);
  out["phases"]["forward_ms"] = static_cast<double>(totals.forward_ns) * 1e-6;
  out["phases"]["verification_ms"] = static_cast<double>(totals.verify_ns) * 1e-6;
  out["phases"]["commit_ms"] = static_cast<double>(totals.commit_ns) * 1e-6;
  out["phases"]["target_idle_share"] = wall_ns > 0 ? std::max(0.0, 1 - target_busy / wall_ns) : 0.0;
  out["phases"]["draft_idle_share"] =
      wall_ns > 0 && totals.workers_joined > 0
          ? std::max(0.0, 1 - draft_busy / (wall_ns * static_cast<double>(totals.workers_joined)))
          : 0.0;
  out["ttft"] = percentiles(totals.ttft);
  out["itl"] = percentiles(totals.gaps);
  out["itl_bursts"] = percentiles(totals.bursts);
  out["e2e"] = percentiles(totals.e2e);
  out["drafts"] = {{"received", totals.drafts_received},
                   {"used", totals.drafts_used},
                   {"dropped", dropped},
                   {"proposals", totals.proposals},
                   {"repeated", totals.proposals_repeated},
                   {"deadlines_missed", totals.draft_deadlines_missed},
                   {"liveness_timeouts", totals.liveness_timeouts},
                   {"ingest_ms", static_cast<double>(totals.draft_ingest_ns) * 1e-6},
                   {"draft_ms", static_cast<double>(totals.draft_ns) * 1e-6}};
  const PreparationTotals& ahead = totals.preparation;
  out["outcome_cache"] = {
      {"lookups", ahead.lookups},
      {"hits", ahead.hits},
      {"hit_rate", ahead.hit_rate()},
      {"outcomes_per_lookup", ratio(static_cast<double>(ahead.outcomes), static_cast<double>(ahead.lookups))},
      {"used_tokens", ahead.used_tokens},
      {"wasted_tokens", ahead.wasted_tokens},
      {"prepare_ms", static_cast<double>(ahead.busy_ns) * 1e-6}};
  out["target"] = {{"passes", totals.target_passes},
                   {"rows", totals.target_rows},
                   {"nonfinite_verdicts", totals.nonfinite_verdicts}};
  out["cluster"] = {
      {"workers_joined", totals.workers_joined}, {"workers_lost", totals.workers_lost},
      {"workers_left", totals.workers_left},     {"sequences_moved", totals.sequences_moved},
      {"hellos_refused", totals.hellos_refused}, {"resyncs", totals.resyncs},
      {"sends_failed", totals.sends_failed},     {"unexpected_messages", totals.unexpected_messages},
      {"stale_results", totals.stale_results}};
  out["drafters"] = nlohmann::json::array();
  for (const auto& [kind, drafter] : totals.drafters)
    out["drafters"].push_back(
        {{"name", drafter.name},
         {"fingerprint", fmt::format("{:016x}", kind)},
         {"joined", drafter.joined},
         {"lost", drafter.lost},
         {"left", drafter.left},
         {"sequences_opened", drafter.opened},
         {"rounds", drafter.rounds},
         {"drafted_tokens", drafter.drafted},
         {"accepted_tokens", drafter.accepted},
         {"tokens_per_round_second", ratio(static_cast<double>(drafter.emitted), drafter.round_seconds)}});
}

void fill_json(const TransportStats& stats, const Totals& totals, nlohmann::json& out) {
  const RoundSums& rounds = totals.rounds;
  const auto per_accepted = [&](auto bytes) {
    return ratio(static_cast<double>(bytes), static_cast<double>(rounds.accepted));
  };
  auto all = static_cast<uint64_t>(totals.slice_bytes);
  if (totals.slice_bytes > 0)
    out["kinds"]["q_slice"] = {{"sent_bytes", totals.slice_bytes},
                               {"device_to_device_bytes", totals.link_bytes},
                               {"bytes_per_accepted_token", per_accepted(totals.slice_bytes)}};
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
  out["bytes_per_accepted_token"] = per_accepted(all);
  out["bytes_per_emitted_token"] = ratio(static_cast<double>(all), static_cast<double>(rounds.emitted));
  out["malformed_frames"] = stats.malformed_frames;
  out["duplicate_frames"] = stats.duplicate_frames;
  out["refused_keys"] = stats.refused_keys;
  out["refused_peers"] = stats.refused_peers;
  out["hung_up"] = stats.hung_up;
}

}  // namespace outrider
