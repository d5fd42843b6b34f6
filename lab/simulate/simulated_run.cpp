#include "lab/simulate/simulated_run.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/shell_text.h"
#include "coordinator/rounds/pool_limits.h"
#include "lab/simulate/head_presets.h"
#include "lab/simulate/measured_costs.h"
#include "start/settings.h"

namespace outrider {
namespace {

constexpr std::array<std::string_view, 6> kPlaceNames = {"none", "own",   "colocated",
                                                         "cpu",  "heads", "head-workers"};
constexpr double kMinHeadShare = 1e-4;
constexpr double kBytesPerHeadWeight = 2;  // bf16

using Kind = CostSource::Kind;

double gigabytes(double bytes) { return bytes * 1e-9; }

bool has_head(const SimulatedRun& run) {
  return run.place == DraftPlace::kHeads || run.place == DraftPlace::kHeadWorkers;
}

// Costs as times, from flags or from a measured file; what runs on which devices is not known then.
Result<DescribedJob> from_times(const SimulatedRun& run) {
  DescribedJob job;
  if (!run.costs.empty()) {
    ASSIGN_OR_RETURN(MeasuredCosts measured, measured_costs(run.costs));
    job.options = measured.job;
    job.sources = std::move(measured.sources);
    return job;
  }
  job.options.target = {.base = (run.target_ms - run.target_row_ms) * 1e-3,
                        .per_row = run.target_row_ms * 1e-3};
  job.options.draft = {.base = (run.draft_ms - run.draft_row_ms) * 1e-3, .per_row = run.draft_row_ms * 1e-3};
  const SimulatedRun usual;
  const auto source = [&](const char* figure, const char* flag, double ms, double row_ms, bool given) {
    job.sources.push_back({figure, fmt::format("{:g} ms, {:g} ms of it for each row", ms, row_ms),
                           given ? Kind::kFlag : Kind::kAssumption,
                           given ? fmt::format("{}-ms", flag) : fmt::format("default of {}-ms", flag)});
  };
  if (run.hardware.empty())
    source("target pass", "--target", run.target_ms, run.target_row_ms,
           run.target_ms != usual.target_ms || run.target_row_ms != usual.target_row_ms);
  if (run.draft_hardware.empty() && run.place != DraftPlace::kNone && !has_head(run))
    source("draft pass", "--draft", run.draft_ms, run.draft_row_ms,
           run.draft_ms != usual.draft_ms || run.draft_row_ms != usual.draft_row_ms);
  return job;
}

Status check(const SimulatedRun& run) {
  const bool has_trace = run.arrivals.starts_with("azure:");  // which knows how long its prompts are
  if (run.prefix_tokens >= run.prompt_tokens && run.prefix_tokens > 0 && !has_trace)
    return invalid_argument(fmt::format("--prefix-tokens {} must be fewer than --prompt-tokens {}",
                                        run.prefix_tokens, run.prompt_tokens));
  if (run.drafters > kMostDraftWorkers)
    return invalid_argument(
        fmt::format("--drafters {}: a coordinator takes {} draft workers at most; "
                    "--coordinators has several of them, each with its own",
                    run.drafters, kMostDraftWorkers));
  if (run.place == DraftPlace::kHeads && !(run.head_share >= kMinHeadShare && run.head_share <= 1))
    return invalid_argument(
        fmt::format("--head-share {} must be {} to 1 of the target", run.head_share, kMinHeadShare));
  if (has_head(run) && !run.draft_hardware.empty())
    return invalid_argument(
        fmt::format("--draft-placement {} takes no --draft-hardware: heads run on devices like the target's",
                    name_of(run.place)));
  if (has_head(run) && run.pipeline != "lockstep")
    return invalid_argument(
        fmt::format("--draft-placement {} takes --pipeline lockstep, not {}: heads draft after each commit",
                    name_of(run.place), run.pipeline));
  if (run.guesses.most > 0 && (has_head(run) || run.place == DraftPlace::kNone))
    return invalid_argument(
        fmt::format("--draft-guesses {} and --draft-placement {}: guesses are of a draft model's tokens",
                    run.guesses.most, name_of(run.place)));
  if (run.place == DraftPlace::kHeadWorkers && run.draft_head.empty())
    return invalid_argument("--draft-placement head-workers needs --draft-head: " + head_preset_names());
  if (run.draft_head.empty()) return {};
  RETURN_IF_ERROR(head_preset(run.draft_head).status());
  if (!has_head(run))
    return invalid_argument(
        fmt::format("--draft-head {} needs --draft-placement heads or head-workers", run.draft_head));
  if (run.hardware.empty())
    return invalid_argument(fmt::format(
        "--draft-head {} needs --hardware: a head's size follows from the target's", run.draft_head));
  return {};
}

// One token by the heads: their share of everything that a pass of the target takes, at least one layer.
ForwardCost share_cost(const ForwardCost& target, double share, int layers) {
  const double kernels = layers > 0 ? std::max(share, 1.0 / layers) : share;
  return {.base = share * target.base,
          .per_row = share * target.per_row,
          .per_context = share * target.per_context,
          .compute_per_row = share * target.compute_per_row,
          .overhead = kernels * target.overhead,
          .all_experts = share * target.all_experts,
          .share_of_row = target.share_of_row};
}

void add_heads(const SimulatedRun& run, int layers, DescribedJob& job) {
  job.options.draft = share_cost(job.options.target, run.head_share, layers);
  job.options.draft_link = {};
  job.memory.draft_weights = run.head_share * job.memory.weights;
  job.memory.draft_kv = run.head_share * job.memory.kv;
  job.sources.push_back({"heads",
                         fmt::format("a token costs {:.3g} of a target pass, and no message", run.head_share),
                         Kind::kAssumption, "--head-share"});
}

// `tokens`: the room of a group. Each text of any group is drafted for by one drafter.
double tokens_of_drafter(const SimulatedRun& run, double tokens) {
  return tokens * run.groups / std::max(1, run.drafters);
}

// One of a known kind, on one device: the leader's, or a drafter's own.
Status add_known_head(const SimulatedRun& run, const HardwareCost& target, double tokens, DescribedJob& job) {
  ASSIGN_OR_RETURN(const HeadPreset preset, head_preset(run.draft_head));
  const HeadCost head = head_cost(preset, target);
  const double weights = kBytesPerHeadWeight * head.parameters;
  job.options.draft = head.pass;
  if (run.place == DraftPlace::kHeads) {
    job.options.draft_link = {};
    job.memory.draft_weights = weights;
    job.memory.draft_kv = tokens * head.kv_token_bytes;
  } else {
    job.options.hidden_state_row_bytes = head.row_bytes;
    job.draft_memory = {.weights = weights,
                        .kv = tokens_of_drafter(run, tokens) * head.kv_token_bytes,
                        .usable = target.usable_bytes};
    job.devices += run.drafters;
  }
  job.sources.push_back(
      {run.draft_head,
       fmt::format("{:.3g} M parameters read for a token, on one device; {:.3g} KiB of states "
                   "travel for a committed token where it has a device of its own",
                   head.active * 1e-6, head.row_bytes / 1024),
       Kind::kAssumption, "the shape that is published for such targets"});
  return {};
}

// Memory of every device of a target group: room for each text at its longest.
MemoryNeed target_need(const HardwareCost& hardware, double tokens, double texts) {
  return {.weights = hardware.weight_bytes,
          .kv = tokens * hardware.kv_token_bytes + texts * hardware.text_bytes,
          .activations = hardware.activation_bytes,
          .usable = hardware.usable_bytes};
}

Status place_draft(const SimulatedRun& run, const HardwareCost& draft, double tokens, DescribedJob& job) {
  const bool on_cpu = run.place == DraftPlace::kCpu;
  if (draft.is_cpu != on_cpu)
    return invalid_argument(fmt::format("--draft-hardware {}: that is a {}; use --draft-placement {}",
                                        run.draft_hardware, draft.is_cpu ? "CPU" : "GPU",
                                        draft.is_cpu ? "cpu" : "own or colocated"));
  job.options.draft = draft.pass;
  job.sources.insert(job.sources.end(), draft.sources.begin(), draft.sources.end());
  const double its_tokens = tokens_of_drafter(run, tokens),
               its_texts = tokens_of_drafter(run, static_cast<double>(run.max_num_seqs));
  if (run.place == DraftPlace::kColocated) {
    if (draft.devices > 1)
      return invalid_argument(
          fmt::format("--draft-hardware {}: a draft that shares the target's devices is on one of them",
                      run.draft_hardware));
    job.memory.draft_weights = draft.weight_bytes;
    job.memory.draft_kv = its_tokens * draft.kv_token_bytes + its_texts * draft.text_bytes;
  } else {
    job.draft_memory = target_need(draft, its_tokens, its_texts);
    if (!on_cpu) job.devices += run.drafters * draft.devices;
  }
  return {};
}

Status check_memory(const SimulatedRun& run, int longest_text, const DescribedJob& job) {
  const auto refuse = [&](const std::string& what, const MemoryNeed& need) {
    return invalid_argument(fmt::format("{} does not fit with {} text{} of {} tokens: {}", what,
                                        run.max_num_seqs, run.max_num_seqs == 1 ? "" : "s", longest_text,
                                        need.text()));
  };
  if (!job.memory.fits()) return refuse(run.hardware, job.memory);
  if (!job.draft_memory.fits()) return refuse(run.draft_hardware, job.draft_memory);
  if (run.place == DraftPlace::kColocated && job.devices > 0 && run.drafters > job.devices)
    return invalid_argument(fmt::format(
        "--drafters {}: colocated, each is on another of the groups' {} devices", run.drafters, job.devices));
  return {};
}

void add_links(const SimulatedRun& run, JobOptions& options, std::vector<CostSource>& sources) {
  options.draft_link.delay_s += run.delay_ms * 1e-3;
  if (run.gbit > 0) options.draft_link.bytes_per_second = run.gbit * 1e9 / 8;
  options.draft_link.loss = run.loss;
  options.draft_link.seed = run.seed;
  if (run.place == DraftPlace::kNone) return;
  const bool given = run.delay_ms > 0 || run.gbit > 0;
  if (!given && !run.costs.empty()) return;  // as measured
  const std::string band = run.gbit > 0 ? fmt::format("{:g} Gbit/s", run.gbit) : "unlimited bandwidth";
  sources.push_back({"draft links", fmt::format("{:g} ms one way, {}", run.delay_ms, band),
                     given ? Kind::kFlag : Kind::kAssumption,
                     given ? "--delay-ms, --gbit" : "default of --delay-ms and --gbit"});
}

SimulatedFigures figures_of(const SimulatedRun& run, const JobOptions& job, const SimulationResult& result) {
  const Totals& totals = result.totals;
  const RoundSums& rounds = totals.rounds;
  const double drafters =
      static_cast<double>(run.coordinators) * (job.beside_target ? job.groups : job.drafters);
  const double seconds = std::max(result.seconds, 1e-12);
  const auto& busy = result.target_busy;
  const auto [least, most] = std::minmax_element(busy.begin(), busy.end());
  return {.tokens_per_second = result.tokens_per_second(),
          .ttft_ms = totals.ttft.percentile_ns(0.5) * 1e-6,
          .ttft_p95_ms = totals.ttft.percentile_ns(0.95) * 1e-6,
          .ms_per_token = totals.gaps.mean_ns() * 1e-6,
          .itl_p95_ms = totals.gaps.percentile_ns(0.95) * 1e-6,
          .pause_p95_ms = totals.bursts.percentile_ns(0.95) * 1e-6,
          .request_s = totals.e2e.mean_ns() * 1e-9,
          .target_busy =
              std::accumulate(busy.begin(), busy.end(), 0.0) / seconds / static_cast<double>(busy.size()),
          .draft_busy = drafters > 0 ? result.draft_busy / seconds / drafters : 0,
          .least_busy_target = *least / seconds,
          .most_busy_target = *most / seconds,
          .prefix_hit_rate = static_cast<double>(totals.prefix_hits) /
                             static_cast<double>(std::max<int64_t>(1, totals.prefix_queries)),
          .acceptance = rounds.acceptance(),
          .tokens_per_round = rounds.tokens_per_round(),
          .mean_gamma = static_cast<double>(rounds.drafted) /
                        static_cast<double>(std::max<int64_t>(1, rounds.rounds - rounds.first_rounds)),
          .hit_rate = totals.preparation.hit_rate(),
          .pass_ms = job.target.seconds(1, 0) * 1e3};
}

}  // namespace

std::string_view name_of(DraftPlace place) { return kPlaceNames[static_cast<size_t>(place)]; }

std::vector<std::string> draft_place_names() { return {kPlaceNames.begin(), kPlaceNames.end()}; }

Result<DraftPlace> parse_draft_place(std::string_view name) {
  const auto at = std::find(kPlaceNames.begin(), kPlaceNames.end(), name);
  if (at == kPlaceNames.end())
    return invalid_argument(
        fmt::format("--draft-placement '{}': choose none, own, colocated, cpu, heads or head-workers", name));
  return static_cast<DraftPlace>(at - kPlaceNames.begin());
}

std::vector<std::string> arguments_of(const SimulatedRun& run) {
  const SimulatedRun usual;
  std::vector<std::string> out;
  const auto add = [&](const char* flag, const auto& value, const auto& default_value) {
    if (value == default_value) return;
    out.emplace_back(flag);
    out.push_back(fmt::format("{}", value));
  };
  add("--hardware", run.hardware, usual.hardware);
  add("--draft-hardware", run.draft_hardware, usual.draft_hardware);
  add("--costs", run.costs, usual.costs);
  add("--target-ms", run.target_ms, usual.target_ms);
  add("--target-row-ms", run.target_row_ms, usual.target_row_ms);
  add("--draft-ms", run.draft_ms, usual.draft_ms);
  add("--draft-row-ms", run.draft_row_ms, usual.draft_row_ms);
  add("--draft-placement", name_of(run.place), name_of(usual.place));
  add("--draft-head", run.draft_head, usual.draft_head);
  add("--head-share", run.head_share, usual.head_share);
  add("--groups", run.groups, usual.groups);
  add("--drafters", run.drafters, usual.drafters);
  add("--coordinators", run.coordinators, usual.coordinators);
  add("--pipeline", run.pipeline, usual.pipeline);
  add("--fanout", run.fanout, usual.fanout);
  add("--draft-guesses", run.guesses.most, usual.guesses.most);
  add("--guess-acceptance", run.guesses.acceptance, usual.guesses.acceptance);
  add("--delay-ms", run.delay_ms, usual.delay_ms);
  add("--gbit", run.gbit, usual.gbit);
  add("--loss", run.loss, usual.loss);
  add("--acceptance", run.acceptance, usual.acceptance);
  add("--gamma-policy", run.gamma_policy, usual.gamma_policy);
  add("--arrivals", run.arrivals, usual.arrivals);
  add("--requests", run.requests, usual.requests);
  add("--prompt-tokens", run.prompt_tokens, usual.prompt_tokens);
  add("--output-tokens", run.output_tokens, usual.output_tokens);
  add("--prefix-tokens", run.prefix_tokens, usual.prefix_tokens);
  add("--prefix-groups", run.prefix_groups, usual.prefix_groups);
  add("--max-num-seqs", run.max_num_seqs, usual.max_num_seqs);
  add("--seed", run.seed, usual.seed);
  return out;
}

std::string command_of(const SimulatedRun& run) {
  std::string out = "outrider simulate run";
  for (const std::string& argument : arguments_of(run)) out.append(" ").append(shell_word(argument));
  return out;
}

std::string MemoryNeed::text() const {
  std::string out = fmt::format("{:.1f} GB of weights, {:.1f} GB of KV cache, {:.1f} GB of activations",
                                gigabytes(weights), gigabytes(kv), gigabytes(activations));
  if (draft_weights + draft_kv > 0)
    out += fmt::format(", {:.1f} GB of the draft's weights, {:.1f} GB of its KV cache",
                       gigabytes(draft_weights), gigabytes(draft_kv));
  return out +
         fmt::format("; together {:.1f} of {:.1f} GB of a device", gigabytes(total()), gigabytes(usable));
}

Result<DescribedJob> describe_job(const SimulatedRun& run, int longest_text) {
  RETURN_IF_ERROR(check(run));
  ASSIGN_OR_RETURN(DescribedJob job, from_times(run));
  const double tokens = static_cast<double>(run.max_num_seqs) * longest_text;
  HardwareCost target;
  if (!run.hardware.empty()) {
    ASSIGN_OR_RETURN(target, hardware_cost(run.hardware));
    job.options.target = target.pass;
    job.memory = target_need(target, tokens, static_cast<double>(run.max_num_seqs));
    job.devices = target.is_cpu ? 0 : run.groups * target.devices;
    job.sources.insert(job.sources.end(), target.sources.begin(), target.sources.end());
  }
  const bool drafts = run.place != DraftPlace::kNone;
  job.options.groups = run.groups;
  job.options.beside_target = run.place == DraftPlace::kHeads;
  job.options.drafters = drafts && !job.options.beside_target ? run.drafters : 0;
  job.options.in_turns = run.place == DraftPlace::kColocated;
  if (!run.draft_head.empty()) RETURN_IF_ERROR(add_known_head(run, target, tokens, job));
  if (run.place == DraftPlace::kHeads) {
    if (run.draft_head.empty()) add_heads(run, target.layers, job);
  } else {
    if (drafts && !run.draft_hardware.empty()) {
      ASSIGN_OR_RETURN(const HardwareCost draft, hardware_cost(run.draft_hardware));
      RETURN_IF_ERROR(place_draft(run, draft, tokens, job));
    }
    add_links(run, job.options, job.sources);
  }
  if (job.options.target.seconds(1, 0) <= 0 || (drafts && job.options.draft.seconds(1, 0) <= 0))
    return invalid_argument("simulate: passes must take time: --target-ms and --draft-ms above 0");
  RETURN_IF_ERROR(check_memory(run, longest_text, job));
  job.options.max_num_seqs = run.max_num_seqs;
  if (run.prefix_tokens > 0) job.options.kv_blocks = run.max_num_seqs * kv_blocks_for(longest_text);
  ASSIGN_OR_RETURN(job.options.pipeline, parse_pipeline(run.pipeline));
  job.options.fanout = run.fanout;
  job.options.guesses = run.guesses;
  return job;
}

void fill_json(const SimulatedFigures& f, nlohmann::json& out) {
  out.update({{"tokens_per_second", f.tokens_per_second},
              {"ttft_ms_median", f.ttft_ms},
              {"ttft_ms_p95", f.ttft_p95_ms},
              {"ms_per_token_mean", f.ms_per_token},
              {"itl_ms_p95", f.itl_p95_ms},
              {"pause_ms_p95", f.pause_p95_ms},
              {"request_seconds_mean", f.request_s},
              {"target_busy", f.target_busy},
              {"draft_busy", f.draft_busy},
              {"target_busy_least", f.least_busy_target},
              {"target_busy_most", f.most_busy_target},
              {"prefix_hit_rate", f.prefix_hit_rate},
              {"acceptance_rate", f.acceptance},
              {"tokens_per_round", f.tokens_per_round},
              {"mean_gamma", f.mean_gamma},
              {"outcome_hit_rate", f.hit_rate},
              {"plain_pass_ms", f.pass_ms}});
}

Result<PlayedRun> play(const SimulatedRun& run) {
  const auto acceptance = AcceptanceProcess::parse(run.acceptance, run.seed);
  if (!acceptance.ok()) return acceptance.status().in("--acceptance");
  ASSIGN_OR_RETURN(const Arrivals arrivals,
                   make_arrivals(run.arrivals, run.requests, run.prompt_tokens, run.output_tokens, run.seed));
  int longest = 1;
  for (const SimulatedRequest& request : arrivals.requests)
    longest = std::max(longest, request.prompt_tokens + request.output_tokens);
  ASSIGN_OR_RETURN(DescribedJob job, describe_job(run, longest));
  const bool drafts = job.options.drafters > 0 || job.options.beside_target;
  const SimulationOptions world{
      .job = job.options,
      .jobs = run.coordinators,
      .gamma_policy = drafts ? run.gamma_policy : "fixed:gamma=0",
      .prefixes = {.tokens = run.prefix_tokens, .kinds = run.prefix_groups, .seed = run.seed}};
  ASSIGN_OR_RETURN(SimulationResult result, ClusterSimulator(world, *acceptance).run(arrivals));
  const SimulatedFigures figures = figures_of(run, job.options, result);
  job.sources.push_back({"acceptance", acceptance->describe(), Kind::kAssumption, "--acceptance"});
  return PlayedRun{std::move(job), std::move(result), figures, acceptance->describe()};
}

nlohmann::json sources_json(const std::vector<CostSource>& sources) {
  nlohmann::json out = nlohmann::json::array();
  for (const CostSource& source : sources)
    out.push_back({{"figure", source.figure},
                   {"value", source.value},
                   {"source", name_of(source.kind)},
                   {"from", source.from}});
  return out;
}

std::string sources_text(const std::vector<CostSource>& sources) {
  std::string out;
  for (const Kind kind : {Kind::kFitted, Kind::kDataSheet, Kind::kFlag, Kind::kAssumption}) {
    std::string line;
    std::vector<std::string> said;
    for (const CostSource& source : sources) {
      if (source.kind != kind) continue;
      const std::string text = fmt::format("{}: {} ({})", source.figure, source.value, source.from);
      if (std::find(said.begin(), said.end(), text) != said.end()) continue;
      said.push_back(text);
      line += (line.empty() ? "" : "; ") + text;
    }
    constexpr std::array<std::string_view, 4> kTitles = {"Fitted", "From data sheets", "As flags say",
                                                         "Assumed"};
    if (!line.empty()) out += fmt::format("{}: {}.\n", kTitles[static_cast<size_t>(kind)], line);
  }
  return out;
}

}  // namespace outrider
