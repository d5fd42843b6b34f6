#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "lab/bench/bench.h"
#include "start/flags/options.h"
#include "start/tree_option.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxBenchGamma = 32;

// Beside the sources: from there, or from the build directory this program lies in.
std::optional<fs::path> find_demo_pair() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  for (const fs::path& root : {fs::path("."), program.parent_path() / "../.."}) {
    const fs::path pair = root / "launch/demo_pair";
    if (fs::is_regular_file(pair / "target/model.safetensors", error) &&
        fs::is_regular_file(pair / "draft/model.safetensors", error))
      return pair.lexically_normal();
  }
  return std::nullopt;
}

}  // namespace

void add_bench_options(CLI::App& app, BenchOptions& o) {
  o.request.max_tokens = 64;
  o.cluster.models.max_num_seqs = 1;
  add_model_options(app, o.cluster);
  app.add_option("-p,--prompt", o.request.prompt,
                 "Text to continue; default: the beginnings of three stories")
      ->group("What is measured");
  app.add_option(
         "--prompts", o.files.prompts,
         "JSON lines, as of `generate`; files of Spec-Bench, MT-bench, HumanEval and GSM8K as they are, with "
         "speed-ups by category")
      ->group("What is measured");
  app.add_option("-n,--max-tokens", o.request.max_tokens, "Tokens to generate for each prompt")
      ->group("What is measured")
      ->capture_default_str();
  app.add_option("--context", o.context,
                 "Lengthen every prompt to this many tokens, with text of the target; 0: measure it as it is")
      ->group("What is measured")
      ->capture_default_str();
  app.add_option("-t,--temperature", o.request.temperature, "0: greedy")
      ->group("What is measured")
      ->capture_default_str();
  app.add_option("--top-k", o.request.top_k, "As of `generate`")->group("What is measured");
  app.add_option("--top-p", o.request.top_p, "As of `generate`")->group("What is measured");
  app.add_option("--rule", o.request.rule,
                 "auto, greedy, invariant or naive: rules under which the text must equal plain decoding")
      ->group("What is measured")
      ->capture_default_str();
  app.add_option("-s,--seed", o.request.seed, "Seed of the text")->group("What is measured");
  app.add_option("-g,--gammas", o.gammas, "Draft lengths to measure, e.g. 1,2,4")
      ->delimiter(',')
      ->group("What is measured")
      ->capture_default_str();
  add_tree_option(app, o.cluster.speculation.speculative_tree, "What is measured");
  app.add_option("-r,--repetitions", o.repetitions, "Turns of all measurements; medians are reported")
      ->group("What is measured")
      ->capture_default_str();
  app.add_option("--report", o.files.report, "Write everything here, as JSON")->group("Reports");
  app.add_option("--html", o.html_file, "Write a page with figures and tables here")->group("Reports");
  app.add_option("--csv", o.csv_file, "Write the tables here, one figure per line")->group("Reports");
  app.add_flag("-q,--quiet", o.cluster.quiet, "No progress on standard error")->group("Reports");
  app.footer(
      "Examples:\n"
      "  outrider bench                                          # the demo pair\n"
      "  outrider bench --model TARGET --draft-model DRAFT --context 256 --temperature 1 --report r.json\n"
      "What the columns mean:\n"
      "  plain decoding   the same engine without a drafter, one sequence\n"
      "  bandwidth share  bytes of weights and KV read per token, times tokens per second, over the speed at "
      "which\n"
      "                   the cores of the run (--threads) read memory, probed in this run between the "
      "measurements\n"
      "                   (with --device cuda: those bytes per second)\n"
      "  t(M)/t(1)        time of one target pass over M tokens of one text, against one token\n"
      "  predicted        (1 - a^(g+1)) / (1 - a) tokens per round for acceptance a, over the cost of a "
      "round without\n"
      "                   any protocol or scheduling: draft time, t(g+1) and verification\n"
      "  transfer, idle   a round's time between the roles, and the coordinator's own\n"
      "  ewma             lengths as the default policy chooses them, which learns anew in every turn\n"
      "Text is compared with plain decoding before anything is timed; where it differs the run fails.");
}

Status complete_bench_options(BenchOptions& o) {
  ModelSettings& models = o.cluster.models;
  if (models.model.empty() != !models.has_drafter())
    return invalid_argument(models.model.empty()
                                ? "--model is missing: a drafter alone cannot be measured"
                                : "--draft-model is missing: name one, or --drafter suffix; neither it nor "
                                  "--model measures the demo pair");
  if (models.head() || models.exits_early())
    return unsupported(
        fmt::format("--drafter {}: bench times draft workers; measure it with generate "
                    "--compare-plain, or with study",
                    models.drafter));
  if (models.model.empty()) {
    const auto pair = find_demo_pair();
    if (!pair) return not_found("the demo pair is not here; name models with --model DIR --draft-model DIR");
    models.model = *pair / "target";
    models.draft_model = *pair / "draft";
  }
  if (o.gammas.empty()) return invalid_argument("--gammas: name at least one draft length");
  std::sort(o.gammas.begin(), o.gammas.end());
  o.gammas.erase(std::unique(o.gammas.begin(), o.gammas.end()), o.gammas.end());
  if (o.gammas.front() < 1 || o.gammas.back() > kMaxBenchGamma)
    return invalid_argument(fmt::format("--gammas: each must be 1 to {}", kMaxBenchGamma));
  if (o.repetitions < 1 || o.repetitions > 1000)
    return invalid_argument(fmt::format("--repetitions {}: must be 1 to 1000", o.repetitions));
  if (const int needed = 3 * (o.gammas.back() + 1); o.request.max_tokens < needed)
    return invalid_argument(fmt::format("--max-tokens {}: gamma {} needs {} to time whole rounds",
                                        o.request.max_tokens, o.gammas.back(), needed));
  if (o.context < 0) return invalid_argument(fmt::format("--context {}: must not be negative", o.context));
  if (models.data_parallel_size != 1)
    return unsupported(fmt::format("--data-parallel-size {}: the bench measures one target group; drop it",
                                   models.data_parallel_size));
  if (models.prefill_groups != 0)
    return unsupported(fmt::format("--prefill-groups {}: the bench measures one target group; drop it",
                                   models.prefill_groups));
  if (!o.cluster.mpi.layout.empty()) return unsupported("--layout: the bench measures one process; drop it");
  ASSIGN_OR_RETURN(const Rule rule, resolve_rule(o.request.rule, o.request.temperature));
  if (!is_match_rule(rule))
    return invalid_argument(fmt::format(
        "--rule {}: its text may differ from plain decoding, and the bench compares; choose auto, greedy, "
        "invariant or naive",
        o.request.rule));
  o.request.ignore_eos = true;
  return {};
}

}  // namespace outrider
