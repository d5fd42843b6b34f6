#include "lab/simulate/theory_command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "lab/simulate/pages.h"
#include "lab/simulate/report_files.h"

namespace outrider {

void add_theory_options(CLI::App& app, TheoryCommandOptions& options) {
  TheoryOptions& o = options.theory;
  app.add_option("--acceptance", o.acceptance,
                 "Chances that a draft token is accepted; default: those of the published tables");
  app.add_option("--gammas", o.gammas, "Draft lengths")->capture_default_str();
  app.add_option("--draft-cost", o.draft_cost, "A draft step, of a plain target step")
      ->check(number_in(1e-6, 1e3))
      ->capture_default_str();
  app.add_option("--delay", o.delay, "One way between coordinator and drafter, in plain target steps")
      ->check(number_in(0, 1e6))
      ->capture_default_str();
  app.add_option("--per-token", o.per_token, "More for each draft token of a pass, of a plain target step")
      ->check(number_in(0, 1e3))
      ->capture_default_str();
  app.add_option("--hit-rate", o.hit_rate, "Of --pipeline fanout: verdicts that find their draft ready")
      ->check(number_in(0, 1))
      ->capture_default_str();
  app.add_option("--guess-acceptance", o.guess_acceptance,
                 "Of drafts for the drafter: chances that a guess is the draft model's own token")
      ->capture_default_str();
  app.add_option("--guess-row", o.guess_row,
                 "With them: what each guess adds to a pass of the draft model, of a draft step")
      ->check(number_in(0, 1e3))
      ->capture_default_str();
  app.add_option("--ranks", o.ranks, "Chance that the target's token is the best child, the second best, ...")
      ->capture_default_str();
  app.add_option("--nodes", o.nodes, "Of the best trees")->capture_default_str();
  app.add_option("--p", o.p,
                 "Target's chances of some tokens, with --q: acceptance of trees with shared noise");
  app.add_option("--q", o.q, "Draft's chances of the same tokens");
  app.add_option("--children", o.children, "With them: at most so many children")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  add_report_options(app, options.files);
}

Status run_theory(const TheoryCommandOptions& options) {
  RETURN_IF_ERROR(check(options.theory));
  RETURN_IF_ERROR(check(options.files));
  std::fputs(theory_report(options.theory).c_str(), stdout);
  nlohmann::json report;
  fill_json(options.theory, report);
  return write(options.files, report, theory_page(options.theory));
}

}  // namespace outrider
