// `outrider simulate grid`: every policy in every cell of acceptance x draft cost x batch, against the best
// fixed draft length in hindsight and against plain decoding.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "cluster/simulation/row_costs.h"

namespace outrider {

struct LeagueOptions {
  std::vector<std::string> policies;  // empty: all
  std::vector<double> acceptance = {0.3, 0.5, 0.65, 0.8, 0.9, 0.95};
  std::vector<double> draft_cost = {0.01, 0.05, 0.1, 0.2, 0.5};  // of a plain target pass
  std::vector<int> batch = {1, 4, 16, 32};
  double per_row = 0.02;    // more for each row of a pass, of a plain one; without row_costs
  RowCosts row_costs;       // of target and draft model, as measured
  double target_delay = 0;  // round trip of a pass to the target, in plain passes
  bool one_device = false;  // target and drafter take turns on a device, in the coordinator's process
  double spread = 0;        // acceptance varies by position by so much
  int output_tokens = 256;  // mean; from half of it to half more
  int tokens = 4096;        // per cell and seed, at least three requests a place
  int seeds = 3;
  int threads = 0;
  bool progress = false;  // on standard error
};

struct LeagueRow {
  std::string policy;
  double regret = 0, half_width = 0;  // mean over the grid of 1 - rate / best fixed, and its 95 % interval
  double worst_regret = 0;
  double worst_over_plain = 0;
  std::string worst_cell, worst_plain_cell;
};

Result<std::vector<LeagueRow>> run_league(const LeagueOptions& options);
// The cost of a pass, as a sentence without a full stop.
std::string describe_passes(const LeagueOptions& options);
std::string league_report(const LeagueOptions& options, const std::vector<LeagueRow>& rows);
void fill_json(const LeagueOptions& options, const std::vector<LeagueRow>& rows, nlohmann::json& out);

}  // namespace outrider
