#include "requests/report.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/version.h"
#include "requests/provenance.h"

namespace outrider {
namespace {

double tokens_per_second(const Totals& totals) {
  return totals.busy_seconds() > 0 ? static_cast<double>(totals.rounds.emitted) / totals.busy_seconds() : 0;
}

double per(int64_t sum, int64_t count) {
  return count > 0 ? static_cast<double>(sum) / static_cast<double>(count) : 0;
}

// The common value of all requests, or a list of their values.
template <class Of>
nlohmann::json used(const std::vector<PromptRequest>& requests, Of of) {
  std::set<decltype(of(requests[0].request.sampling))> values;
  for (const PromptRequest& request : requests) values.insert(of(request.request.sampling));
  return values.size() == 1 ? nlohmann::json(*values.begin()) : nlohmann::json(values);
}

std::string q_format_used(const RunDescription& run, const std::vector<PromptRequest>& requests) {
  const bool any = std::any_of(requests.begin(), requests.end(), [](const PromptRequest& request) {
    return needs_q(request.request.sampling.rule);
  });
  if (!any) return "none";
  if (run.q_kind == QKind::kDense) return "dense";
  const std::string budget = fmt::format("budget:{}", run.row_bytes);
  bool some_states = false, some_rows = false;
  for (const PromptRequest& request : requests)
    if (const SamplingParams& sampling = request.request.sampling; needs_q(sampling.rule))
      (is_plain_softmax(sampling) ? some_states : some_rows) = true;
  if (run.q_kind != QKind::kHidden || !run.drafts_on_host || !some_states) return budget;
  const std::string hidden = fmt::format("hidden:{}", run.code_bits);
  return some_rows ? hidden + " or " + budget : hidden;
}

// `drafts`: the number of drafts that rounds waited for. No draft had a token.
std::string why_drafts_are_empty(const RunDescription& run, int64_t drafts) {
  return fmt::format("nothing was drafted: {} drafts had no token, {}\n", drafts,
                     run.drafts_from_text_alone
                         ? "because --drafter " + run.drafter + " found none in the text so far"
                         : "as from a draft model whose logits are no numbers (see OUTRIDER_LOG=debug)");
}

// Messages that threads of one process exchange cost nothing, so their bytes are only in the JSON report.
std::string wire_report(const RunDescription& run, const Totals& totals, const nlohmann::json& wire) {
  if (run.one_process && run.emulated_link.empty()) return {};
  const nlohmann::json& kinds = wire["kinds"];
  // A head's drafts come with the target's results.
  const double drafts =
      kinds.contains("draft") ? kinds["draft"]["bytes_per_accepted_token"].get<double>() : 0;
  const double per_emitted = wire["bytes_per_emitted_token"].get<double>();
  // With few accepted tokens the bytes of everything else would stand beside them.
  constexpr int64_t kFewAccepted = 32;
  if (totals.rounds.accepted < kFewAccepted)
    return fmt::format("wire: {:.0f} bytes per token; {} draft tokens were accepted\n", per_emitted,
                       totals.rounds.accepted);
  return fmt::format("wire: {:.0f} bytes per token; {:.0f} per accepted draft token, {:.0f} of them drafts\n",
                     per_emitted, wire["bytes_per_accepted_token"].get<double>(), drafts);
}

std::string idle_report(const RunDescription& run, const Totals& totals, const nlohmann::json& phases) {
  std::string out = fmt::format("idle: target {:.0f} %", phases["target_idle_share"].get<double>() * 100);
  if (totals.workers_joined > 0 && !(run.one_process && run.drafts_from_text_alone))
    out += fmt::format(", {} {:.0f} %", run.one_process ? "draft model" : "draft workers",
                       phases["draft_idle_share"].get<double>() * 100);
  return out + "\n";
}

// An interval of two or three turns says more about Student's distribution than about the machine: 0.02 to 74
// around 1.27 was seen. Fewer than four turns are shown by
// their range.
std::string spread_of_turns(const PlainComparison& comparison) {
  constexpr int kForAnInterval = 4;
  const Ratio& speedup = comparison.speedup;
  if (!speedup.has_interval()) return "";
  const bool few = speedup.samples < kForAnInterval;
  return fmt::format("{:.2f} to {:.2f} in {} turns, ", few ? comparison.slowest : speedup.low,
                     few ? comparison.fastest : speedup.high, speedup.samples);
}

}  // namespace

double expected_tokens(double alpha, double gamma) {
  return alpha >= 1 ? gamma + 1 : (1 - std::pow(alpha, gamma + 1)) / (1 - alpha);
}

std::optional<OverlapComparison> compare_overlap(const Totals& totals) {
  const RoundSums& r = totals.rounds;
  const int64_t speculative = r.rounds - r.g0_rounds;
  const bool alone =
      totals.target_passes < r.rounds + r.rounds / 8 && r.rounds < totals.target_passes * 9 / 8;
  if (totals.preparation.lookups == 0 || speculative == 0 || !alone) return std::nullopt;
  const double draft_token =
      per(totals.draft_ingest_ns + totals.draft_ns, r.drafted - totals.preparation.used_tokens);
  const auto waited = totals.phases.draft_wait + totals.phases.plan_wait + totals.phases.verify;
  return OverlapComparison{
      .hit_rate = totals.preparation.hit_rate(),
      .verify = per(totals.forward_ns + totals.verify_ns + totals.commit_ns, totals.target_passes) * 1e-6,
      .draft = draft_token * per(r.drafted, speculative) * 1e-6,
      .prepare = per(totals.preparation.busy_ns, totals.preparation.lookups) * 1e-6,
      .measured = per(std::chrono::nanoseconds(waited).count(), r.rounds) * 1e-6};
}

PlainTurn compare_with_plain(const Totals& plain, const Totals& speculative) {
  const double plain_step = per(plain.forward_ns + plain.verify_ns + plain.commit_ns, plain.target_passes);
  const double verify_step =
      per(speculative.forward_ns + speculative.verify_ns + speculative.commit_ns, speculative.target_passes);
  const double draft = per(speculative.draft_ingest_ns + speculative.draft_ns, speculative.drafts_received);
  const double gamma =
      per(speculative.rounds.drafted, speculative.rounds.rounds - speculative.rounds.g0_rounds);
  PlainTurn turn{.plain_tokens_per_second = tokens_per_second(plain),
                 .tokens_per_second = tokens_per_second(speculative)};
  if (verify_step + draft > 0)
    turn.predicted_speedup =
        expected_tokens(speculative.rounds.acceptance(), gamma) * plain_step / (verify_step + draft);
  return turn;
}

PlainComparison PlainComparison::of(std::span<const PlainTurn> turns, bool identical_output) {
  std::vector<double> plain, speculative, predicted, ratios;
  for (const PlainTurn& turn : turns) {
    plain.push_back(turn.plain_tokens_per_second);
    speculative.push_back(turn.tokens_per_second);
    predicted.push_back(turn.predicted_speedup);
    if (turn.plain_tokens_per_second > 0 && turn.tokens_per_second > 0)
      ratios.push_back(turn.tokens_per_second / turn.plain_tokens_per_second);
  }
  PlainComparison comparison{.plain_tokens_per_second = median(plain),
                             .tokens_per_second = median(speculative),
                             .predicted_speedup = median(predicted),
                             .speedup = paired_ratio(ratios),
                             .identical_output = identical_output};
  if (!ratios.empty()) {
    const auto [slowest, fastest] = std::minmax_element(ratios.begin(), ratios.end());
    comparison.slowest = *slowest, comparison.fastest = *fastest;
  }
  return comparison;
}

std::string screen_report(const RunDescription& run, const Totals& totals, const nlohmann::json& metrics,
                          const std::optional<PlainComparison>& comparison) {
  const RoundSums& r = totals.rounds;
  std::string out = fmt::format("{} token{} in {:.2f} s: {:.1f} tokens/s", r.emitted,
                                r.emitted == 1 ? "" : "s", totals.busy_seconds(), tokens_per_second(totals));
  if (totals.ttft.count() > 0)
    out += fmt::format(", first token after {:.1f} ms (median)", totals.ttft.percentile_ns(0.5) * 1e-6);
  constexpr double kShown = 0.05;  // s
  if (const double idle = totals.wall_seconds() - totals.busy_seconds(); idle > kShown)
    out += fmt::format("; {:.1f} s without a request are left out", idle);
  out += "\n";
  if (!run.synthetic_acceptance.empty())
    out += fmt::format("SYNTHETIC ACCEPTANCE {}: the text means nothing\n", run.synthetic_acceptance);
  if (!run.emulated_link.empty()) out += fmt::format("emulated link {}\n", run.emulated_link);
  const int64_t empty_drafts = r.drafted == 0 ? totals.drafts_used + totals.head_rounds_at_target : 0;
  if (run.speculates && empty_drafts > 0)
    out += why_drafts_are_empty(run, empty_drafts);
  else if (run.speculates && r.drafted == 0 && totals.workers_joined == 0)
    out += "nothing was drafted: no draft worker joined\n";
  else if (run.speculates && r.drafted == 0 && !run.pinned_zero && r.rounds > r.first_rounds)
    out += fmt::format("nothing was drafted: --gamma-policy {} saw no gain in it; -g N drafts all the same\n",
                       run.gamma_policy);
  if (run.speculates && r.drafted > 0) {
    out += fmt::format("acceptance {:.3f}, {:.2f} tokens per round, {} rounds, {} rolled back\n",
                       r.acceptance(), r.tokens_per_round(), r.rounds, r.rollbacks);
    const std::string draft =
        totals.drafts_received > 0
            ? fmt::format("draft {:.3f} ms, ",
                          per(totals.draft_ingest_ns + totals.draft_ns, totals.drafts_received) * 1e-6)
            : "";
    out += fmt::format("per round: {}verify {:.3f} ms (forward {:.3f}, vocabulary {:.3f})\n", draft,
                       per(totals.forward_ns + totals.verify_ns, totals.target_passes) * 1e-6,
                       per(totals.forward_ns, totals.target_passes) * 1e-6,
                       per(totals.verify_ns, totals.target_passes) * 1e-6);
    out += idle_report(run, totals, metrics["phases"]);
    if (const auto overlap = compare_overlap(totals); overlap && run.emulated_link.empty())
      out += fmt::format(
          "ahead: {:.0f} % of {} outcomes were prepared; a round took {:.3f} ms, {:.3f} predicted (verify "
          "{:.3f}, prepare {:.3f}, draft {:.3f})\n",
          overlap->hit_rate * 100, totals.preparation.lookups, overlap->measured, overlap->predicted(),
          overlap->verify, overlap->prepare, overlap->draft);
    out += wire_report(run, totals, metrics["wire"]);
    if (run.weighs_places)
      out += fmt::format(
          "head: {} rounds beside the target, {} at a draft worker; the other place was tried {} times\n",
          totals.head_rounds_at_target, totals.head_rounds_at_worker, totals.place_trials);
    const auto& kinds = metrics["wire"]["kinds"];
    if (kinds.contains("q_slice")) {
      const auto& slices = kinds["q_slice"];
      const double all = slices["sent_bytes"].get<double>(),
                   linked = slices["device_to_device_bytes"].get<double>();
      out += fmt::format("q: {:.1f} MB in slices, {:.0f} % of them from device to device\n", all / 1e6,
                         100 * linked / all);
    }
  }
  if (comparison) {
    const Ratio& speedup = comparison->speedup;
    out += fmt::format(
        "plain decoding {:.1f} tokens/s, speculative {:.1f}: speed-up {:.2f} ({}predicted {:.2f}), output "
        "{}\n",
        comparison->plain_tokens_per_second, comparison->tokens_per_second, speedup.value,
        spread_of_turns(*comparison), comparison->predicted_speedup,
        comparison->identical_output ? "identical" : "differs");
  }
  return out;
}

nlohmann::json json_report(const RunDescription& run, const Totals& totals, nlohmann::json metrics) {
  nlohmann::json report{{"version", kVersion},
                        {"provenance", provenance(nlohmann::json::object())},
                        {"metrics", std::move(metrics)}};
  report["target"] = {{"name", run.target},
                      {"vocab_size", run.vocab_size},
                      {"tensor_parallel_size", run.tensor_parallel_size},
                      {"data_parallel_size", run.data_parallel_size},
                      {"prefill_groups", run.prefill_groups}};
  report["isa"] = run.isa;
  if (!run.synthetic_acceptance.empty()) report["synthetic_acceptance"] = run.synthetic_acceptance;
  if (!run.emulated_link.empty()) report["emulated_link"] = run.emulated_link;
  report["device"] = run.device;
  report["max_model_len"] = run.max_model_len;
  report["max_num_seqs"] = run.max_num_seqs;
  report["threads"] = run.threads;
  if (run.speculates) {
    report["draft"]["name"] = run.drafter;
    report["gamma_policy"] = run.gamma_policy;
  }
  if (const auto overlap = compare_overlap(totals); overlap && run.emulated_link.empty())
    report["overlap"] = {{"hit_rate", overlap->hit_rate},  {"verify_ms", overlap->verify},
                         {"prepare_ms", overlap->prepare}, {"draft_ms", overlap->draft},
                         {"round_ms", overlap->measured},  {"predicted_round_ms", overlap->predicted()}};
  return report;
}

nlohmann::json json_report(const RunDescription& run, const std::vector<PromptRequest>& requests,
                           uint64_t seed, const Totals& totals, nlohmann::json metrics,
                           const std::optional<PlainComparison>& comparison) {
  nlohmann::json report = json_report(run, totals, std::move(metrics));
  report["rule"] = used(requests, [](const SamplingParams& s) { return std::string(rule_name(s.rule)); });
  report["temperature"] = used(requests, [](const SamplingParams& s) { return s.temperature; });
  report["seed"] = seed;
  report["provenance"]["seeds"]["text"] = seed;
  if (run.speculates) report["draft"]["q_format"] = q_format_used(run, requests);
  if (comparison) {
    const Ratio& speedup = comparison->speedup;
    nlohmann::json& told = report["comparison"];
    told = {{"plain_tokens_per_second", comparison->plain_tokens_per_second},
            {"tokens_per_second", comparison->tokens_per_second},
            {"speedup", speedup.value},
            {"turns", speedup.samples},
            {"predicted_speedup", comparison->predicted_speedup},
            {"identical_output", comparison->identical_output}};
    if (speedup.has_interval()) told["speedup_interval_95"] = {speedup.low, speedup.high};
  }
  return report;
}

}  // namespace outrider
