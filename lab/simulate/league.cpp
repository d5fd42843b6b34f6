#include "lab/simulate/league.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "base/version.h"
#include "coordinator/gamma/policies.h"
#include "lab/simulate/cluster_simulator.h"
#include "lab/simulate/parallel.h"

namespace outrider {
namespace {

constexpr double kPlainPass = 0.010;  // seconds; everything is relative to it
constexpr int kMaxGamma = kDefaultGammaMax;

struct Cell {
  double acceptance, draft_cost;
  int batch;
  std::string name() const {
    return fmt::format("alpha {:.2f}, rho {:.2f}, batch {}", acceptance, draft_cost, batch);
  }
};

std::vector<Cell> cells_of(const LeagueOptions& options) {
  std::vector<Cell> cells;
  for (const double acceptance : options.acceptance)
    for (const double draft_cost : options.draft_cost)
      for (const int batch : options.batch) cells.push_back({acceptance, draft_cost, batch});
  return cells;
}

// Tokens per second of one policy in one cell.
Result<double> play(const LeagueOptions& options, const Cell& cell, const std::string& policy,
                    uint64_t seed) {
  ASSIGN_OR_RETURN(const auto acceptance,
                   AcceptanceProcess::of_rates({cell.acceptance}, options.spread, seed));
  const double row = options.row_costs.points().empty() ? options.per_row * kPlainPass : 0;
  const SimulationOptions world{
      .job = {.target = {.base = kPlainPass - row, .per_row = row, .curve = options.row_costs},
              .draft = {.base = cell.draft_cost * (kPlainPass - row),
                        .per_row = cell.draft_cost * row,
                        .curve = options.row_costs},
              .target_link = {.delay_s = options.target_delay * kPlainPass / 2},
              .max_num_seqs = cell.batch,
              .in_turns = options.one_device,
              .one_process = options.one_device},
      .gamma_policy = policy};
  const int requests = std::max(3 * cell.batch, options.tokens / options.output_tokens);
  ASSIGN_OR_RETURN(auto arrivals, make_arrivals("burst", requests, 16, options.output_tokens, seed));
  // Texts of one length end together in plain decoding alone, which would favour it.
  std::mt19937_64 random(seed);
  for (SimulatedRequest& request : arrivals.requests)
    request.output_tokens +=
        static_cast<int32_t>(random() % static_cast<uint64_t>(options.output_tokens + 1)) -
        options.output_tokens / 2;
  ASSIGN_OR_RETURN(const auto result, ClusterSimulator(world, acceptance).run(arrivals));
  return result.tokens_per_second();
}

// rates[policy][seed]; the fixed lengths 0..kMaxGamma come first.
using CellRates = std::vector<std::vector<double>>;

size_t best_fixed(const CellRates& rates) {
  const auto mean = [&](size_t gamma) {
    double sum = 0;
    for (const double rate : rates[gamma]) sum += rate;
    return sum;
  };
  size_t best = 0;
  for (size_t gamma = 1; gamma <= kMaxGamma; ++gamma)
    if (mean(gamma) > mean(best)) best = gamma;
  return best;
}

// Two-sided 95 % quantiles of Student's t for 1..9 degrees of freedom.
double student_95(size_t degrees) {
  constexpr double kQuantiles[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262};
  return degrees == 0 ? NAN : degrees <= 9 ? kQuantiles[degrees - 1] : 1.96;
}

LeagueRow summarise(const std::string& policy, size_t index, const std::vector<Cell>& cells,
                    const std::vector<CellRates>& rates, size_t seeds) {
  LeagueRow row{.policy = policy, .worst_over_plain = INFINITY, .worst_cell = {}, .worst_plain_cell = {}};
  std::vector<double> by_seed(seeds, 0);
  for (size_t c = 0; c < cells.size(); ++c) {
    const auto& best = rates[c][best_fixed(rates[c])];
    double regret = 0, over_plain = 0;
    for (size_t s = 0; s < seeds; ++s) {
      const double lost = 1 - rates[c][index][s] / best[s];
      by_seed[s] += lost / static_cast<double>(cells.size());
      regret += lost / static_cast<double>(seeds);
      over_plain += rates[c][index][s] / rates[c][0][s] / static_cast<double>(seeds);
    }
    if (regret > row.worst_regret || c == 0) row.worst_regret = regret, row.worst_cell = cells[c].name();
    if (over_plain < row.worst_over_plain)
      row.worst_over_plain = over_plain, row.worst_plain_cell = cells[c].name();
  }
  for (const double regret : by_seed) row.regret += regret / static_cast<double>(seeds);
  double variance = 0;
  for (const double regret : by_seed) variance += (regret - row.regret) * (regret - row.regret);
  if (seeds > 1)
    row.half_width = student_95(seeds - 1) *
                     std::sqrt(variance / static_cast<double>(seeds - 1) / static_cast<double>(seeds));
  return row;
}

std::vector<std::string> policies_of(const LeagueOptions& options) {
  if (!options.policies.empty()) return options.policies;
  std::vector<std::string> policies;
  for (const GammaPolicyInfo& policy : gamma_policy_table())
    if (policy.name != "replay" && policy.name != "fixed") policies.push_back(policy.name);
  for (const char* fixed : {"fixed:gamma=0", "fixed:gamma=3", "fixed:gamma=5"}) policies.push_back(fixed);
  return policies;
}

}  // namespace

Result<std::vector<LeagueRow>> run_league(const LeagueOptions& options) {
  const auto cells = cells_of(options);
  const auto policies = policies_of(options);
  std::vector<std::string> players;
  for (int gamma = 0; gamma <= kMaxGamma; ++gamma) players.push_back(fmt::format("fixed:gamma={}", gamma));
  players.insert(players.end(), policies.begin(), policies.end());
  for (const std::string& player : players) RETURN_IF_ERROR(parse_gamma_policy(player).status());

  const auto seeds = static_cast<size_t>(options.seeds);
  std::vector<CellRates> rates(cells.size(), CellRates(players.size(), std::vector<double>(seeds)));
  RETURN_IF_ERROR(for_each_in_parallel(
      cells.size(), options.threads, options.progress ? "cells" : "", [&](size_t c) -> Status {
        for (size_t p = 0; p < players.size(); ++p)
          for (size_t seed = 0; seed < seeds; ++seed) {
            ASSIGN_OR_RETURN(rates[c][p][seed], play(options, cells[c], players[p], 1 + seed));
          }
        return {};
      }));

  std::vector<LeagueRow> rows;
  for (size_t p = 0; p < policies.size(); ++p)
    rows.push_back(summarise(policies[p], kMaxGamma + 1 + p, cells, rates, seeds));
  std::stable_sort(rows.begin(), rows.end(),
                   [](const LeagueRow& a, const LeagueRow& b) { return a.regret < b.regret; });
  return rows;
}

std::string describe_passes(const LeagueOptions& options) {
  std::string out = fmt::format("a further row costs {:.3f} of a plain pass", options.per_row);
  if (!options.row_costs.points().empty()) {
    out = "passes by rows cost";
    for (const auto& [rows, cost] : options.row_costs.points()) out += fmt::format(" {}={}", rows, cost);
  }
  if (options.target_delay > 0)
    out += fmt::format("; a round trip to the target takes {} passes", options.target_delay);
  if (options.one_device) out += "; target and drafter take turns on one device";
  return out;
}

std::string league_report(const LeagueOptions& options, const std::vector<LeagueRow>& rows) {
  std::string out = fmt::format(
      "{} cells (acceptance x draft cost x batch), {} seeds; {}.\n"
      "Regret: 1 - tokens/s over those of the best fixed gamma in hindsight (0..{}), mean over the "
      "grid\n"
      "with a 95 % interval over seeds. Negative: better than any fixed gamma.\n\n",
      options.acceptance.size() * options.draft_cost.size() * options.batch.size(), options.seeds,
      describe_passes(options), kMaxGamma);
  out += fmt::format("{:<15} {:>16} {:>8}  {:<32} {:>9}  {}\n", "policy", "regret", "worst", "where",
                     "of plain", "worst where");
  for (const LeagueRow& row : rows)
    out += fmt::format("{:<15} {:>6.2f} % +- {:>4.2f} {:>6.1f} %  {:<32} {:>9.3f}  {}\n", row.policy,
                       row.regret * 100, row.half_width * 100, row.worst_regret * 100, row.worst_cell,
                       row.worst_over_plain, row.worst_plain_cell);
  return out;
}

void fill_json(const LeagueOptions& options, const std::vector<LeagueRow>& rows, nlohmann::json& out) {
  out = {{"simulated", true},
         {"version", kVersion},
         {"acceptance", options.acceptance},
         {"draft_cost", options.draft_cost},
         {"batch", options.batch},
         {"passes", describe_passes(options)},
         {"per_row", options.per_row},
         {"row_costs", options.row_costs.points()},
         {"target_delay", options.target_delay},
         {"one_device", options.one_device},
         {"spread", options.spread},
         {"output_tokens", options.output_tokens},
         {"tokens", options.tokens},
         {"seeds", options.seeds},
         {"gamma_max", kMaxGamma},
         {"policies", nlohmann::json::array()}};
  for (const LeagueRow& row : rows)
    out["policies"].push_back({{"policy", row.policy},
                               {"regret", row.regret},
                               {"regret_half_width_95", row.half_width},
                               {"worst_regret", row.worst_regret},
                               {"worst_cell", row.worst_cell},
                               {"worst_over_plain", row.worst_over_plain},
                               {"worst_plain_cell", row.worst_plain_cell}});
}

}  // namespace outrider
