// `outrider simulate run` and `plan`: one described cluster, or the best of many.
#pragma once

#include <memory>

#include "base/status.h"
#include "lab/simulate/plan.h"
#include "lab/simulate/report_files.h"

namespace CLI {
class App;
}

namespace outrider {

struct RunCommandOptions {
  SimulatedRun run;
  std::string place = "own";
  ReportFiles files;
};
void add_run_options(CLI::App& app, RunCommandOptions& options);
Status run_simulation(const RunCommandOptions& options);

struct PlanCommandOptions {
  PlanOptions plan;
  double delay_ms = -1, gbit = -1;  // below 0: as the kind of costs has it
  bool quiet = false;
  ReportFiles files;
};
void add_plan_options(CLI::App& app, PlanCommandOptions& options);
Status run_plan(PlanCommandOptions options);

}  // namespace outrider
