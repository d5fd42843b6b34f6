#include "lab/simulate/grid_command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "lab/simulate/pages.h"
#include "lab/simulate/report_files.h"
#include "lab/simulate/row_costs.h"

namespace outrider {

void add_grid_options(CLI::App& app, GridCommandOptions& options) {
  LeagueOptions& league = options.league;
  app.add_option("--policies", league.policies, "Separated by spaces; default: all");
  app.add_option("--acceptance", league.acceptance, "Chances that a draft token is accepted")
      ->check(number_in(0, 1))
      ->capture_default_str();
  app.add_option("--draft-cost", league.draft_cost, "Of a plain target pass")
      ->check(number_in(1e-6, 1e3))
      ->capture_default_str();
  app.add_option("--batch", league.batch, "Sequences decoded together")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--per-row", league.per_row, "Of a plain target pass, for each row more")
      ->check(number_in(0, 0.99))
      ->capture_default_str();
  app.add_option(
         "--row-costs", options.row_costs,
         "Measured costs of passes by rows, in plain passes, in place of --per-row: 2=1.1 5=2.2 9=3.6")
      ->excludes("--per-row");
  app.add_option("--target-delay", league.target_delay,
                 "Round trip from the coordinator to the target, in plain passes")
      ->check(number_in(0, 1e3))
      ->capture_default_str();
  app.add_flag("--one-device", league.one_device,
               "Target and drafter take turns on one device, in one process");
  app.add_option("--spread", league.spread, "Acceptance varies by text position by so much")
      ->capture_default_str();
  app.add_option("--output-tokens", league.output_tokens, "Tokens of a text, on average")
      ->capture_default_str();
  app.add_option("--tokens", league.tokens, "Per cell and seed, at least three requests a place")
      ->capture_default_str();
  app.add_option("--seeds", league.seeds, "How many; the interval of the regret is over them")
      ->check(CLI::Range(2, 1000))
      ->capture_default_str();
  app.add_option("--threads", league.threads, "0: one per core")->capture_default_str();
  app.add_flag("-q,--quiet", options.quiet, "No progress on standard error");
  add_report_options(app, options.files);
}

Status run_grid(const GridCommandOptions& options) {
  LeagueOptions league = options.league;
  league.progress = !options.quiet;
  ASSIGN_OR_RETURN(league.row_costs, parse_row_costs(options.row_costs));
  if (league.seeds < 2 || league.tokens < 1 || league.output_tokens < 1)
    return invalid_argument("simulate grid: at least 2 seeds, and 1 token");
  RETURN_IF_ERROR(check(options.files));
  ASSIGN_OR_RETURN(const auto rows, run_league(league));
  std::fputs(league_report(league, rows).c_str(), stdout);
  nlohmann::json report;
  fill_json(league, rows, report);
  return write(options.files, report, grid_page(league, rows));
}

}  // namespace outrider
