#include "lab/simulate/simulate.h"

#include <CLI/CLI.hpp>
#include <functional>
#include <list>

#include "base/printable.h"
#include "base/program/exit_codes.h"
#include "lab/simulate/fit_command.h"
#include "lab/simulate/grid_command.h"
#include "lab/simulate/replay_command.h"
#include "lab/simulate/run_command.h"
#include "lab/simulate/texts_command.h"
#include "lab/simulate/theory_command.h"
#include "lab/simulate/tree_command.h"
#include "start/flags/command_line.h"

namespace outrider {
struct SimulateCommand::State {
  RunCommandOptions run;
  PlanCommandOptions plan;
  GridCommandOptions grid;
  TheoryCommandOptions theory;
  TreeForecastOptions trees;
  FitOptions fit;
  ReplayOptions replay;
  TextsOptions texts;
  struct Command {
    CLI::App* app;
    std::function<Status()> run;
    std::string config_file;
  };
  std::list<Command> commands;  // which stay where they are: flags refer to their fields

  // Every command below `simulate` takes its flags from a file, too.
  template <class Options>
  void add(CLI::App& parent, const char* name, const char* what, void (*add_options)(CLI::App&, Options&),
           Options& options, std::function<Status()> work) {
    CLI::App* const app = parent.add_subcommand(name, what);
    add_options(*app, options);
    Command& command = commands.emplace_back(Command{app, std::move(work), {}});
    add_config_file(*app, command.config_file);
  }
};

SimulateCommand::SimulateCommand() : state_(std::make_unique<State>()) {}

SimulateCommand::~SimulateCommand() = default;

void SimulateCommand::add_options(CLI::App& app) {
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  outrider simulate plan --devices 8 --gpu h100 --model 70b --draft-model 1b\n"
      "  outrider simulate run --hardware h100:70b:tp4 --draft-hardware h100:1b --pipeline fanout --arrivals "
      "poisson:2\n"
      "  outrider simulate run --costs report.json --delay-ms 1     # costs measured by `generate --report "
      "report.json`\n"
      "  outrider simulate fit bench.json -o costs.json             # from `outrider bench --report "
      "bench.json`\n"
      "  outrider simulate trees --ranks 0.7 0.15 0.05 --row-costs 16=1.1 64=1.3\n"
      "  outrider simulate grid --policies ewma fixed:gamma=3       # against the best fixed length of each "
      "cell\n"
      "  outrider simulate replay rounds.jsonl                      # from `generate --record-rounds "
      "rounds.jsonl`\n"
      "  outrider simulate texts answers.jsonl --model DIR          # which drafter without a model suits "
      "them");
  State& s = *state_;
  s.add(app, "plan", "Which layout, pipeline and policy for this hardware and load", add_plan_options, s.plan,
        [&s] { return run_plan(s.plan); });
  s.add(app, "run", "One cluster, one policy, one load", add_run_options, s.run,
        [&s] { return run_simulation(s.run); });
  s.add(app, "grid", "League table of the policies over acceptance x draft cost x batch", add_grid_options,
        s.grid, [&s] { return run_grid(s.grid); });
  s.add(app, "trees", "Chains and trees of drafts, by acceptance of each rank and cost of rows",
        add_tree_options, s.trees, [&s] { return run_trees(s.trees); });
  s.add(app, "theory", "Expected gain by closed forms: lengths, pipelines, trees", add_theory_options,
        s.theory, [&s] { return run_theory(s.theory); });
  s.add(app, "fit", "Costs of your own machine, from timings made there", add_fit_options, s.fit,
        [&s] { return run_fit(s.fit); });
  s.add(app, "replay", "Recorded rounds of a real run, through other policies", add_replay_options, s.replay,
        [&s] { return run_replay(s.replay); });
  s.add(app, "texts", "Texts that were written, through drafters that need no model", add_texts_options,
        s.texts, [&s] { return run_texts(s.texts); });
}

int SimulateCommand::run() {
  Status status;
  for (const State::Command& command : state_->commands)
    if (*command.app) status = command.run();
  if (status.ok()) return kExitOk;
  tell_error(status.message());
  return kExitUsage;
}

}  // namespace outrider
