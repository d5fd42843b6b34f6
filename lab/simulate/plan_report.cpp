// Output of a plan: words, a table, a page and JSON.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/version.h"
#include "lab/simulate/head_presets.h"
#include "lab/simulate/plan.h"

namespace outrider {
namespace {

constexpr size_t kShown = 12;

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

bool drafts(const PlanRow& row) { return row.run.place != DraftPlace::kNone; }
int texts(const PlanRow& row) { return row.run.max_num_seqs * row.run.groups; }

// The price of drafting in this row.
std::string price_of_drafting(const PlanRow& row) {
  switch (row.run.place) {
    case DraftPlace::kOwn:
      return fmt::format("drafting on {} device{} instead of verifying", row.run.drafters,
                         row.run.drafters == 1 ? "" : "s");
    case DraftPlace::kHeadWorkers:
      return fmt::format("{} device{} for heads that work {} of the time, and wait for rows of states",
                         row.run.drafters, row.run.drafters == 1 ? "" : "s", percent(row.figures.draft_busy));
    case DraftPlace::kCpu:
      return fmt::format("drafts from CPUs that work {} of the time", percent(row.figures.draft_busy));
    default:
      return fmt::format("{} of the devices' time for drafting", percent(row.figures.draft_busy));
  }
}

std::string why_size(const PlanRow& row, const PlanRow& best) {
  if (row.figures.pass_ms > 1.05 * best.figures.pass_ms)
    return fmt::format("a pass on {} device{} takes {:.1f} ms instead of {:.1f}", row.tp,
                       row.tp == 1 ? "" : "s", row.figures.pass_ms, best.figures.pass_ms);
  if (row.run.groups < best.run.groups)
    return fmt::format("only {} group{} verif{}, and drafters work {} of the time", row.run.groups,
                       row.run.groups == 1 ? "" : "s", row.run.groups == 1 ? "ies" : "y",
                       percent(row.figures.draft_busy));
  if (texts(row) < texts(best))
    return fmt::format("room for {} texts at once instead of {}", texts(row), texts(best));
  if (row.run.groups > best.run.groups)
    return fmt::format("{} groups share the load, so passes are emptier ({} busy) and each gains less",
                       row.run.groups, percent(row.figures.target_busy));
  if (row.run.drafters < best.run.drafters)
    return fmt::format("its drafters work {} of the time and are waited for",
                       percent(row.figures.draft_busy));
  return fmt::format("its {} drafters work only {} of the time", row.run.drafters,
                     percent(row.figures.draft_busy));
}

std::string why_pipeline(const PlanRow& row, const PlanRow& best) {
  if (row.run.pipeline == "lockstep")
    return fmt::format("the target waits for every draft (busy {}, there {})",
                       percent(row.figures.target_busy), percent(best.figures.target_busy));
  if (best.run.pipeline == "lockstep")
    return fmt::format(
        "preparing keeps drafters busy ({}) and answers later; {} of verdicts were prepared for",
        percent(row.figures.draft_busy), percent(row.figures.hit_rate));
  return fmt::format("{} of verdicts were prepared for, there {}", percent(row.figures.hit_rate),
                     percent(best.figures.hit_rate));
}

}  // namespace

std::string layout_text(const PlanRow& row) {
  const std::string target = fmt::format("{} x tp{}", row.run.groups, row.tp);
  switch (row.run.place) {
    case DraftPlace::kNone:
      return target + ", no draft";
    case DraftPlace::kOwn:
      return fmt::format("{} + {} drafter{}", target, row.run.drafters, row.run.drafters == 1 ? "" : "s");
    case DraftPlace::kColocated:
      return target + ", draft in turns";
    case DraftPlace::kCpu:
      return target + ", draft on CPU";
    case DraftPlace::kHeads:
      return target + (row.run.draft_head.empty() ? ", heads" : ", " + row.run.draft_head);
    case DraftPlace::kHeadWorkers:
      return fmt::format("{} + {} {} worker{}", target, row.run.drafters, row.run.draft_head,
                         row.run.drafters == 1 ? "" : "s");
  }
  return target;
}

std::string rate_text(const PlanRow& row) {
  return row.low < row.high ? fmt::format("{:.0f} tokens/s ({:.0f} to {:.0f} over {} seeds)",
                                          row.figures.tokens_per_second, row.low, row.high, kPlanSeeds)
                            : fmt::format("{:.0f} tokens/s", row.figures.tokens_per_second);
}

// The best few, the front, and the best of every layout that is not among them.
std::vector<const PlanRow*> shown_rows(const Plan& plan) {
  std::vector<const PlanRow*> shown;
  std::vector<std::string> layouts;
  for (const PlanRow& row : plan.rows) {
    const bool is_new = std::find(layouts.begin(), layouts.end(), layout_text(row)) == layouts.end();
    if (is_new) layouts.push_back(layout_text(row));
    if (shown.size() < kShown || is_new || row.on_front) shown.push_back(&row);
  }
  return shown;
}

std::string objective_text(const PlanOptions& options) {
  const std::string ranked = options.objective == "latency" ? "the mean time between tokens, then tokens/s"
                                                            : "tokens/s, then the mean time between tokens";
  return options.service_level.empty() ? ranked
                                       : fmt::format("keeping {}, then {}", options.service_level, ranked);
}

namespace {

std::string take(const PlanRow& row) {
  return fmt::format(
      "take {}, --pipeline {}, --gamma-policy {}, --max-num-seqs {}: {}, {:.1f} ms a token, first token "
      "after "
      "{:.2f} s.",
      layout_text(row), row.run.pipeline, row.run.gamma_policy, row.run.max_num_seqs, rate_text(row),
      row.figures.ms_per_token, row.figures.ttft_ms * 1e-3);
}

}  // namespace

// A draft beside the target takes its time; one at a worker takes devices, and two ways over the link.
std::string place_of_head(const PlanOptions& options, const Plan& plan) {
  const auto best_at = [&](DraftPlace place) {
    return std::find_if(plan.rows.begin(), plan.rows.end(),
                        [&](const PlanRow& row) { return row.run.place == place; });
  };
  const auto beside = best_at(DraftPlace::kHeads), apart = best_at(DraftPlace::kHeadWorkers);
  if (options.draft_head.empty() || beside == plan.rows.end() || apart == plan.rows.end()) return {};
  const bool is_beside = beside < apart;
  const HeadPreset head = head_preset(options.draft_head).value();
  return fmt::format(
      "\n{}: {} of its two places, --head-place {}. Beside the target {}, {:.1f} ms a token: {} of the "
      "devices' time goes "
      "into drafts, and nothing travels. At draft workers {}, {:.1f} ms a token: {}. Accepted as {}{}.",
      options.draft_head, is_beside ? "beside the target is the better" : "at draft workers is the better",
      is_beside ? "target" : "worker", rate_text(*beside), beside->figures.ms_per_token,
      percent(beside->figures.draft_busy), rate_text(*apart), apart->figures.ms_per_token,
      price_of_drafting(*apart), beside->run.acceptance,
      options.head_acceptance.empty() ? fmt::format(" ({})", head.source) : "");
}

// Heads are a cost model and no measurement, so what is best without them is said too.
std::string advice(const PlanOptions& options, const Plan& plan) {
  const PlanRow& best = plan.rows.front();
  std::string out = take(best);
  if (best.keeps_level)
    out.front() = 'T';
  else
    out = fmt::format("Nothing keeps {}; the nearest to it: {}", options.service_level, out);
  out += place_of_head(options, plan);
  if (best.run.place != DraftPlace::kHeads || !options.draft_head.empty()) return out;
  out += fmt::format(
      "\nThat is with heads, which are assumed to cost {:g} of a pass for each token and to be accepted as "
      "{}.",
      options.head_share, options.head_acceptance.empty() ? "the draft model is" : options.head_acceptance);
  const auto other = std::find_if(plan.rows.begin(), plan.rows.end(),
                                  [](const PlanRow& row) { return row.run.place != DraftPlace::kHeads; });
  return other == plan.rows.end() ? out : fmt::format("{}\nWithout them {}", out, take(*other));
}

std::string load_text(const PlanOptions& o) {
  return fmt::format("{} devices, {} requests ({}) of {} + {} tokens, acceptance {}", o.devices, o.requests,
                     o.arrivals, o.prompt_tokens, o.output_tokens, o.acceptance);
}

std::string explain(const PlanRow& row, const PlanRow& best) {
  if (&row == &best)
    return !drafts(row)
               ? "no draft pays for its devices here"
               : fmt::format("{:.2f} tokens a pass from drafts of {:.1f}; targets busy {}, drafters {}",
                             row.figures.tokens_per_round, row.figures.mean_gamma,
                             percent(row.figures.target_busy), percent(row.figures.draft_busy));
  if (!drafts(row) && !drafts(best) && row.run.hardware != best.run.hardware)
    return fmt::format("plain as well: {} x {:.1f} ms a pass, there {} x {:.1f}", row.run.groups,
                       row.figures.pass_ms, best.run.groups, best.figures.pass_ms);
  if (!drafts(row) && drafts(best))
    return fmt::format("one token a pass; the other needs {:.2f} times fewer passes",
                       best.figures.tokens_per_round);
  if (drafts(row) && !drafts(best))
    return fmt::format("{:.2f} tokens a round do not make up for {}", row.figures.tokens_per_round,
                       price_of_drafting(row));
  if (row.tp == best.tp && row.run.place != best.run.place)
    return fmt::format("{}; there {}", price_of_drafting(row), price_of_drafting(best));
  if (row.run.hardware != best.run.hardware || row.run.groups != best.run.groups ||
      row.run.drafters != best.run.drafters)
    return why_size(row, best);
  if (row.run.max_num_seqs != best.run.max_num_seqs)
    return fmt::format("{} texts at once, there {}", texts(row), texts(best));
  if (row.run.pipeline != best.run.pipeline) return why_pipeline(row, best);
  return fmt::format("drafts of {:.1f} tokens on average, there {:.1f}", row.figures.mean_gamma,
                     best.figures.mean_gamma);
}

std::string plan_text(const PlanOptions& options, const Plan& plan) {
  const PlanRow& best = plan.rows.front();
  std::string out = fmt::format("{}: {} arrangements simulated, no model ran\n\n{}\n{}\n", load_text(options),
                                plan.rows.size(), advice(options, plan), command_of(best.run));
  if (!best.memory.empty()) out += "Memory: " + best.memory + ".\n";
  out += fmt::format("\n{:<26} {:<9} {:<14} {:>5} {:>9} {:>8} {:>9} {:>8} {:>5}  {}\n", "layout", "pipeline",
                     "policy", "texts", "tokens/s", "of best", "ms/token", "first", "GPUs", "why");
  for (const PlanRow* row : shown_rows(plan))
    out += fmt::format("{:<26} {:<9} {:<14} {:>5} {:>9.0f} {:>7.0f}% {:>9.2f} {:>6.2f} s {:>5}  {}\n",
                       layout_text(*row) + (row->on_front ? " *" : ""), row->run.pipeline,
                       row->run.gamma_policy, texts(*row), row->figures.tokens_per_second,
                       100 * row->figures.tokens_per_second / best.figures.tokens_per_second,
                       row->figures.ms_per_token, row->figures.ttft_ms * 1e-3, row->devices, row->reason);
  for (const std::string& why : plan.impossible) out += "not possible: " + why + "\n";
  out += fmt::format(
      "\n*: on the front, nothing has both more tokens/s and less time between tokens. Ranked by {}; what "
      "is\n"
      "within 1 % counts as equal. 'texts': at once, in all groups; 'first': median time to the first "
      "token.\n"
      "{}.\n\n",
      objective_text(options), kHowExact);
  return out + sources_text(plan.sources);
}

void fill_json(const PlanOptions& options, const Plan& plan, nlohmann::json& out) {
  out = {{"simulated", true},
         {"version", kVersion},
         {"devices", options.devices},
         {"gpu", options.gpu},
         {"model", options.model},
         {"draft_model", options.draft_model},
         {"draft_head", options.draft_head},
         {"costs", options.costs},
         {"acceptance", options.acceptance},
         {"arrivals", options.arrivals},
         {"requests", options.requests},
         {"objective", options.objective},
         {"service_level", options.service_level},
         {"seed", options.seed},
         {"seeds_of_intervals", kPlanSeeds},
         {"impossible", plan.impossible},
         {"sources", sources_json(plan.sources)},
         {"ranking", nlohmann::json::array()}};
  for (const PlanRow& row : plan.rows) {
    nlohmann::json entry{{"layout", layout_text(row)},
                         {"groups", row.run.groups},
                         {"tensor_parallel_size", row.tp},
                         {"draft_placement", name_of(row.run.place)},
                         {"drafters", drafts(row) ? row.run.drafters : 0},
                         {"devices", row.devices},
                         {"texts_per_group", row.run.max_num_seqs},
                         {"memory", row.memory},
                         {"pipeline", row.run.pipeline},
                         {"gamma_policy", row.run.gamma_policy},
                         {"arguments", arguments_of(row.run)},
                         {"command", command_of(row.run)},
                         {"on_front", row.on_front},
                         {"keeps_service_level", row.keeps_level},
                         {"reason", row.reason}};
    if (row.low > 0) entry["tokens_per_second_over_seeds"] = {{"low", row.low}, {"high", row.high}};
    fill_json(row.figures, entry);
    out["ranking"].push_back(std::move(entry));
  }
}

}  // namespace outrider
