#include "lab/simulate/run_command.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "lab/simulate/head_presets.h"
#include "lab/simulate/pages.h"
#include "lab/simulate/report_files.h"

namespace outrider {
namespace {

std::string screen(const SimulatedRun& run, const PlayedRun& played, double wall) {
  const SimulationResult& result = played.result;
  const RoundSums& r = result.totals.rounds;
  const PreparationTotals& ahead = result.totals.preparation;
  const std::string prepared =
      ahead.lookups == 0 ? ""
                         : fmt::format("prepared drafts: {:.0f} % of {} verdicts were prepared for\n",
                                       100 * ahead.hit_rate(), ahead.lookups);
  const SimulatedFigures& f = played.figures;
  const std::string found =
      run.prefix_tokens == 0
          ? ""
          : fmt::format("{:.0f} % of prompt tokens found in the KV cache\n", 100 * f.prefix_hit_rate);
  const std::string uneven =
      result.target_busy.size() == 1
          ? ""
          : fmt::format(" ({:.0f} to {:.0f})", 100 * f.least_busy_target, 100 * f.most_busy_target);
  const std::string devices =
      played.job.devices == 0 ? ""
                              : fmt::format("{} GPUs; memory: {}\n", run.coordinators * played.job.devices,
                                            played.job.memory.text());
  return fmt::format(
      "{} tokens in {:.2f} simulated seconds: {:.1f} tokens/s (simulated, no model ran)\n"
      "acceptance {:.3f}, {:.2f} tokens per round, {} rounds, {} of them plain\n{}"
      "first token after {:.1f} ms, between bursts {:.2f} ms (medians); targets busy {:.0f} %{}\n"
      "{}"
      "{:.0f} bytes per emitted token on the draft links; {:.0f} simulated seconds a second\n{}{}",
      r.emitted, result.seconds, result.tokens_per_second(), r.acceptance(), r.tokens_per_round(), r.rounds,
      r.g0_rounds, prepared, result.totals.ttft.percentile_ns(0.5) * 1e-6,
      result.totals.bursts.percentile_ns(0.5) * 1e-6, 100 * f.target_busy, uneven, found,
      static_cast<double>(result.bytes) / std::max<double>(1, static_cast<double>(r.emitted)),
      wall > 0 ? result.seconds / wall : 0, devices, sources_text(played.job.sources));
}

nlohmann::json memory_json(const MemoryNeed& need) {
  return {{"weight_bytes", need.weights},         {"kv_bytes", need.kv},
          {"activation_bytes", need.activations}, {"draft_weight_bytes", need.draft_weights},
          {"draft_kv_bytes", need.draft_kv},      {"usable_bytes", need.usable}};
}

nlohmann::json report_of(const SimulatedRun& run, const PlayedRun& played) {
  nlohmann::json report{{"simulated", true},
                        {"acceptance_process", played.acceptance},
                        {"gamma_policy", run.gamma_policy},
                        {"arrivals", run.arrivals},
                        {"seed", run.seed},
                        {"arguments", arguments_of(run)},
                        {"command", command_of(run)},
                        {"fingerprint", fmt::format("{:016x}", played.result.fingerprint)},
                        {"simulated_seconds", played.result.seconds},
                        {"tokens_per_second", played.result.tokens_per_second()},
                        {"sources", sources_json(played.job.sources)}};
  fill_json(played.figures, report["figures"]);
  if (played.job.devices > 0) {
    report["devices"] = run.coordinators * played.job.devices;
    report["memory_of_a_device"] = memory_json(played.job.memory);
  }
  fill_json(played.result.totals, report["metrics"]);
  played.result.cost.fill_json(report["metrics"]["cost_model"]);
  return report;
}

void add_prefix_options(CLI::App& app, int& tokens, int& groups) {
  app.add_option(
         "--prefix-tokens", tokens,
         "So many tokens of a prompt are those of its beginning, which others share; 0: none are, and\n"
         "nothing is kept in the KV cache for others")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--prefix-groups", groups, "With them: beginnings, which prompts have at random")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
}

}  // namespace

void add_run_options(CLI::App& app, RunCommandOptions& options) {
  SimulatedRun& f = options.run;
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
  app.add_option(
      "--costs", f.costs,
      "Instead of all these: the cost model of a --report FILE of a real run, or what `simulate fit` wrote");
  app.add_option(
         "--draft-placement", options.place,
         "own: each drafter has a device of its own; colocated: it is on one of the target's devices, and\n"
         "they work in turns; cpu: on CPUs; heads: a share of the target's layers, run after each commit\n"
         "without a message; head-workers: heads on devices of their own, which are sent rows of the "
         "target's\n"
         "states; none: no speculation")
      ->capture_default_str();
  app.add_option("--draft-head", f.draft_head,
                 "With heads and head-workers: the kind of head, whose size follows from --hardware: " +
                     head_preset_names());
  app.add_option("--head-share", f.head_share,
                 "With heads: what a drafted token costs of a target pass, in memory too; an assumption")
      ->capture_default_str();
  app.add_option("--groups", f.groups,
                 "Target groups of the coordinator, as --data-parallel-size of generate and serve")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--drafters", f.drafters, "Draft workers, which serve all groups")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  app.add_option("--coordinators", f.coordinators,
                 "Each with so many groups and drafters; a request goes to the one with the fewest")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--pipeline", f.pipeline, "What drafters do while the target verifies, as of generate")
      ->check(CLI::IsMember({"lockstep", "ahead", "fanout", "auto"}))
      ->capture_default_str();
  app.add_option("--fanout", f.fanout, "Outcomes prepared for at most, per sequence")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option(
         "--draft-guesses", f.guesses.most,
         "Drafts for the drafter: tokens that a pass of the draft model reads at most because they are\n"
         "expected of it, each for --draft-row-ms; 0: none")
      ->check(CLI::Range(0, 16))
      ->capture_default_str();
  app.add_option("--guess-acceptance", f.guesses.acceptance,
                 "With them: chance that such a token is the one it draws")
      ->check(number_in(0, 1))
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
      ->check(number_in(0, 0.95))
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
  add_prefix_options(app, f.prefix_tokens, f.prefix_groups);
  app.add_option("--max-num-seqs", f.max_num_seqs, "Sequences that a group decodes together")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--seed", f.seed, "The same seed gives the same result, bit for bit")->capture_default_str();
  add_report_options(app, options.files);
}

Status run_simulation(const RunCommandOptions& options) {
  SimulatedRun run = options.run;
  if (run.hardware == "list" || run.draft_hardware == "list") {
    std::fputs(list_hardware().c_str(), stdout);
    return {};
  }
  RETURN_IF_ERROR(check(options.files));
  ASSIGN_OR_RETURN(run.place, parse_draft_place(options.place));
  const auto start = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(const PlayedRun played, play(run));
  const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::fputs(screen(run, played, wall).c_str(), stdout);
  return write(options.files, report_of(run, played), run_page(run, played));
}

void add_plan_options(CLI::App& app, PlanCommandOptions& options) {
  PlanOptions& o = options.plan;
  app.add_option("--devices", o.devices, "GPUs there are")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--gpu", o.gpu, "A preset of `simulate run --hardware list`")->capture_default_str();
  app.add_option("--cpus", o.cpus, "Sockets of CPUs there are, for drafts")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  app.add_option("--cpu", o.cpu, "Their kind, of the same list")->capture_default_str();
  app.add_option("--model", o.model, "Target model, a preset")->capture_default_str();
  app.add_option("--draft-model", o.draft_model, "Draft model, a preset")->capture_default_str();
  app.add_option(
      "--costs", o.costs,
      "Instead of these: the --report FILE of a real run on such devices, or what `simulate fit` wrote");
  app.add_option("--target-devices", o.target_devices, "With --costs: devices that run's target had")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--delay-ms", options.delay_ms,
                 "One way between coordinator and drafters; default 0.02, or what --costs measured")
      ->check(milliseconds());
  app.add_option("--gbit", options.gbit,
                 "Bandwidth of those links, 0: unlimited; default 100, or what --costs measured")
      ->check(gigabits());
  app.add_option("--acceptance", o.acceptance, "As of `simulate run`")->capture_default_str();
  app.add_option(
      "--draft-head", o.draft_head,
      "Weighs heads of this kind beside the target and at workers of their own: " + head_preset_names());
  app.add_option("--head-acceptance", o.head_acceptance,
                 "Of heads; default: what papers say of --draft-head, else that of the draft model");
  app.add_option("--head-share", o.head_share,
                 "What a token drafted by heads costs of a target pass, in memory too; an assumption")
      ->capture_default_str();
  app.add_option(
      "--draft-placements", o.places,
      "Where drafts may be, separated by spaces: none, own, colocated, cpu, heads, head-workers; default:\n"
      "all, head-workers with --draft-head");
  app.add_option("--objective", o.objective, "What is best: throughput or latency (time between tokens)")
      ->capture_default_str();
  app.add_option(
      "--slo", o.service_level,
      "Limits that come first: ttft=500ms,itl=20ms,pause=60ms (95th percentiles; itl: between tokens,\n"
      "zeros inside a burst included, pause: between bursts) and token=10ms (mean time between tokens)");
  app.add_option("--arrivals", o.arrivals, "As of `simulate run`")->capture_default_str();
  app.add_option("--requests", o.requests, "How many")->check(CLI::Range(1, 10000000))->capture_default_str();
  app.add_option("--prompt-tokens", o.prompt_tokens, "Of each request")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--output-tokens", o.output_tokens, "Of each request")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  add_prefix_options(app, o.prefix_tokens, o.prefix_groups);
  app.add_option("--max-num-seqs", o.max_num_seqs, "Texts that a group decodes together, at most")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--seed", o.seed, "The same seed gives the same result, bit for bit")->capture_default_str();
  app.add_option("--threads", o.threads, "0: one per core")->capture_default_str();
  app.add_flag("-q,--quiet", options.quiet, "No progress on standard error");
  add_report_options(app, options.files);
}

Status run_plan(PlanCommandOptions options) {
  RETURN_IF_ERROR(check(options.files));
  PlanOptions& plan_options = options.plan;
  const bool measured = !plan_options.costs.empty();
  plan_options.delay_ms = options.delay_ms >= 0 ? options.delay_ms : measured ? 0 : plan_options.delay_ms;
  plan_options.gbit = options.gbit >= 0 ? options.gbit : measured ? 0 : plan_options.gbit;
  plan_options.links_given = options.delay_ms >= 0 || options.gbit >= 0;
  plan_options.progress = !options.quiet;
  ASSIGN_OR_RETURN(const Plan plan, make_plan(plan_options));
  std::fputs(plan_text(plan_options, plan).c_str(), stdout);
  nlohmann::json report;
  fill_json(plan_options, plan, report);
  return write(options.files, report, plan_page(plan_options, plan));
}

}  // namespace outrider
