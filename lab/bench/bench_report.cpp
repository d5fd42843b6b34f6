#include "lab/bench/bench_report.h"

#include <fmt/format.h>

namespace outrider {
namespace {

using report::Bars;
using report::Entry;
using report::Figure;
using report::Plot;
using report::Series;
using report::Table;

report::Value speedup_of(const GammaResult& run) {
  if (run.of_plain.has_interval()) return {run.of_plain.value, run.of_plain.low, run.of_plain.high};
  return {run.speedup.median, 0, 0};
}

std::vector<report::Fact> facts_of(const BenchResults& r) {
  const MachineResult& m = r.machine;
  std::vector<report::Fact> facts;
  if (m.is_host())
    facts.push_back({"read bandwidth",
                     fmt::format("{:.1f} GB/s ({:.1f} to {:.1f} over the run)", m.bandwidth.median * 1e-9,
                                 m.bandwidth.low * 1e-9, m.bandwidth.high * 1e-9)});
  const double rate = r.plain.tokens_per_second.median;
  facts.push_back(
      {"plain decoding",
       m.is_host()
           ? fmt::format("{:.1f} tokens/s, {:.0f} % of the read bandwidth ({:.0f} % in the forward pass)",
                         rate, 100 * r.decode_bandwidth_share, 100 * r.forward_bandwidth_share)
           : fmt::format("{:.1f} tokens/s, {:.1f} GB/s of weights and KV", rate,
                         r.decode_bytes_per_token * rate * 1e-9)});
  facts.push_back({"start to first token", fmt::format("{:.2f} s", r.startup_seconds)});
  const auto megabytes = [](int64_t bytes) { return static_cast<double>(bytes) * 1e-6; };
  const std::string planned = fmt::format("weights ({:.1f} MB) plus KV ({:.1f} MB)",
                                          megabytes(r.weight_bytes), megabytes(r.kv_bytes));
  facts.push_back(m.is_host()
                      ? report::Fact{"peak memory",
                                     fmt::format("{:.1f} MB = {:.2f} of {}", megabytes(r.peak_memory_bytes),
                                                 static_cast<double>(r.peak_memory_bytes) /
                                                     static_cast<double>(r.weight_bytes + r.kv_bytes),
                                                 planned)}
                      : report::Fact{"on the device", planned});
  return facts;
}

std::string setting_of(const BenchResults& r) {
  const std::string context = r.context > 0 ? fmt::format(" after {} tokens of context", r.context) : "";
  return fmt::format("{} with {}: {} prompts, {} tokens each{}, temperature {:g}, {} turns, {} threads, {}",
                     r.target, r.draft, r.prompts, r.tokens, context, r.temperature, r.repetitions,
                     r.machine.threads, r.machine.isa);
}

// ---- tables ---------------------------------------------------------------------------------------------

Table run_table(const BenchResults& r) {
  Table table{.title = "Draft lengths",
              .text =
                  "Tokens/s: median over turns, lowest to highest. Speed-up: against plain decoding in the "
                  "same turn, with "
                  "its 95 % interval. Predicted: acceptance and times in the formula.",
              .columns = {{"gamma", "", true},
                          {"acceptance", ""},
                          {"tested", "tokens"},
                          {"tokens per pass", ""},
                          {"speed", "tokens/s"},
                          {"from", ""},
                          {"to", ""},
                          {"speed-up", ""},
                          {"predicted", ""},
                          {"identical output", "", true}},
              .rows = {}};
  const auto row = [&](const std::string& name, const GammaResult& g, bool speculates,
                       const std::string& predicted) {
    const Spread& rate = g.tokens_per_second;
    const auto only = [speculates](std::string text) { return Entry{speculates ? std::move(text) : "-"}; };
    table.rows.push_back({{name},
                          only(fmt::format("{:.3f}", g.acceptance_rate)),
                          only(fmt::format("{}", g.tested)),
                          {fmt::format("{:.2f}", speculates ? g.tokens_per_round : 1)},
                          {fmt::format("{:.1f}", rate.median)},
                          {fmt::format("{:.1f}", rate.low)},
                          {fmt::format("{:.1f}", rate.high)},
                          {!speculates                 ? "1.00"
                           : g.of_plain.has_interval() ? describe(g.of_plain)
                                                       : fmt::format("{:.2f}", g.speedup.median)},
                          {predicted},
                          only(g.identical_output ? "yes" : "NO")});
  };
  row("plain", r.plain, false, "-");
  for (const GammaResult& g : r.runs)
    row(std::to_string(g.gamma), g, true, fmt::format("{:.2f}", g.predicted_speedup));
  row(r.policy, r.by_policy, true, "-");
  return table;
}

Table curve_table(const BenchResults& r) {
  Table table{.title = "A target pass by its rows",
              .text = "t(M): the time of one target pass over M tokens of one text.",
              .columns = {{"rows M", "", true}, {"t(M)", "ms"}, {"t(M)/t(1)", ""}},
              .rows = {}};
  for (const CurveResult& point : r.curve)
    table.rows.push_back({{std::to_string(point.rows)},
                          {fmt::format("{:.3f}", point.seconds * 1e3)},
                          {fmt::format("{:.2f}", point.ratio)}});
  if (r.draft_step_seconds > 0)
    table.rows.push_back({{"draft step"},
                          {fmt::format("{:.3f}", r.draft_step_seconds * 1e3)},
                          {fmt::format("{:.3f}", r.draft_step_seconds / r.curve.front().seconds)}});
  return table;
}

struct Part {
  const char* name;
  double RoundSeconds::*seconds;
};
constexpr Part kParts[] = {{"draft", &RoundSeconds::draft},
                           {"transfer", &RoundSeconds::transfer},
                           {"verify forward", &RoundSeconds::forward},
                           {"verification", &RoundSeconds::verification},
                           {"commit", &RoundSeconds::commit},
                           {"idle", &RoundSeconds::idle}};

// Plain decoding, every length, the policy.
template <class Each>
void for_each_run(const BenchResults& r, const Each& each) {
  each("plain", r.plain);
  for (const GammaResult& g : r.runs) each(fmt::format("gamma {}", g.gamma), g);
  each(r.policy, r.by_policy);
}

Table round_table(const BenchResults& r) {
  Table table{
      .title = "Where a round's time goes: ms per round",
      .text =
          "Means. Transfer: messages on their way, threads being woken. Idle: the coordinator's own time.",
      .columns = {{"ms per round", "", true}},
      .rows = {}};
  for (const Part& part : kParts) table.columns.push_back({part.name, ""});
  table.columns.push_back({"wall", ""});
  table.columns.push_back({"transfer + idle, median", ""});
  for_each_run(r, [&](const std::string& name, const GammaResult& g) {
    std::vector<Entry> row{{name}};
    for (const Part& part : kParts) row.push_back({fmt::format("{:.3f}", shown_ms(g.round.*part.seconds))});
    row.push_back({fmt::format("{:.3f}", shown_ms(g.round.wall))});
    row.push_back({fmt::format("{:.3f}", shown_ms(g.overhead_median))});
    table.rows.push_back(std::move(row));
  });
  return table;
}

// ---- figures --------------------------------------------------------------------------------------------

Figure speedup_figure(const BenchResults& r) {
  Series measured{.name = "measured", .points = {}, .kind = Series::Kind::kLine, .thing = "fixed length"};
  Series predicted{.name = "predicted", .points = {}, .kind = Series::Kind::kTheory, .thing = "theory"};
  for (const GammaResult& g : r.runs) {
    measured.points.push_back({static_cast<double>(g.gamma), speedup_of(g)});
    predicted.points.push_back({static_cast<double>(g.gamma), {g.predicted_speedup, 0, 0}});
  }
  return {"Speed-up against draft length",
          "Over plain decoding in the same turn; whiskers are 95 % intervals. Predicted: measured acceptance "
          "and times in the "
          "formula.",
          Plot{.x = {"draft length gamma", "tokens", {}},
               .y = {"speed-up over plain decoding", "", {}},
               .guide = 1,
               .guide_name = "plain",
               .panels = {{"", {std::move(predicted), std::move(measured)}}}}};
}

Figure rate_figure(const BenchResults& r) {
  Bars::Panel panel;
  for_each_run(r, [&](const std::string& name, const GammaResult& g) {
    const Spread& rate = g.tokens_per_second;
    panel.bars.push_back({name,
                          {rate.median, rate.low, rate.high},
                          &g == &r.plain       ? "plain"
                          : &g == &r.by_policy ? "a policy chooses"
                                               : "fixed length",
                          {}});
  });
  return {
      "Tokens per second", "Median over turns; lines from the lowest to the highest.",
      Bars{.values = {"speed", "tokens/s", {}}, .guide = {}, .guide_name = "", .panels = {std::move(panel)}}};
}

Figure round_figure(const BenchResults& r) {
  Bars::Panel panel;
  for_each_run(r, [&](const std::string& name, const GammaResult& g) {
    Bars::Bar bar{name, {}, "", {}};
    for (const Part& part : kParts) bar.parts.push_back({part.name, g.round.*part.seconds * 1e3});
    panel.bars.push_back(std::move(bar));
  });
  return {"A round's time", "Mean milliseconds of one round, by what they were spent on.",
          Bars{.values = {"time of a round", "ms", {}},
               .guide = {},
               .guide_name = "",
               .panels = {std::move(panel)}}};
}

Figure curve_figure(const BenchResults& r) {
  Series series{.name = "target pass", .points = {}, .kind = Series::Kind::kLine, .thing = "verification"};
  for (const CurveResult& point : r.curve)
    series.points.push_back({static_cast<double>(point.rows), {point.seconds * 1e3, 0, 0}});
  return {"A target pass by its rows", "A round with gamma drafts verifies gamma + 1 rows.",
          Plot{.x = {"rows of the pass", "tokens", {}},
               .y = {"time of one pass", "ms", {}},
               .guide = {},
               .guide_name = "",
               .panels = {{"", {std::move(series)}}}}};
}

}  // namespace

report::Report bench_report(const BenchResults& r) {
  report::Report out{.title = "Speculation on this machine",
                     .subtitle = setting_of(r) + ".",
                     .conclusions = {},
                     .facts = facts_of(r),
                     .sections = {}};
  for (const std::string& sentence : r.conclusions)
    out.conclusions.push_back({sentence, report::Tone::kPlain});
  for (const std::string& warning : r.warnings)
    out.conclusions.push_back({"Warning: " + warning + ".", report::Tone::kWarning});
  out.sections = {{"Speed", "", {speedup_figure(r), rate_figure(r), run_table(r)}},
                  {"Where a round's time goes", "", {round_figure(r), round_table(r)}},
                  {"What a pass costs", "", {curve_figure(r), curve_table(r)}}};
  return out;
}

}  // namespace outrider
