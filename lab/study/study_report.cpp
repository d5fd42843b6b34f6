// Results of a study, in words and tables.
#include "lab/study/study_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/study/names.h"

namespace outrider {
namespace {

using report::Conclusion;
using report::Entry;
using report::Tone;

// "1.53 (1.41 to 1.60)"
std::string with_range(const Spread& spread, int digits) {
  if (spread.low >= spread.high) return fmt::format("{:.{}f}", spread.median, digits);
  return fmt::format("{:.{}f} ({:.{}f} to {:.{}f})", spread.median, digits, spread.low, digits, spread.high,
                     digits);
}

void conclude_validity(const StudySummary& s, std::vector<Conclusion>& out) {
  int same = 0, different = 0;
  for (const CellSummary& cell : s.cells)
    for (const RunFigures& run : cell.runs)
      same += run.identical == "yes", different += run.identical == "no";
  if (different > 0)
    out.push_back({fmt::format("In {} of {} compared runs the text differs from that of plain decoding.",
                               different, same + different),
                   Tone::kWarning});
  else if (same > 0)
    out.push_back(
        {fmt::format("The text of all {} compared runs equals that of plain decoding.", same), Tone::kGood});
  if (s.failed() > 0)
    out.push_back({fmt::format("{} runs failed; their cells count without them.", s.failed()), Tone::kBad});
  if (s.synthetic())
    out.push_back(
        {"SYNTHETIC ACCEPTANCE: in some cells a stated process decided what was accepted. Work and times are "
         "real, the text means nothing.",
         Tone::kWarning});
  if (s.study.repeats == 1)
    out.push_back({"Every cell ran once, so the scatter of the figures is not known.", Tone::kWarning});
}

Entry percent(const std::optional<Regret>& regret) {
  if (!regret) return {"-"};
  if (!regret->has_interval()) return {fmt::format("{:.1f}", 100 * regret->value)};
  return {
      fmt::format("{:.1f} ({:.1f} to {:.1f})", 100 * regret->value, 100 * regret->low, 100 * regret->high)};
}

Entry number_or_dash(double value, int digits) {
  return {value > 0 ? fmt::format("{:.{}f}", value, digits) : "-"};
}

Entry text_entry(const CellSummary& cell) {
  int same = 0, different = 0, failed = 0;
  for (const RunFigures& run : cell.runs)
    same += run.identical == "yes", different += run.identical == "no", failed += !run.ok;
  std::string text = different > 0 ? "differs" : same > 0 ? "identical" : "-";
  if (failed > 0) text += fmt::format(", {} FAILED", failed);
  return {text, failed > 0 ? Tone::kBad : different > 0 ? Tone::kWarning : Tone::kPlain};
}

std::vector<Entry> row_of(const std::string& name, const CellSummary& cell, const CellGroup& group) {
  if (!cell.any_ok()) return {{name}, cell.runs.empty() ? Entry{"not run yet"} : Entry{"FAILED", Tone::kBad}};
  const Spread rate = cell.spread(&RunFigures::tokens_per_second),
               speedup = cell.spread(&RunFigures::speedup);
  return {{name},
          {fmt::format("{}", cell.runs.size())},
          {with_range(rate, 1)},
          speedup.median > 0 ? Entry{with_range(speedup, 2)} : Entry{"-"},
          number_or_dash(cell.median_of(&RunFigures::predicted_speedup), 2),
          percent(group.regret(cell)),
          number_or_dash(cell.median_of(&RunFigures::acceptance), 3),
          {fmt::format("{:.2f}", cell.median_of(&RunFigures::mean_gamma))},
          number_or_dash(cell.median_of(&RunFigures::bytes_per_accepted), 0),
          number_or_dash(cell.median_of(&RunFigures::verify_predicted), 2),
          text_entry(cell)};
}

report::Table cell_table(const StudySummary& s) {
  report::Table table{
      .title = "All cells",
      .text =
          "Medians over repeats, from the lowest to the highest. Predicted: the run's own acceptance and "
          "times in the "
          "formula. Regret: tokens/s lost against the best fixed length, with the 95 % interval of the "
          "bootstrap "
          "over repeats. Verify model: time of all target "
          "passes as "
          "the fitted cost model foretold it, over the measured. Text: against plain decoding.",
      .columns = {{"cell", "", true},
                  {"runs", ""},
                  {"speed", "tokens/s"},
                  {"speed-up", ""},
                  {"predicted", ""},
                  {"regret", "%"},
                  {"acceptance", ""},
                  {"mean gamma", ""},
                  {"wire", "bytes per accepted"},
                  {"verify model", ""},
                  {"text", "", true}},
      .rows = {}};
  for (const CellGroup& group : s.groups())
    for (size_t c = 0; c < group.cells.size(); ++c) {
      const std::string& name = group.names[c];
      table.rows.push_back(row_of(group.name.empty() ? name : fmt::format("{}: {}", group.name, name),
                                  *group.cells[c], group));
    }
  return table;
}

report::Table failed_table(const StudySummary& s) {
  report::Table table{.title = "Failed runs",
                      .text = "Their cells count without them.",
                      .columns = {{"cell", "", true}, {"repeat", ""}, {"why", "", true}},
                      .rows = {}};
  for (const CellSummary& cell : s.cells)
    for (const RunFigures& run : cell.runs)
      if (!run.ok)
        table.rows.push_back(
            {{cell.cell.label()}, {fmt::format("{}", run.repeat + 1)}, {run.error, Tone::kBad}});
  return table;
}

}  // namespace

report::Value value_of(const Spread& spread) { return {spread.median, spread.low, spread.high}; }

const CellSummary* best_policy(const CellGroup& group) {
  const CellSummary* best = nullptr;
  for (const CellSummary* cell : group.cells)
    if (!cell->cell.fixed_gamma() && cell->any_ok() && (!best || cell->median_rate() > best->median_rate()))
      best = cell;
  return best;
}

report::Table overview_table(const StudySummary& s) {
  report::Table table{.title = "Best of each group",
                      .text =
                          "Regret: tokens/s that the policy loses against the best fixed length, with the "
                          "95 % interval of the bootstrap over repeats.",
                      .columns = {{"group", "", true},
                                  {"best fixed", "", true},
                                  {"speed", "tokens/s"},
                                  {"speed-up", ""},
                                  {"best policy", "", true},
                                  {"speed", "tokens/s"},
                                  {"speed-up", ""},
                                  {"regret", "%"}},
                      .rows = {}};
  for (const CellGroup& group : s.groups()) {
    std::vector<Entry> row{{group.name.empty() ? "all cells" : group.name}};
    const CellSummary* policy = best_policy(group);
    for (const CellSummary* cell : {group.best_fixed(), policy}) {
      row.push_back({cell ? short_value("gamma-policy", cell->cell.choice()) : "-"});
      row.push_back(number_or_dash(cell ? cell->median_rate() : 0, 1));
      row.push_back(number_or_dash(cell ? cell->median_of(&RunFigures::speedup) : 0, 2));
    }
    row.push_back(percent(policy ? group.regret(*policy) : std::nullopt));
    table.rows.push_back(std::move(row));
  }
  return table;
}

report::Report study_report(const StudySummary& s) {
  report::Report out{
      .title = s.study.name, .subtitle = s.setting, .conclusions = {}, .facts = {}, .sections = {}};
  for (const std::string& sentence : s.conclusions) out.conclusions.push_back({sentence, Tone::kPlain});
  for (const std::string& warning : s.warnings)
    out.conclusions.push_back({"Warning: " + warning + ".", Tone::kWarning});
  conclude_validity(s, out.conclusions);
  size_t there = 0;
  for (const CellSummary& cell : s.cells) there += cell.runs.size();
  out.facts = {{"Cells", fmt::format("{}", s.cells.size())},
               {"Runs", fmt::format("{} of {} finished, {} failed", there,
                                    s.cells.size() * static_cast<size_t>(s.study.repeats), s.failed())},
               {"Intervals", fmt::format("from the lowest to the highest of {} repeats; values are medians",
                                         s.study.repeats)}};
  out.sections = {{"Overview", "", {overview_table(s), failed_table(s)}},
                  axis_section(s),
                  speed_section(s),
                  length_section(s),
                  latency_section(s),
                  occupation_section(s),
                  {"All figures", "", {cell_table(s)}}};
  return out;
}

}  // namespace outrider
