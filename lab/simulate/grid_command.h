// `outrider simulate grid`: the league of the policies (lab/simulate/league.h), on the screen and as JSON.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "lab/simulate/league.h"
#include "lab/simulate/report_files.h"

namespace CLI {
class App;
}

namespace outrider {

struct GridCommandOptions {
  LeagueOptions league;
  std::vector<std::string> row_costs;  // ROWS=COST
  bool quiet = false;
  ReportFiles files;
};
void add_grid_options(CLI::App& app, GridCommandOptions& options);
Status run_grid(const GridCommandOptions& options);

}  // namespace outrider
