// What a plan says, in words, a table and JSON.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lab/simulate/plan.h"

namespace outrider {
namespace {

constexpr size_t kShown = 12;

std::string layout_text(const PlanLayout& layout) {
  return fmt::format("{} x (tp{} + {} drafter{})", layout.groups, layout.tp, layout.drafters,
                     layout.drafters == 1 ? "" : "s");
}

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

std::string why_layout(const PlanRow& row, const PlanRow& best) {
  if (row.pass_ms > 1.05 * best.pass_ms)
    return fmt::format("a pass on {} device{} takes {:.1f} ms instead of {:.1f}", row.layout.tp,
                       row.layout.tp == 1 ? "" : "s", row.pass_ms, best.pass_ms);
  if (row.layout.groups < best.layout.groups)
    return fmt::format("only {} groups verify, and drafters work {} of the time", row.layout.groups,
                       percent(row.draft_busy));
  if (row.places * row.layout.groups < best.places * best.layout.groups)
    return fmt::format("KV cache for {} texts at once instead of {}", row.places * row.layout.groups,
                       best.places * best.layout.groups);
  if (row.layout.groups > best.layout.groups)
    return fmt::format("{} groups share the load, so passes are emptier ({} busy) and each gains less",
                       row.layout.groups, percent(row.target_busy));
  if (row.layout.drafters < best.layout.drafters)
    return fmt::format("its drafters work {} of the time and are waited for", percent(row.draft_busy));
  return fmt::format("its {} drafters work only {} of the time", row.layout.drafters,
                     percent(row.draft_busy));
}

std::string why_pipeline(const PlanRow& row, const PlanRow& best) {
  if (row.pipeline == "lockstep")
    return fmt::format("the target waits for every draft (busy {}, there {})", percent(row.target_busy),
                       percent(best.target_busy));
  if (best.pipeline == "lockstep")
    return fmt::format(
        "preparing keeps drafters busy ({}) and answers later; {} of verdicts were prepared for",
        percent(row.draft_busy), percent(row.hit_rate));
  return fmt::format("{} of verdicts were prepared for, there {}", percent(row.hit_rate),
                     percent(best.hit_rate));
}

}  // namespace

std::string explain(const PlanRow& row, const PlanRow& best) {
  if (&row == &best)
    return row.layout.drafters == 0
               ? "no drafter pays for its device here"
               : fmt::format("{:.2f} tokens a pass from drafts of {:.1f}; targets busy {}, drafters {}",
                             row.tokens_per_pass, row.mean_gamma, percent(row.target_busy),
                             percent(row.draft_busy));
  if (row.layout.drafters == 0 && best.layout.drafters == 0)
    return fmt::format("plain as well: {} x {:.1f} ms a pass, there {} x {:.1f}", row.layout.groups,
                       row.pass_ms, best.layout.groups, best.pass_ms);
  if (row.layout.drafters == 0)
    return fmt::format("one token a pass; the other needs {:.2f} times fewer passes", best.tokens_per_pass);
  if (best.layout.drafters == 0)
    return fmt::format("{:.2f} tokens a pass do not make up for {} devices that draft", row.tokens_per_pass,
                       row.layout.groups * row.layout.drafters);
  if (row.layout != best.layout) return why_layout(row, best);
  if (row.pipeline != best.pipeline) return why_pipeline(row, best);
  return fmt::format("drafts of {:.1f} tokens on average, there {:.1f}", row.mean_gamma, best.mean_gamma);
}

std::string plan_report(const PlanOptions& options, const Plan& plan) {
  const PlanRow& best = plan.rows.front();
  std::string out = fmt::format(
      "{} devices, {} requests ({}), acceptance {}: {} arrangements simulated, no model ran\n\n"
      "Take {}, --pipeline {}, --gamma-policy {}: {:.0f} tokens/s, {:.1f} ms a token.\n\n",
      options.devices, options.requests, options.arrivals, options.acceptance, plan.rows.size(),
      layout_text(best.layout), best.pipeline, best.policy, best.tokens_per_second, best.ms_per_token);
  out += fmt::format("{:<22} {:<9} {:<14} {:>9} {:>8} {:>9} {:>7} {:>6}  {}\n", "layout", "pipeline",
                     "policy", "tokens/s", "of best", "ms/token", "first", "devs", "why");
  const auto line = [&](const PlanRow& row) {
    out += fmt::format("{:<22} {:<9} {:<14} {:>9.0f} {:>7.0f}% {:>9.2f} {:>5.1f} s {:>6}  {}\n",
                       layout_text(row.layout), row.pipeline, row.policy, row.tokens_per_second,
                       100 * row.tokens_per_second / best.tokens_per_second, row.ms_per_token,
                       row.ttft_ms * 1e-3, row.layout.devices(), row.reason);
  };
  // The best few, then the best of every layout that is not among them.
  std::vector<PlanLayout> shown;
  size_t lines = 0;
  for (const PlanRow& row : plan.rows) {
    const bool is_new = std::find(shown.begin(), shown.end(), row.layout) == shown.end();
    if (lines >= kShown && !is_new) continue;
    if (is_new) shown.push_back(row.layout);
    ++lines;
    line(row);
  }
  for (const std::string& why : plan.impossible) out += "not possible: " + why + "\n";
  out += fmt::format(
      "\nRanked by tokens/s; within 1 % by the mean time between tokens, then by devices. 'first': median "
      "time to\n"
      "the first token. {}\n",
      options.costs.empty() ? "Costs are a roofline with stated efficiencies (simulate run --hardware list)."
                            : "Costs as measured in " + options.costs + ".");
  return out;
}

void fill_json(const PlanOptions& options, const Plan& plan, nlohmann::json& out) {
  out = {{"simulated", true},
         {"devices", options.devices},
         {"gpu", options.gpu},
         {"model", options.model},
         {"draft_model", options.draft_model},
         {"costs", options.costs},
         {"acceptance", options.acceptance},
         {"arrivals", options.arrivals},
         {"requests", options.requests},
         {"seed", options.seed},
         {"impossible", plan.impossible},
         {"ranking", nlohmann::json::array()}};
  for (const PlanRow& row : plan.rows)
    out["ranking"].push_back({{"groups", row.layout.groups},
                              {"tensor_parallel_size", row.layout.tp},
                              {"drafters_per_group", row.layout.drafters},
                              {"devices", row.layout.devices()},
                              {"texts_per_group", row.places},
                              {"pipeline", row.pipeline},
                              {"gamma_policy", row.policy},
                              {"tokens_per_second", row.tokens_per_second},
                              {"ms_per_token_mean", row.ms_per_token},
                              {"ttft_ms_median", row.ttft_ms},
                              {"target_busy", row.target_busy},
                              {"draft_busy", row.draft_busy},
                              {"tokens_per_pass", row.tokens_per_pass},
                              {"mean_gamma", row.mean_gamma},
                              {"outcome_hit_rate", row.hit_rate},
                              {"reason", row.reason}});
}

}  // namespace outrider
