#include "lab/simulate/simulate.h"

#include <CLI/CLI.hpp>

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/printable.h"
#include "base/program/exit_codes.h"
#include "base/program/temporary_file.h"
#include "cluster/simulation/hardware.h"
#include "lab/simulate/cluster_simulator.h"
#include "lab/simulate/league.h"
#include "lab/simulate/measured_costs.h"
#include "lab/simulate/plan.h"
#include "lab/simulate/replay_command.h"
#include "lab/simulate/theory.h"
#include "requests/output.h"
#include "requests/provenance.h"
#include "start/settings.h"

namespace outrider {
namespace {

// As CLI::Range, which lets NaN pass.
CLI::Validator number_in(double least, double most) {
  return {[=](const std::string& text) {
            double value = 0;
            const bool fits = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
            return fits ? std::string() : fmt::format("{} must be {} to {}", text, least, most);
          },
          ""};
}
CLI::Validator milliseconds() { return number_in(0, 1e7); }
CLI::Validator gigabits() { return number_in(0, 1e6); }

struct RunFlags {
  double target_ms = 20, target_row_ms = 0.1, draft_ms = 1, draft_row_ms = 0.01;
  std::string hardware, draft_hardware, costs;
  int drafters = 1, groups = 1, fanout = 8;
  std::string pipeline = "lockstep";
  double delay_ms = 0, gbit = 0, loss = 0;
  std::string acceptance = "rates:0.8", gamma_policy = "ewma", arrivals = "burst";
  int requests = 32, prompt_tokens = 128, output_tokens = 256, max_num_seqs = 8;
  uint64_t seed = 1;
  std::string report;
};

void add_run_flags(CLI::App& app, RunFlags& f) {
  app.add_option("--target-ms", f.target_ms, "A plain target pass")
      ->check(milliseconds())
      ->capture_default_str();
  app.add_option("--target-row-ms", f.target_row_ms, "More for each row of the pass")
      ->check(milliseconds())
      ->capture_default_str();
  app.add_option("--draft-ms", f.draft_ms, "A pass of the draft model")
      ->check(milliseconds())
      ->capture_default_str();
  app.add_option("--draft-row-ms", f.draft_row_ms, "More for each sequence in it")
      ->check(milliseconds())
      ->capture_default_str();
  app.add_option("--hardware", f.hardware,
                 "Instead of --target-ms: GPU:MODEL[:tpN]; `list` shows the presets");
  app.add_option("--draft-hardware", f.draft_hardware, "Instead of --draft-ms: GPU:MODEL[:tpN]");
  app.add_option("--costs", f.costs, "Instead of all these: the cost model of a --report FILE of a real run");
  app.add_option("--groups", f.groups, "Target groups, each with a coordinator and drafters of its own")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--drafters", f.drafters, "Draft workers of a group")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  app.add_option("--pipeline", f.pipeline, "What drafters do while the target verifies, as of generate")
      ->check(CLI::IsMember({"lockstep", "ahead", "fanout", "auto"}))
      ->capture_default_str();
  app.add_option("--fanout", f.fanout, "Outcomes prepared for at most, per sequence")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--delay-ms", f.delay_ms,
                 "One way between coordinator and drafters; with --costs more than that run had")
      ->check(milliseconds())
      ->capture_default_str();
  app.add_option("--gbit", f.gbit, "Bandwidth of those links; 0: unlimited")
      ->check(gigabits())
      ->capture_default_str();
  app.add_option("--loss", f.loss,
                 "Share of the drafts, and of the messages that ask for them, that get lost")
      ->check(CLI::Range(0.0, 0.95))
      ->capture_default_str();
  app.add_option("--acceptance", f.acceptance,
                 "rates:0.8/0.7[,spread=S][,guess=G], length:TOKENS[/GAMMA] or trace:FILE; G: the chance of\n"
                 "each further guess of a token after a wrong one, for pipelines")
      ->capture_default_str();
  app.add_option("--gamma-policy", f.gamma_policy, "As of generate")->capture_default_str();
  app.add_option("--arrivals", f.arrivals,
                 "burst: all at once; closed:N[/THINK]: N clients that ask again THINK seconds after an "
                 "answer ended;\n"
                 "poisson:RATE, gamma:RATE/CV or azure:FILE[/SPEEDUP]")
      ->capture_default_str();
  app.add_option("--requests", f.requests, "How many")->check(CLI::Range(1, 10000000))->capture_default_str();
  app.add_option("--prompt-tokens", f.prompt_tokens, "Of each request")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--output-tokens", f.output_tokens, "Of each request")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-num-seqs", f.max_num_seqs, "Sequences decoded together")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--seed", f.seed, "The same seed gives the same result, bit for bit")->capture_default_str();
  app.add_option("--report", f.report, "Write every metric here, as JSON");
}

Result<GroupOptions> group_of(const RunFlags& f) {
  GroupOptions options;
  options.target = {.base = (f.target_ms - f.target_row_ms) * 1e-3, .per_row = f.target_row_ms * 1e-3};
  options.draft = {.base = (f.draft_ms - f.draft_row_ms) * 1e-3, .per_row = f.draft_row_ms * 1e-3};
  if (!f.costs.empty()) {
    ASSIGN_OR_RETURN(options, costs_from_report(f.costs));
  }
  options.draft_link.delay_s += f.delay_ms * 1e-3;
  options.draft_link.bytes_per_second = f.gbit * 1e9 / 8;
  options.draft_link.loss = f.loss;
  options.draft_link.seed = f.seed;
  if (!f.hardware.empty()) {
    ASSIGN_OR_RETURN(const auto cost, hardware_cost(f.hardware));
    options.target = cost.pass;
  }
  if (!f.draft_hardware.empty()) {
    ASSIGN_OR_RETURN(const auto cost, hardware_cost(f.draft_hardware));
    options.draft = cost.pass;
  }
  if (options.target.seconds(1, 0) <= 0 || options.draft.seconds(1, 0) <= 0)
    return invalid_argument("simulate: passes must take time: --target-ms and --draft-ms above 0");
  options.drafters = f.drafters;
  options.max_num_seqs = f.max_num_seqs;
  ASSIGN_OR_RETURN(options.pipeline, parse_pipeline(f.pipeline));
  options.fanout = f.fanout;
  return options;
}

std::string screen(const SimulationResult& result, int groups, double wall) {
  const RoundSums& r = result.totals.rounds;
  const double busy = result.seconds > 0 ? result.target_busy / result.seconds / groups : 0;
  const PreparationTotals& ahead = result.totals.preparation;
  const std::string prepared =
      ahead.lookups == 0 ? ""
                         : fmt::format("prepared drafts: {:.0f} % of {} verdicts were prepared for\n",
                                       100 * ahead.hit_rate(), ahead.lookups);
  return fmt::format(
      "{} tokens in {:.2f} simulated seconds: {:.1f} tokens/s (simulated, no model ran)\n"
      "acceptance {:.3f}, {:.2f} tokens per target pass, {} rounds, {} of them plain\n{}"
      "first token after {:.1f} ms, between bursts {:.2f} ms (medians); targets busy {:.0f} %\n"
      "{:.0f} bytes per emitted token on the draft links; {:.0f} simulated seconds a second\n",
      r.emitted, result.seconds, result.tokens_per_second(), r.acceptance(), r.tokens_per_pass(), r.rounds,
      r.g0_rounds, prepared, result.totals.ttft.percentile_ns(0.5) * 1e-6,
      result.totals.bursts.percentile_ns(0.5) * 1e-6, 100 * busy,
      static_cast<double>(result.bytes) / std::max<double>(1, static_cast<double>(r.emitted)),
      wall > 0 ? result.seconds / wall : 0);
}

// Before any work, as of generate.
Status check_report(const std::string& path) {
  return path.empty() ? Status() : TemporaryFile::check(path).in("--report");
}

Status run_one(const RunFlags& f) {
  RETURN_IF_ERROR(check_report(f.report));
  ASSIGN_OR_RETURN(const auto group, group_of(f));
  const auto parsed = AcceptanceProcess::parse(f.acceptance, f.seed);
  if (!parsed.ok()) return parsed.status().in("--acceptance");
  const AcceptanceProcess& acceptance = parsed.value();
  ASSIGN_OR_RETURN(const auto arrivals,
                   make_arrivals(f.arrivals, f.requests, f.prompt_tokens, f.output_tokens, f.seed));
  const auto start = std::chrono::steady_clock::now();
  const SimulationOptions options{.group = group, .groups = f.groups, .gamma_policy = f.gamma_policy};
  ASSIGN_OR_RETURN(const auto result, ClusterSimulator(options, acceptance).run(arrivals));
  const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::fputs(screen(result, f.groups, wall).c_str(), stdout);
  if (f.report.empty()) return {};
  nlohmann::json report{{"provenance", provenance({{"simulation", f.seed}})},
                        {"simulated", true},
                        {"acceptance_process", acceptance.describe()},
                        {"gamma_policy", f.gamma_policy},
                        {"arrivals", f.arrivals},
                        {"seed", f.seed},
                        {"fingerprint", fmt::format("{:016x}", result.fingerprint)},
                        {"simulated_seconds", result.seconds},
                        {"tokens_per_second", result.tokens_per_second()}};
  fill_json(result.totals, report["metrics"]);
  result.cost.fill_json(report["metrics"]["cost_model"]);
  return write_file(f.report, json_text(report, 2) + "\n").in("--report");
}

struct PlanFlags {
  PlanOptions options;
  double delay_ms = 0.02, gbit = 100;
  std::string report;
};

void add_plan_flags(CLI::App& app, PlanFlags& f) {
  PlanOptions& o = f.options;
  app.add_option("--devices", o.devices, "GPUs there are")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--gpu", o.gpu, "A preset of `simulate run --hardware list`")->capture_default_str();
  app.add_option("--model", o.model, "Target model, a preset")->capture_default_str();
  app.add_option("--draft-model", o.draft_model, "Draft model, a preset")->capture_default_str();
  app.add_option("--costs", o.costs, "Instead of these: the --report FILE of a real run on such devices");
  app.add_option("--target-devices", o.target_devices, "With --costs: devices that run's target had")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--delay-ms", f.delay_ms, "One way between coordinator and drafters")
      ->check(milliseconds())
      ->capture_default_str();
  app.add_option("--gbit", f.gbit, "Bandwidth of those links; 0: unlimited")
      ->check(gigabits())
      ->capture_default_str();
  app.add_option("--acceptance", o.acceptance, "As of `simulate run`")->capture_default_str();
  app.add_option("--arrivals", o.arrivals, "As of `simulate run`")->capture_default_str();
  app.add_option("--requests", o.requests, "How many")->check(CLI::Range(1, 10000000))->capture_default_str();
  app.add_option("--prompt-tokens", o.prompt_tokens, "Of each request")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--output-tokens", o.output_tokens, "Of each request")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-num-seqs", o.max_num_seqs, "Texts that a group decodes together, at most")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--seed", o.seed, "The same seed gives the same result, bit for bit")->capture_default_str();
  app.add_option("--threads", o.threads, "0: one per core")->capture_default_str();
  app.add_option("--report", f.report, "Write the ranking here, as JSON");
}

Status run_plan(PlanFlags& f) {
  RETURN_IF_ERROR(check_report(f.report));
  f.options.draft_link = {.delay_s = f.delay_ms * 1e-3, .bytes_per_second = f.gbit * 1e9 / 8};
  ASSIGN_OR_RETURN(const Plan plan, make_plan(f.options));
  std::fputs(plan_report(f.options, plan).c_str(), stdout);
  if (f.report.empty()) return {};
  nlohmann::json report;
  fill_json(f.options, plan, report);
  report["provenance"] = provenance({{"simulation", f.options.seed}});
  return write_file(f.report, json_text(report, 2) + "\n").in("--report");
}

Status run_grid(const LeagueOptions& options) {
  if (options.seeds < 2 || options.tokens < 1 || options.output_tokens < 1)
    return invalid_argument("simulate grid: at least 2 seeds, and 1 token");
  ASSIGN_OR_RETURN(const auto rows, run_league(options));
  std::fputs(league_report(options, rows).c_str(), stdout);
  return {};
}

}  // namespace

struct SimulateCommand::State {
  RunFlags run;
  LeagueOptions league;
  PlanFlags plan;
  ReplayOptions replay;
  CLI::App* run_app = nullptr;
  CLI::App* plan_app = nullptr;
  CLI::App* theory = nullptr;
  CLI::App* grid = nullptr;
  CLI::App* replay_app = nullptr;
};

SimulateCommand::SimulateCommand(CLI::App& app) : state_(std::make_unique<State>()) {
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  outrider simulate plan --devices 8 --gpu h100 --model 70b --draft-model 1b\n"
      "  outrider simulate run --hardware h100:70b:tp4 --draft-hardware h100:1b --pipeline fanout --arrivals "
      "poisson:2\n"
      "  outrider simulate run --costs report.json --delay-ms 1     # costs measured by `generate --report "
      "report.json`\n"
      "  outrider simulate grid --policies ewma fixed:gamma=3       # against the best fixed length of each "
      "cell\n"
      "  outrider simulate replay rounds.jsonl                      # from `generate --record-rounds "
      "rounds.jsonl`");
  state_->theory = app.add_subcommand("theory", "The published tables of expected gain, recomputed");
  state_->run_app = app.add_subcommand("run", "One cluster, one policy, one load");
  add_run_flags(*state_->run_app, state_->run);
  state_->plan_app =
      app.add_subcommand("plan", "Which layout, pipeline and policy for this hardware and load");
  add_plan_flags(*state_->plan_app, state_->plan);
  state_->replay_app = app.add_subcommand("replay", "Recorded rounds of a real run, through other policies");
  add_replay_options(*state_->replay_app, state_->replay);
  LeagueOptions& league = state_->league;
  state_->grid =
      app.add_subcommand("grid", "League table of the policies over acceptance x draft cost x batch");
  state_->grid->add_option("--policies", league.policies, "Separated by spaces; default: all");
  state_->grid->add_option("--acceptance", league.acceptance, "Chances that a draft token is accepted")
      ->capture_default_str();
  state_->grid->add_option("--draft-cost", league.draft_cost, "Of a plain target pass")
      ->check(number_in(1e-6, 1e3))
      ->capture_default_str();
  state_->grid->add_option("--batch", league.batch, "Sequences decoded together")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  state_->grid->add_option("--per-row", league.per_row, "Of a plain target pass, for each row more")
      ->check(number_in(0, 0.99))
      ->capture_default_str();
  state_->grid->add_option("--spread", league.spread, "Acceptance varies by text position by so much")
      ->capture_default_str();
  state_->grid->add_option("--output-tokens", league.output_tokens, "Of a text, on average")
      ->capture_default_str();
  state_->grid->add_option("--tokens", league.tokens, "Per cell and seed, at least three requests a place")
      ->capture_default_str();
  state_->grid->add_option("--seeds", league.seeds, "How many; the interval of the regret is over them")
      ->capture_default_str();
  state_->grid->add_option("--threads", league.threads, "0: one per core")->capture_default_str();
}

SimulateCommand::~SimulateCommand() = default;

int SimulateCommand::run() {
  Status status;
  if (*state_->theory) {
    std::fputs(theory_report().c_str(), stdout);
  } else if (*state_->grid) {
    status = run_grid(state_->league);
  } else if (*state_->plan_app) {
    status = run_plan(state_->plan);
  } else if (*state_->replay_app) {
    status = run_replay(state_->replay);
  } else if (state_->run.hardware == "list" || state_->run.draft_hardware == "list") {
    std::fputs(list_hardware().c_str(), stdout);
  } else {
    status = run_one(state_->run);
  }
  if (status.ok()) return kExitOk;
  tell_error(status.message());
  return kExitUsage;
}

}  // namespace outrider
