// Results of the commands under `outrider simulate`, as reports for people (lab/report/report.h).
#pragma once

#include <vector>

#include "lab/report/report.h"
#include "lab/simulate/fit.h"
#include "lab/simulate/league.h"
#include "lab/simulate/plan.h"
#include "lab/simulate/replay_command.h"
#include "lab/simulate/texts_command.h"
#include "lab/simulate/theory.h"
#include "lab/simulate/tree_command.h"

namespace outrider {

report::Report plan_page(const PlanOptions& options, const Plan& plan);
report::Report run_page(const SimulatedRun& run, const PlayedRun& played);
report::Report grid_page(const LeagueOptions& options, const std::vector<LeagueRow>& rows);
report::Report tree_page(const TreeForecastOptions& options, const std::vector<TreeRow>& rows);
report::Report theory_page(const TheoryOptions& options);
report::Report fit_page(const Timings& timings, const CostFit& fit);
report::Report replay_page(const ReplayTable& table);
report::Report texts_page(const TextsTable& table);

}  // namespace outrider
