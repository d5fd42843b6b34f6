#include "lab/simulate/replay_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "coordinator/gamma/policies.h"
#include "lab/simulate/replay.h"
#include "requests/output.h"
#include "requests/provenance.h"

namespace outrider {
namespace {

constexpr int kFixedLengths[] = {0, 1, 2, 3, 4, 6, 8};

struct Row {
  std::string policy;
  ReplayResult result;
};

// Those without a key that must be given.
std::vector<std::string> all_policies(int32_t gamma_max) {
  std::vector<std::string> out;
  for (const int gamma : kFixedLengths)
    if (gamma <= gamma_max) out.push_back(fmt::format("fixed:gamma={}", gamma));
  for (const GammaPolicyInfo& info : gamma_policy_table()) {
    const bool complete = std::none_of(info.keys.begin(), info.keys.end(),
                                       [](const GammaKey& key) { return key.default_value.empty(); });
    if (info.name != "fixed" && complete) out.push_back(info.name);
  }
  return out;
}

double best_fixed_rate(const std::vector<Row>& rows) {
  double best = 0;
  for (const Row& row : rows)
    if (row.policy.starts_with("fixed:")) best = std::max(best, row.result.tokens_per_second());
  return best;
}

double mean_gamma(const RoundSums& sums) {
  return sums.rounds > 0 ? static_cast<double>(sums.drafted) / static_cast<double>(sums.rounds) : 0;
}

std::string table(const std::vector<Row>& rows) {
  const double best = best_fixed_rate(rows);
  std::string out = fmt::format("{:<24} {:>9} {:>8} {:>7} {:>11} {:>11} {:>11} {:>6}\n", "policy", "tokens/s",
                                "regret", "rounds", "acceptance", "tokens/pass", "mean gamma", "gaps");
  for (const auto& [policy, r] : rows) {
    const std::string regret =
        best > 0 ? fmt::format("{:.1f} %", 100 * (1 - r.tokens_per_second() / best)) : "-";
    out += fmt::format("{:<24} {:>9.1f} {:>8} {:>7} {:>11.3f} {:>11.2f} {:>11.2f} {:>6}{}\n", policy,
                       r.tokens_per_second(), regret, r.sums.rounds, r.sums.acceptance(),
                       r.sums.tokens_per_pass(), mean_gamma(r.sums), r.gaps,
                       r.stops_early ? "  its stop rule was ignored" : "");
  }
  if (std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.result.stops_early; }))
    out +=
        "A stop rule ends drafts by confidences, which no record has: where it was ignored, the policy is "
        "shown "
        "as if it never ended a draft early.\n";
  return out;
}

std::string explanation(const RoundRecord& record, const std::vector<std::string>& caveats) {
  const RecordedCosts& c = record.costs;
  std::string out = fmt::format(
      "\n"
      "{} requests recorded with {}, up to {} at once. Rounds: {}\n"
      "Times are not measured but from the costs which that run fitted: a target pass {:.3f} ms and {:.4f} "
      "ms a row,\n"
      "a draft token {:.4f} ms, exchange {:.4f} ms. Gaps: tested tokens that the record does not cover, "
      "drawn at its acceptance.\n",
      record.requests.size(), record.gamma_policy, record.max_num_seqs,
      caveats.empty() ? "exactly those of real runs, but for gaps." : "not exact.", c.verify.base * 1e3,
      c.verify.per_row * 1e3, c.draft.per_step * 1e3, c.exchange * 1e3);
  out += "The first round of each request, which ends its prompt and drafts nothing, is in no figure.\n";
  for (const std::string& caveat : caveats) out += "Not exact: " + caveat + ".\n";
  return out;
}

nlohmann::json report_json(const std::vector<Row>& rows, const std::vector<std::string>& caveats) {
  nlohmann::json policies = nlohmann::json::array();
  for (const auto& [policy, r] : rows)
    policies.push_back({{"policy", policy},
                        {"tokens_per_second", r.tokens_per_second()},
                        {"seconds", r.seconds},
                        {"rounds", r.sums.rounds},
                        {"acceptance_rate", r.sums.acceptance()},
                        {"tokens_per_target_pass", r.sums.tokens_per_pass()},
                        {"mean_gamma", mean_gamma(r.sums)},
                        {"gamma_histogram", r.sums.gamma_histogram},
                        {"tested_tokens", r.sums.tested},
                        {"gaps", r.gaps},
                        {"stop_rule_ignored", r.stops_early}});
  return {{"provenance", provenance(nlohmann::json::object())},
          {"simulated", true},
          {"exact", caveats.empty()},
          {"caveats", caveats},
          {"policies", policies}};
}

}  // namespace

void add_replay_options(CLI::App& app, ReplayOptions& o) {
  app.add_option("file", o.file,
                 "Rounds of a run, from `outrider generate --record-rounds FILE`; any draft length will do, "
                 "but rounds without a draft leave gaps")
      ->required();
  app.add_option("--policies", o.policies,
                 "As of generate --gamma-policy, separated by spaces; default: fixed lengths and all others");
  app.add_option("--report", o.report, "Write the table here, as JSON");
}

Status run_replay(const ReplayOptions& options) {
  ASSIGN_OR_RETURN(const RoundRecord record, read_round_record(options.file));
  std::vector<Row> rows;
  for (const std::string& name :
       options.policies.empty() ? all_policies(record.gamma_max) : options.policies) {
    ASSIGN_OR_RETURN(const auto policy, parse_gamma_policy(name));
    rows.push_back({name, replay(record, policy)});
  }
  const auto caveats = replay_caveats(record);
  std::fputs((table(rows) + explanation(record, caveats)).c_str(), stdout);
  if (options.report.empty()) return {};
  return write_file(options.report, json_text(report_json(rows, caveats), 1) + "\n").in("--report");
}

}  // namespace outrider
