#include "lab/simulate/pages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/version.h"
#include "coordinator/gamma/acceptance.h"
#include "lab/simulate/tree_forms.h"

namespace outrider {
namespace {

report::Entry text(std::string words) { return {.text = std::move(words)}; }

void add_sources(const std::vector<CostSource>& sources, report::Report& page) {
  for (const CostSource& source : sources)
    page.facts.push_back(
        {source.figure, fmt::format("{} ({}: {})", source.value, name_of(source.kind), source.from)});
}

report::Table table_of(const Plan& plan, const std::vector<const PlanRow*>& rows) {
  report::Table table{
      .title = "Arrangements",
      .text = "The best, the front of throughput against latency (*), and the best of every layout.",
      .columns = {{"layout", "", true},
                  {"pipeline", "", true},
                  {"policy", "", true},
                  {"texts", ""},
                  {"rate", "tokens/s"},
                  {"of best", "%"},
                  {"between tokens", "ms"},
                  {"first token", "s"},
                  {"GPUs", ""},
                  {"why", "", true}},
      .rows = {}};
  for (const PlanRow* row : rows) {
    table.rows.push_back(
        {text(layout_text(*row) + (row->on_front ? " *" : "")), text(row->run.pipeline),
         text(row->run.gamma_policy), text(fmt::format("{}", row->run.max_num_seqs * row->run.groups)),
         text(fmt::format("{:.0f}", row->figures.tokens_per_second)),
         text(fmt::format(
             "{:.0f}", 100 * row->figures.tokens_per_second / plan.rows.front().figures.tokens_per_second)),
         text(fmt::format("{:.2f}", row->figures.ms_per_token)),
         text(fmt::format("{:.2f}", row->figures.ttft_ms * 1e-3)), text(fmt::format("{}", row->devices)),
         text(row->reason)});
  }
  return table;
}

// Every arrangement as a point; a series for each place of drafts, and the front as a line.
report::Figure front_figure(const Plan& plan) {
  report::Plot plot{.x = {"time between tokens", "ms", {}},
                    .y = {"throughput", "tokens/s", {}},
                    .guide = {},
                    .guide_name = {},
                    .panels = {{"", {}}}};
  report::Series front{.name = "front", .points = {}, .kind = report::Series::Kind::kLine, .thing = {}};
  for (const std::string& place : draft_place_names()) {
    report::Series series{.name = place, .points = {}, .kind = report::Series::Kind::kMarks, .thing = {}};
    for (const PlanRow& row : plan.rows) {
      const report::Point point{row.figures.ms_per_token, {.value = row.figures.tokens_per_second}};
      if (name_of(row.run.place) == place) series.points.push_back(point);
    }
    if (!series.points.empty()) plot.panels.front().series.push_back(std::move(series));
  }
  for (const PlanRow& row : plan.rows)
    if (row.on_front)
      front.points.push_back({row.figures.ms_per_token,
                              {.value = row.figures.tokens_per_second, .low = row.low, .high = row.high}});
  std::sort(front.points.begin(), front.points.end(), [](const auto& a, const auto& b) { return a.x < b.x; });
  plot.panels.front().series.push_back(std::move(front));
  return {
      .title = "Throughput against latency",
      .text =
          "Every mark is an arrangement that was simulated. On the line, nothing has both more tokens/s and "
          "less time between tokens; whiskers reach from the lowest to the highest of the seeds played.",
      .drawing = std::move(plot)};
}

}  // namespace

report::Report plan_page(const PlanOptions& options, const Plan& plan) {
  const PlanRow& best = plan.rows.front();
  report::Report page{.title = "Which layout",
                      .subtitle = fmt::format("{}: {} arrangements simulated, no model ran.",
                                              load_text(options), plan.rows.size()),
                      .conclusions = {},
                      .facts = {},
                      .sections = {}};
  page.conclusions.push_back(
      {advice(options, plan), best.keeps_level ? report::Tone::kGood : report::Tone::kWarning});
  for (const PlanRow& row : plan.rows)
    if (row.run.place == DraftPlace::kNone && best.run.place != DraftPlace::kNone) {
      page.conclusions.push_back({fmt::format("The best without a draft, {}, has {} and {:.1f} ms a token.",
                                              layout_text(row), rate_text(row), row.figures.ms_per_token),
                                  report::Tone::kPlain});
      break;
    }
  page.facts = {
      {"command", command_of(best.run)}, {"ranked by", objective_text(options)}, {"version", kVersion}};
  if (!best.memory.empty()) page.facts.push_back({"memory", best.memory});
  add_sources(plan.sources, page);
  page.sections.push_back({"What is possible", std::string(kHowExact) + ".", {}});
  page.sections.back().parts.emplace_back(front_figure(plan));
  page.sections.back().parts.emplace_back(table_of(plan, shown_rows(plan)));
  if (!plan.impossible.empty()) {
    report::Table table{.title = "Not possible", .text = "", .columns = {{"why", "", true}}, .rows = {}};
    for (const std::string& why : plan.impossible) table.rows.push_back({{why}});
    page.sections.back().parts.emplace_back(std::move(table));
  }
  return page;
}

report::Report run_page(const SimulatedRun& run, const PlayedRun& played) {
  const SimulatedFigures& f = played.figures;
  report::Report page{.title = "A simulated cluster",
                      .subtitle = fmt::format("{} requests ({}), no model ran.", run.requests, run.arrivals),
                      .conclusions = {},
                      .facts = {{"command", command_of(run)}, {"version", kVersion}},
                      .sections = {}};
  page.conclusions.push_back({fmt::format("{:.0f} tokens/s, {:.2f} ms between tokens, {:.2f} tokens a pass.",
                                          f.tokens_per_second, f.ms_per_token, f.tokens_per_round),
                              report::Tone::kPlain});
  add_sources(played.job.sources, page);
  report::Table table{
      .title = "Figures", .text = "", .columns = {{"figure", "", true}, {"value", ""}}, .rows = {}};
  const auto row = [&](const char* name, std::string value) {
    table.rows.push_back({text(name), text(std::move(value))});
  };
  row("first token, median", fmt::format("{:.1f} ms", f.ttft_ms));
  row("first token, 95 % within", fmt::format("{:.1f} ms", f.ttft_p95_ms));
  row("between tokens, mean", fmt::format("{:.2f} ms", f.ms_per_token));
  row("between bursts, 95 % within", fmt::format("{:.2f} ms", f.pause_p95_ms));
  row("a request, mean", fmt::format("{:.2f} s", f.request_s));
  row("targets busy", fmt::format("{:.0f} %", 100 * f.target_busy));
  if (played.result.target_busy.size() > 1)
    row("least and most busy target",
        fmt::format("{:.0f} %, {:.0f} %", 100 * f.least_busy_target, 100 * f.most_busy_target));
  if (run.prefix_tokens > 0)
    row("prompt tokens found in the KV cache", fmt::format("{:.0f} %", 100 * f.prefix_hit_rate));
  row("drafters busy", fmt::format("{:.0f} %", 100 * f.draft_busy));
  row("acceptance", fmt::format("{:.3f}", f.acceptance));
  row("drafted a round", fmt::format("{:.2f}", f.mean_gamma));
  page.sections.push_back({"What the load saw", "", {std::move(table)}});
  return page;
}

report::Report grid_page(const LeagueOptions& options, const std::vector<LeagueRow>& rows) {
  report::Report page{
      .title = "Policies against the best fixed draft length",
      .subtitle = fmt::format(
          "{} simulated cells of acceptance, draft cost and batch, {} seeds; no model ran.",
          options.acceptance.size() * options.draft_cost.size() * options.batch.size(), options.seeds),
      .conclusions = {},
      .facts = {{"acceptance", fmt::format("{}", fmt::join(options.acceptance, ", "))},
                {"draft cost", fmt::format("{} of a plain pass", fmt::join(options.draft_cost, ", "))},
                {"batch", fmt::format("{}", fmt::join(options.batch, ", "))},
                {"passes", describe_passes(options)},
                {"version", kVersion}},
      .sections = {}};
  if (!rows.empty())
    page.conclusions.push_back(
        {fmt::format("{} loses {:.2f} % +- {:.2f} against the best fixed length in hindsight.",
                     rows.front().policy, 100 * rows.front().regret, 100 * rows.front().half_width),
         report::Tone::kPlain});
  report::Bars bars{.values = {"tokens/s lost against the best fixed length", "%", {}},
                    .guide = {},
                    .guide_name = {},
                    .panels = {{"", {}}}};
  report::Table table{
      .title = "All columns",
      .text =
          "Regret: 1 - tokens/s over those of the best fixed length of each cell in hindsight, mean "
          "over the cells, with a 95 % interval over seeds.",
      .columns = {{"policy", "", true},
                  {"regret", "%"},
                  {"+-", "%"},
                  {"worst", "%"},
                  {"where", "", true},
                  {"least of plain decoding", ""},
                  {"where", "", true}},
      .rows = {}};
  for (const LeagueRow& row : rows) {
    bars.panels.front().bars.push_back({.name = row.policy,
                                        .value = {.value = 100 * row.regret,
                                                  .low = 100 * (row.regret - row.half_width),
                                                  .high = 100 * (row.regret + row.half_width)},
                                        .thing = row.policy,
                                        .parts = {}});
    table.rows.push_back({text(row.policy), text(fmt::format("{:.2f}", 100 * row.regret)),
                          text(fmt::format("{:.2f}", 100 * row.half_width)),
                          text(fmt::format("{:.1f}", 100 * row.worst_regret)), text(row.worst_cell),
                          text(fmt::format("{:.3f}", row.worst_over_plain)), text(row.worst_plain_cell)});
  }
  page.sections.push_back({"Regret", "", {}});
  page.sections.back().parts.emplace_back(
      report::Figure{.title = "Regret", .text = "Whiskers: 95 % over seeds.", .drawing = std::move(bars)});
  page.sections.back().parts.emplace_back(std::move(table));
  return page;
}

report::Report tree_page(const TreeForecastOptions& options, const std::vector<TreeRow>& rows) {
  report::Report page{
      .title = "Chains and trees of drafts",
      .subtitle = "Closed forms, with rounds walked one by one beside them; no model ran.",
      .conclusions = {},
      .facts = {{"chance of each rank", fmt::format("{:.3g}", fmt::join(options.ranks, ", "))},
                {"a pass by its rows", fmt::format("{}", fmt::join(options.row_costs, ", "))},
                {"a draft step", fmt::format("{} of a plain pass", options.draft_cost)},
                {"version", kVersion}},
      .sections = {}};
  report::Plot plot{.x = {"nodes", "", {}},
                    .y = {"speed-up", "", {}},
                    .guide = 1,
                    .guide_name = "plain decoding",
                    .panels = {{"", {}}}};
  const auto series = [&](const char* name, const auto& figures_of) {
    report::Series out{.name = name, .points = {}, .thing = {}};
    for (const TreeRow& row : rows)
      out.points.push_back({static_cast<double>(row.nodes), {.value = figures_of(row).speedup()}});
    plot.panels.front().series.push_back(std::move(out));
  };
  series("chain", [](const TreeRow& row) { return row.chain; });
  series("best chain up to there", [](const TreeRow& row) { return row.best_chain; });
  series("tree", [](const TreeRow& row) { return row.tree; });
  report::Table table{.title = "Tokens and speed-up",
                      .text = "Tokens of a round; walked: with a 95 % interval.",
                      .columns = {{"nodes", ""},
                                  {"a pass", "plain passes"},
                                  {"chain", "tokens"},
                                  {"best chain", "tokens"},
                                  {"tree", "tokens"},
                                  {"walked", "tokens"},
                                  {"levels", ""},
                                  {"over the best chain", "%"}},
                      .rows = {}};
  for (const TreeRow& row : rows) {
    const double gain = 100 * (row.tree.speedup() / row.best_chain.speedup() - 1);
    table.rows.push_back({text(fmt::format("{}", row.nodes)), text(fmt::format("{:.3f}", row.pass)),
                          text(fmt::format("{:.2f}", row.chain.tokens)),
                          text(fmt::format("{:.2f}", row.best_chain.tokens)),
                          text(fmt::format("{:.2f}", row.tree.tokens)),
                          text(fmt::format("{:.2f} +- {:.2f}", row.simulated, row.half_width)),
                          text(fmt::format("{}", row.tree.depth)), text(fmt::format("{:+.1f}", gain))});
    page.conclusions.push_back(
        {fmt::format("At {} nodes the tree is {:+.1f} % over the best chain.", row.nodes, gain),
         gain > 0 ? report::Tone::kGood : report::Tone::kPlain});
  }
  page.sections.push_back({"By nodes", "", {}});
  page.sections.back().parts.emplace_back(report::Figure{
      .title = "Speed-up over plain decoding", .text = "Of rounds in lockstep.", .drawing = std::move(plot)});
  page.sections.back().parts.emplace_back(std::move(table));
  return page;
}

report::Report theory_page(const TheoryOptions& options) {
  report::Report page{.title = "Expected gain in closed form",
                      .subtitle = "Acceptance independent of all else; time in plain target steps.",
                      .conclusions = {},
                      .facts = {{"delay one way", fmt::format("{}", options.delay)},
                                {"a draft token more in a pass", fmt::format("{}", options.per_token)},
                                {"version", kVersion}},
                      .sections = {}};
  const std::vector<double> rates =
      options.acceptance.empty() ? std::vector<double>{0.5, 0.6, 0.7, 0.8, 0.9, 0.95} : options.acceptance;
  report::Plot plot{.x = {"draft length", "tokens", {}},
                    .y = {"speed-up", "", {}},
                    .guide = 1,
                    .guide_name = "plain decoding",
                    .panels = {}};
  for (const double rho : options.draft_cost) {
    report::Plot::Panel panel{.title = fmt::format("a draft step costs {}", rho), .series = {}};
    for (const double alpha : rates) {
      report::Series series{.name = fmt::format("{:g}", alpha),
                            .points = {},
                            .kind = report::Series::Kind::kCurve,
                            .thing = {}};
      for (int gamma = 1; gamma <= 16; ++gamma)
        series.points.push_back(
            {static_cast<double>(gamma),
             {.value = lockstep_speedup(alpha, gamma, rho, options.delay, options.per_token)}});
      panel.series.push_back(std::move(series));
    }
    plot.panels.push_back(std::move(panel));
  }
  page.sections.push_back({"Lockstep", "", {}});
  page.sections.back().parts.emplace_back(report::Figure{.title = "Speed-up by draft length and acceptance",
                                                         .text = "A line for each acceptance.",
                                                         .drawing = std::move(plot)});
  report::Table table{.title = "Tokens of a round", .text = "", .columns = {{"acceptance", ""}}, .rows = {}};
  for (const int gamma : options.gammas)
    table.columns.push_back({fmt::format("{} drafted", gamma), "tokens"});
  for (const double alpha : rates) {
    std::vector<report::Entry> row{text(fmt::format("{:g}", alpha))};
    for (const int gamma : options.gammas)
      row.push_back(text(fmt::format("{:.2f}", expected_tokens(alpha, gamma))));
    table.rows.push_back(std::move(row));
  }
  page.sections.back().parts.emplace_back(std::move(table));
  return page;
}

}  // namespace outrider
