// Pages about what was recorded elsewhere: costs that were fitted to timings, rounds and texts replayed.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/version.h"
#include "lab/simulate/pages.h"

namespace outrider {
namespace {

constexpr int kCurvePoints = 32;

report::Entry text(std::string words) { return {.text = std::move(words)}; }

// Every timing, and the fit at the mean context of the timings.
report::Figure pass_figure(const char* role, const std::vector<PassSample>& samples, const PassFit& fit) {
  report::Plot plot{.x = {"rows of a pass", "", {}},
                    .y = {"time", "ms", {}},
                    .guide = {},
                    .guide_name = {},
                    .panels = {{"", {}}}};
  report::Series timed{.name = "timed", .points = {}, .kind = report::Series::Kind::kMarks, .thing = {}};
  report::Series fitted{.name = "fitted", .points = {}, .kind = report::Series::Kind::kTheory, .thing = {}};
  double most = 1, context = 0;
  for (const PassSample& sample : samples) {
    timed.points.push_back({sample.rows, {.value = sample.seconds * 1e3}});
    most = std::max(most, sample.rows);
    context += sample.context / static_cast<double>(samples.size());
  }
  for (int i = 0; i <= kCurvePoints; ++i) {
    const double rows = 1 + (most - 1) * i / kCurvePoints;
    const double seconds = fit.cost.base + fit.cost.per_row * rows + fit.cost.per_context * context;
    fitted.points.push_back({rows, {.value = seconds * 1e3}});
  }
  plot.panels.front().series = {std::move(timed), std::move(fitted)};
  return {
      .title = fmt::format("A pass of the {}", role),
      .text = fmt::format("Dashed: what was fitted, at {:.0f} tokens of context, the mean of the timings. "
                          "Off by {:.1f} % on average and {:.1f} % at most.",
                          context, 100 * fit.mean_error, 100 * fit.worst_error),
      .drawing = std::move(plot)};
}

const ReplayRow* best_of(const ReplayTable& table, bool fixed) {
  const ReplayRow* best = nullptr;
  for (const ReplayRow& row : table.rows)
    if (row.is_fixed() == fixed &&
        (!best || row.result.tokens_per_second() > best->result.tokens_per_second()))
      best = &row;
  return best;
}

report::Table replay_figures(const ReplayTable& table) {
  report::Table out{.title = "All policies",
                    .text =
                        "Times are from the costs that the recorded run fitted. Gaps: tested tokens that the "
                        "record does not cover, drawn at its acceptance.",
                    .columns = {{"policy", "", true},
                                {"speed", "tokens/s"},
                                {"regret", "%"},
                                {"rounds", ""},
                                {"acceptance", ""},
                                {"tokens", "a pass"},
                                {"drafted", "a round"},
                                {"gaps", ""},
                                {"remark", "", true}},
                    .rows = {}};
  for (const ReplayRow& row : table.rows) {
    const ReplayResult& r = row.result;
    const auto regret = table.regret(row);
    out.rows.push_back({text(row.policy), text(fmt::format("{:.1f}", r.tokens_per_second())),
                        text(regret ? fmt::format("{:.1f}", 100 * *regret) : "-"),
                        text(fmt::format("{}", r.sums.rounds)),
                        text(fmt::format("{:.3f}", r.sums.acceptance())),
                        text(fmt::format("{:.2f}", r.sums.tokens_per_round())),
                        text(fmt::format("{:.2f}", row.mean_gamma())), text(fmt::format("{}", r.gaps)),
                        text(r.stops_early ? "its stop rule was ignored" : "")});
  }
  return out;
}

}  // namespace

report::Report fit_page(const Timings& timings, const CostFit& fit) {
  report::Report page{.title = "Costs of a machine",
                      .subtitle = "Least squares through timings that were made there.",
                      .conclusions = {},
                      .facts = {{"files", fmt::format("{}", fmt::join(fit.files, ", "))},
                                {"target", fmt::format("{}", fmt::join(fit.target_names, ", "))},
                                {"draft", fmt::format("{}", fmt::join(fit.draft_names, ", "))},
                                {"version", kVersion}},
                      .sections = {}};
  const double pass = fit.target.cost.seconds(1, 0), draft = fit.draft.cost.seconds(1, 0);
  page.conclusions.push_back(
      {fmt::format("A draft token costs {:.3g} of a plain pass, and a row more of a pass {:.3g} of one.",
                   draft / pass, fit.target.cost.per_row / pass),
       report::Tone::kPlain});
  for (const auto& [role, passes] : {std::pair("target", &fit.target), std::pair("draft", &fit.draft)})
    if (passes->samples < 3)
      page.conclusions.push_back({fmt::format("The {} has {} timing{}: too few to tell what rows and context "
                                              "cost; `outrider bench --report` times more.",
                                              role, passes->samples, passes->samples == 1 ? "" : "s"),
                                  report::Tone::kWarning});
  report::Table table{
      .title = "Fitted and assumed",
      .text = "",
      .columns = {{"figure", "", true}, {"value", "", true}, {"is", "", true}, {"from", "", true}},
      .rows = {}};
  for (const CostSource& source : fit.sources)
    table.rows.push_back({text(source.figure), text(source.value), text(std::string(name_of(source.kind))),
                          text(source.from)});
  page.sections.push_back({"Passes", "", {}});
  page.sections.back().parts.emplace_back(pass_figure("target", timings.target, fit.target));
  page.sections.back().parts.emplace_back(pass_figure("draft", timings.draft, fit.draft));
  page.sections.back().parts.emplace_back(std::move(table));
  return page;
}

report::Report replay_page(const ReplayTable& table) {
  report::Report page{.title = "Recorded rounds, replayed",
                      .subtitle = table.subtitle,
                      .conclusions = {},
                      .facts = {{"record", table.file}, {"version", kVersion}},
                      .sections = {}};
  const ReplayRow *const fixed = best_of(table, true), *const policy = best_of(table, false);
  if (fixed)
    page.conclusions.push_back({fmt::format("{} is the fastest fixed length: {:.1f} tokens/s.", fixed->policy,
                                            fixed->result.tokens_per_second()),
                                report::Tone::kPlain});
  if (policy) {
    const auto regret = table.regret(*policy);
    page.conclusions.push_back(
        {fmt::format("{} is the fastest policy that chooses lengths: {:.1f} tokens/s{}.", policy->policy,
                     policy->result.tokens_per_second(),
                     regret ? fmt::format(", {:.1f} % {} than that", std::abs(100 * *regret),
                                          *regret > 0 ? "less" : "more")
                            : std::string()),
         report::Tone::kPlain});
  }
  for (const std::string& caveat : table.caveats)
    page.conclusions.push_back({fmt::format("Not exact: {}.", caveat), report::Tone::kWarning});
  report::Bars bars{.values = {"rate", "tokens/s", {}}, .guide = {}, .guide_name = {}, .panels = {{"", {}}}};
  if (fixed) {
    bars.guide = fixed->result.tokens_per_second();
    bars.guide_name = "best fixed length";
  }
  for (const ReplayRow& row : table.rows)
    bars.panels.front().bars.push_back({.name = row.policy,
                                        .value = {.value = row.result.tokens_per_second()},
                                        .thing = row.is_fixed() ? "fixed length" : "a policy chooses",
                                        .parts = {}});
  page.sections.push_back({"Policies", "", {}});
  page.sections.back().parts.emplace_back(report::Figure{
      .title = "Tokens per second",
      .text = "One record says how many tokens each would have had accepted, not how much that "
              "scatters from text to text.",
      .drawing = std::move(bars)});
  page.sections.back().parts.emplace_back(replay_figures(table));
  return page;
}

report::Report texts_page(const TextsTable& table) {
  report::Report page{.title = "Texts, drafted without a model",
                      .subtitle = table.subtitle,
                      .conclusions = {},
                      .facts = {{"texts", table.file},
                                {"a pass costs", fmt::format("{}", fmt::join(table.row_costs, " and "))},
                                {"version", kVersion}},
                      .sections = {}};
  if (const TextsRow* best = table.fastest())
    page.conclusions.push_back({fmt::format("{} with a {} is the fastest at these costs: {:.2f} times plain, "
                                            "{:.2f} tokens a pass.",
                                            best->drafter, best->shape_text(), best->figures.speedup(),
                                            best->figures.tokens_per_round()),
                                best->figures.speedup() > 1 ? report::Tone::kGood : report::Tone::kWarning});
  report::Bars bars{
      .values = {"tokens a pass", "", {}}, .guide = 1, .guide_name = "plain", .panels = {{"", {}}}};
  report::Table rows{.title = "All drafts",
                     .text = "The speed-up assumes the stated costs of a pass, and drafts that cost nothing.",
                     .columns = {{"drafter", "", true},
                                 {"a draft", "", true},
                                 {"acceptance", ""},
                                 {"drafted", "a pass"},
                                 {"tokens", "a pass"},
                                 {"speed-up", ""}},
                     .rows = {}};
  for (const TextsRow& row : table.rows) {
    const TextDraftFigures& f = row.figures;
    bars.panels.front().bars.push_back({.name = row.drafter + ", " + row.shape_text(),
                                        .value = {.value = f.tokens_per_round()},
                                        .thing = row.drafter,
                                        .parts = {}});
    rows.rows.push_back(
        {text(row.drafter), text(row.shape_text()), text(fmt::format("{:.3f}", f.acceptance())),
         text(fmt::format("{:.2f}", f.drafted_per_pass())), text(fmt::format("{:.2f}", f.tokens_per_round())),
         text(fmt::format("{:.2f}", f.speedup()))});
  }
  page.sections.push_back({"Drafts", "", {}});
  page.sections.back().parts.emplace_back(
      report::Figure{.title = "Tokens a pass",
                     .text = "Exact for a model that writes these texts under a match rule.",
                     .drawing = std::move(bars)});
  page.sections.back().parts.emplace_back(std::move(rows));
  return page;
}

}  // namespace outrider
