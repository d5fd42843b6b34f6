// `outrider simulate replay`: recorded rounds through any policies, side by side.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/simulate/replay.h"
#include "lab/simulate/report_files.h"

namespace CLI {
class App;
}

namespace outrider {

struct ReplayOptions {
  std::string file;
  std::vector<std::string> row_costs;  // ROWS=COST; none: as recorded
  double draft_cost = 0, draft_prefill_cost = 0;
  std::vector<std::string> policies;  // empty: fixed lengths and every policy that can be replayed
  ReportFiles files;
};

struct ReplayRow {
  std::string policy;
  ReplayResult result;
  bool is_fixed() const { return policy == "fixed" || policy.starts_with("fixed:"); }
  double mean_gamma() const;
};

// Results of the replays of one record.
struct ReplayTable {
  std::string file, subtitle;
  std::vector<ReplayRow> rows;
  std::vector<std::string> caveats;  // why it is not what real runs would have done; empty: it is
  // Share of tokens/s lost against the fastest fixed length; empty where none was played.
  std::optional<double> regret(const ReplayRow& row) const;
  const ReplayRow* best_fixed() const;  // null: there is none
};

void add_replay_options(CLI::App& app, ReplayOptions& options);
Status run_replay(const ReplayOptions& options);

}  // namespace outrider
