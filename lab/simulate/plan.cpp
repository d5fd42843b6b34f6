#include "lab/simulate/plan.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "base/threads.h"
#include "cluster/simulation/hardware.h"
#include "lab/simulate/measured_costs.h"
#include "start/settings.h"

namespace outrider {
namespace {

constexpr size_t kLayoutsRefined = 3;
constexpr double kTie = 0.01;  // tokens/s so near decide nothing

struct Candidate {
  PlanLayout layout;
  std::string pipeline, policy;
  GroupOptions group;
};

// What a group of this shape costs, or why there is none.
Result<GroupOptions> group_of(const PlanOptions& options, int tp) {
  GroupOptions group;
  int64_t places = options.max_num_seqs;
  if (!options.costs.empty()) {
    ASSIGN_OR_RETURN(group, costs_from_report(options.costs));
  } else {
    ASSIGN_OR_RETURN(const auto target,
                     hardware_cost(fmt::format("{}:{}:tp{}", options.gpu, options.model, tp)));
    ASSIGN_OR_RETURN(const auto draft, hardware_cost(fmt::format("{}:{}", options.gpu, options.draft_model)));
    group.target = target.pass;
    group.draft = draft.pass;
    const int64_t text = options.prompt_tokens + options.output_tokens;
    places = std::min(places, static_cast<int64_t>(target.kv_tokens) / text);
    if (places == 0)
      return invalid_argument(fmt::format("tp{}: its KV cache has room for {:.0f} tokens, a text has {}", tp,
                                          target.kv_tokens, text));
  }
  if (options.draft_link.delay_s > 0 || options.costs.empty()) group.draft_link = options.draft_link;
  group.max_num_seqs = static_cast<int32_t>(places);
  return group;
}

// Every number of drafters from none to as many as there are places, with as many groups as the devices
// allow.
void add_layouts(const PlanOptions& options, int tp, const GroupOptions& group,
                 std::vector<Candidate>& candidates) {
  for (const int drafters : {0, 1, 2, 4}) {
    const int groups = options.devices / (tp + drafters);
    if (groups == 0 || drafters > group.max_num_seqs) continue;
    Candidate candidate{.layout = {.groups = groups, .tp = tp, .drafters = drafters},
                        .pipeline = "lockstep",
                        .policy = drafters == 0 ? "fixed:gamma=0" : "ewma",
                        .group = group};
    candidate.group.drafters = drafters;
    candidates.push_back(std::move(candidate));
  }
}

Result<std::vector<Candidate>> layouts(const PlanOptions& options, std::vector<std::string>& impossible) {
  std::vector<Candidate> candidates;
  const std::vector<int> sizes =
      options.costs.empty() ? std::vector<int>{1, 2, 4, 8} : std::vector<int>{options.target_devices};
  Status last;
  for (const int tp : sizes) {
    if (tp > options.devices) continue;
    const auto group = group_of(options, tp);
    if (group.ok()) {
      add_layouts(options, tp, *group, candidates);
    } else {
      last = group.status();
      impossible.push_back(last.message());
    }
  }
  if (!candidates.empty()) return candidates;
  return last.ok()
             ? invalid_argument(fmt::format("{} devices are fewer than one target group needs; ask for {}",
                                            options.devices, sizes.front()))
             : last;
}

Result<PlanRow> play(const PlanOptions& options, const Candidate& candidate, const Arrivals& requests) {
  const auto acceptance = AcceptanceProcess::parse(options.acceptance, options.seed);
  if (!acceptance.ok()) return acceptance.status().in("--acceptance");
  SimulationOptions world{
      .group = candidate.group, .groups = candidate.layout.groups, .gamma_policy = candidate.policy};
  ASSIGN_OR_RETURN(world.group.pipeline, parse_pipeline(candidate.pipeline));
  ASSIGN_OR_RETURN(const auto result, ClusterSimulator(world, *acceptance).run(requests));
  const RoundSums& rounds = result.totals.rounds;
  const int drafters = candidate.layout.groups * candidate.layout.drafters;
  return PlanRow{.layout = candidate.layout,
                 .pipeline = candidate.pipeline,
                 .policy = candidate.policy,
                 .places = candidate.group.max_num_seqs,
                 .tokens_per_second = result.tokens_per_second(),
                 .ttft_ms = result.totals.ttft.percentile_ns(0.5) * 1e-6,
                 .ms_per_token = result.totals.gaps.mean_ns() * 1e-6,
                 .target_busy = result.target_busy / result.seconds / candidate.layout.groups,
                 .draft_busy = drafters > 0 ? result.draft_busy / result.seconds / drafters : 0,
                 .tokens_per_pass = rounds.tokens_per_pass(),
                 .mean_gamma = static_cast<double>(rounds.drafted) /
                               static_cast<double>(std::max<int64_t>(1, rounds.rounds - rounds.first_rounds)),
                 .hit_rate = result.totals.preparation.hit_rate(),
                 .pass_ms = candidate.group.target.seconds(1, 0) * 1e3,
                 .reason = {}};
}

Result<std::vector<PlanRow>> play_all(const PlanOptions& options, const std::vector<Candidate>& candidates) {
  ASSIGN_OR_RETURN(const auto requests,
                   make_arrivals(options.arrivals, options.requests, options.prompt_tokens,
                                 options.output_tokens, options.seed));
  std::vector<Result<PlanRow>> rows(candidates.size(), Result<PlanRow>(PlanRow{}));
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < candidates.size(); i = next++)
      rows[i] = play(options, candidates[i], requests);
  };
  const unsigned wanted = options.threads > 0 ? static_cast<unsigned>(options.threads)
                                              : std::max(1u, std::thread::hardware_concurrency());
  run_on_threads(static_cast<int>(wanted), [&](int) { work(); });
  std::vector<PlanRow> played;
  for (auto& row : rows) {
    RETURN_IF_ERROR(row.status());
    played.push_back(std::move(*row));
  }
  return played;
}

// Tokens per second, in steps of the tie; then the time between tokens; then fewer devices.
bool better(const PlanRow& a, const PlanRow& b) {
  const auto step = [](const PlanRow& row) {
    return std::lround(std::log(std::max(row.tokens_per_second, 1e-9)) / kTie);
  };
  if (step(a) != step(b)) return step(a) > step(b);
  if (a.ms_per_token != b.ms_per_token) return a.ms_per_token < b.ms_per_token;
  return a.layout.devices() < b.layout.devices();
}

// Pipelines and policies on the best layouts with drafters; what was played already is left out.
std::vector<Candidate> refined(std::vector<PlanRow> rows, const std::vector<Candidate>& played) {
  std::sort(rows.begin(), rows.end(), better);
  std::erase_if(rows, [](const PlanRow& row) { return row.layout.drafters == 0; });
  rows.resize(std::min(rows.size(), kLayoutsRefined));
  std::vector<Candidate> more;
  for (const PlanRow& row : rows) {
    const auto& first = *std::find_if(played.begin(), played.end(),
                                      [&](const Candidate& c) { return c.layout == row.layout; });
    for (const char* pipeline : {"lockstep", "ahead", "fanout", "auto"})
      for (const char* policy : {"ewma", "goodput", "fixed:gamma=2", "fixed:gamma=4", "fixed:gamma=7"}) {
        if (pipeline == first.pipeline && policy == first.policy) continue;
        more.push_back({.layout = row.layout, .pipeline = pipeline, .policy = policy, .group = first.group});
      }
  }
  return more;
}

}  // namespace

Result<Plan> make_plan(const PlanOptions& options) {
  Plan plan;
  ASSIGN_OR_RETURN(const auto candidates, layouts(options, plan.impossible));
  ASSIGN_OR_RETURN(plan.rows, play_all(options, candidates));
  ASSIGN_OR_RETURN(const auto more, play_all(options, refined(plan.rows, candidates)));
  plan.rows.insert(plan.rows.end(), more.begin(), more.end());
  std::sort(plan.rows.begin(), plan.rows.end(), better);
  for (PlanRow& row : plan.rows) row.reason = explain(row, plan.rows.front());
  return plan;
}

}  // namespace outrider
