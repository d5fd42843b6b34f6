#include "lab/simulate/replay_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "coordinator/gamma/policies.h"
#include "lab/simulate/pages.h"
#include "lab/simulate/row_costs.h"

namespace outrider {
namespace {

constexpr int kFixedLengths[] = {0, 1, 2, 3, 4, 6, 8};

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

std::string text_of(const ReplayTable& table) {
  std::string out = fmt::format("{:<24} {:>9} {:>8} {:>7} {:>11} {:>11} {:>11} {:>6}\n", "policy", "tokens/s",
                                "regret", "rounds", "acceptance", "tokens/round", "mean gamma", "gaps");
  for (const ReplayRow& row : table.rows) {
    const ReplayResult& r = row.result;
    const auto lost = table.regret(row);
    const std::string regret = lost ? fmt::format("{:.1f} %", 100 * *lost) : "-";
    out += fmt::format("{:<24} {:>9.1f} {:>8} {:>7} {:>11.3f} {:>11.2f} {:>11.2f} {:>6}{}\n", row.policy,
                       r.tokens_per_second(), regret, r.sums.rounds, r.sums.acceptance(),
                       r.sums.tokens_per_round(), row.mean_gamma(), r.gaps,
                       r.stops_early ? "  its stop rule was ignored" : "");
  }
  if (const ReplayRow* best = table.best_fixed())
    out += fmt::format("Regret: tokens/s lost against {}, the fastest fixed length here.\n", best->policy);
  if (std::any_of(table.rows.begin(), table.rows.end(),
                  [](const auto& row) { return row.result.stops_early; }))
    out +=
        "A stop rule ends drafts by confidences. Where the record lacks them, it was ignored, and the policy "
        "is "
        "shown as if it never ended a draft early.\n";
  return out;
}

std::string explanation(const RoundRecord& record, const std::vector<std::string>& caveats,
                        const ReplayCosts& given) {
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
  constexpr double kLeastBase = 0.01;  // of a pass of one row
  if (given.rows.points().empty() && c.verify.base < kLeastBase * (c.verify.base + c.verify.per_row))
    out +=
        "That fit says that a pass costs its rows and nothing else: it saw few kinds of passes, or a busy "
        "machine. Give --row-costs.\n";
  if (given.given())
    out += fmt::format(
        "Given in passes of one row ({:.3f} ms): row costs {}, a draft token {}, a prompt token of the draft "
        "model {}.\n",
        (c.verify.base + c.verify.per_row) * 1e3,
        given.rows.points().empty() ? "as recorded" : fmt::format("{}", fmt::join(given.rows.points(), " ")),
        given.draft > 0 ? fmt::format("{}", given.draft) : "as recorded", given.draft_prefill);
  out += "The first round of each request, which ends its prompt and drafts nothing, is in no figure.\n";
  for (const std::string& caveat : caveats) out += "Not exact: " + caveat + ".\n";
  return out;
}

nlohmann::json report_json(const ReplayTable& table) {
  nlohmann::json policies = nlohmann::json::array();
  for (const ReplayRow& row : table.rows) {
    const ReplayResult& r = row.result;
    const auto regret = table.regret(row);
    policies.push_back({{"policy", row.policy},
                        {"tokens_per_second", r.tokens_per_second()},
                        {"regret", regret ? nlohmann::json(*regret) : nlohmann::json()},
                        {"seconds", r.seconds},
                        {"rounds", r.sums.rounds},
                        {"acceptance_rate", r.sums.acceptance()},
                        {"tokens_per_round", r.sums.tokens_per_round()},
                        {"mean_gamma", row.mean_gamma()},
                        {"gamma_histogram", r.sums.gamma_histogram},
                        {"tested_tokens", r.sums.tested},
                        {"gaps", r.gaps},
                        {"stop_rule_ignored", r.stops_early}});
  }
  return {{"simulated", true},
          {"exact", table.caveats.empty()},
          {"caveats", table.caveats},
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
  app.add_option(
      "--row-costs", o.row_costs,
      "Costs of passes by rows, in passes of one row: 2=1.1 5=2.2 9=3.6. Policies know them and "
      "--draft-cost at the start. Default: the line that the recorded run fitted, unknown at first");
  app.add_option("--draft-cost", o.draft_cost, "Of a draft token, in passes of one row; 0: as recorded")
      ->check(number_in(0, 1e3))
      ->capture_default_str();
  app.add_option("--draft-prefill-cost", o.draft_prefill_cost,
                 "Of a token of a prompt, in passes of one row: the draft model prefills it before its first "
                 "draft")
      ->check(number_in(0, 1e3))
      ->capture_default_str();
  add_report_options(app, o.files);
}

double ReplayRow::mean_gamma() const {
  const RoundSums& sums = result.sums;
  return sums.rounds > 0 ? static_cast<double>(sums.drafted) / static_cast<double>(sums.rounds) : 0;
}

std::optional<double> ReplayTable::regret(const ReplayRow& row) const {
  const ReplayRow* const best = best_fixed();
  if (!best || best->result.tokens_per_second() <= 0) return std::nullopt;
  return 1 - row.result.tokens_per_second() / best->result.tokens_per_second();
}

const ReplayRow* ReplayTable::best_fixed() const {
  const ReplayRow* best = nullptr;
  for (const ReplayRow& row : rows)
    if (row.is_fixed() && (!best || row.result.tokens_per_second() > best->result.tokens_per_second()))
      best = &row;
  return best;
}

Status run_replay(const ReplayOptions& options) {
  RETURN_IF_ERROR(check(options.files));
  ASSIGN_OR_RETURN(const RoundRecord record, read_round_record(options.file));
  ReplayCosts costs{.rows = {}, .draft = options.draft_cost, .draft_prefill = options.draft_prefill_cost};
  ASSIGN_OR_RETURN(costs.rows, parse_row_costs(options.row_costs));
  ReplayTable table{.file = options.file,
                    .subtitle = fmt::format("{} requests recorded with {}, up to {} at once; no model ran.",
                                            record.requests.size(), record.gamma_policy, record.max_num_seqs),
                    .rows = {},
                    .caveats = replay_caveats(record)};
  for (const std::string& name :
       options.policies.empty() ? all_policies(record.gamma_max) : options.policies) {
    ASSIGN_OR_RETURN(const auto policy, parse_gamma_policy(name));
    table.rows.push_back({name, replay(record, policy, costs)});
  }
  std::fputs((text_of(table) + explanation(record, table.caveats, costs)).c_str(), stdout);
  return write(options.files, report_json(table), replay_page(table));
}

}  // namespace outrider
