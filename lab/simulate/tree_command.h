// `outrider simulate trees`: chains and trees of drafts by their nodes, from the acceptance of each rank and
// the cost of a pass by its rows.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/simulate/report_files.h"

namespace CLI {
class App;
}

namespace outrider {

struct TreeForecastOptions {
  std::vector<double> ranks{0.68, 0.18, 0.06, 0.03};  // chance that the r-th best child is the target's token
  std::vector<std::string> row_costs{"16=1.10", "64=1.3"};  // ROWS=COST of a pass, of one with a single row
  double draft_cost = 0.05;                                 // a draft step of one row, of a plain pass
  double delay = 0;                                         // one way, of a plain pass
  std::vector<int> nodes{4, 8, 16, 32};
  int max_depth = 32, batch = 1;
  int rounds = 20'000;  // simulated, to check the closed form
  uint64_t seed = 1;
  ReportFiles files;
};

// A draft of some shape: the tokens and the cost of its rounds.
struct TreeFigures {
  int nodes = 0, depth = 0;
  double tokens = 0;   // of a round, closed form
  double seconds = 0;  // of a round, in plain passes of the batch
  double speedup() const { return seconds > 0 ? tokens / seconds : 0; }
};
struct TreeRow {
  int nodes = 0;
  double pass = 0;                      // the cost of verifying them, relative to a plain pass
  TreeFigures chain, best_chain, tree;  // the best chain: at most `nodes` tokens
  double gain() const;                  // of the tree over the best chain; 0.1: 10 % faster
  double simulated = 0;                 // tokens of the tree's rounds, walked one by one,
  double half_width = 0;                // and their 95 % interval
};

Result<std::vector<TreeRow>> compare_trees(const TreeForecastOptions& options);
std::string tree_text(const TreeForecastOptions& options, const std::vector<TreeRow>& rows);
void fill_json(const TreeForecastOptions& options, const std::vector<TreeRow>& rows, nlohmann::json& out);

void add_tree_options(CLI::App& app, TreeForecastOptions& options);
Status run_trees(const TreeForecastOptions& options);

}  // namespace outrider
