#include "lab/study/precision.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "base/parse_number.h"

namespace outrider {
namespace {

bool is_precise(const CellGroup& group, double wanted) { return widest(group) <= wanted; }

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

}  // namespace

double half_width(const Ratio& ratio) {
  if (!ratio.has_interval() || ratio.value <= 0) return std::numeric_limits<double>::infinity();
  return (ratio.high - ratio.low) / 2 / ratio.value;
}

double widest(const CellGroup& group) {
  std::vector<const CellSummary*> ran;
  for (const CellSummary* cell : group.cells)
    if (cell->any_ok()) ran.push_back(cell);
  if (ran.empty()) return 0;
  const CellSummary* fastest = *std::max_element(ran.begin(), ran.end(), [](const auto* a, const auto* b) {
    return a->median_rate() < b->median_rate();
  });
  if (ran.size() == 1) return fastest->speedup().measured() ? half_width(fastest->speedup()) : 0;
  double width = 0;
  for (const CellSummary* cell : ran)
    if (cell != fastest) width = std::max(width, half_width(rate_ratio(*cell, *fastest)));
  return width;
}

std::vector<Cell> imprecise_cells(const StudySummary& summary, double wanted) {
  std::vector<const CellSummary*> wide;
  for (const CellGroup& group : summary.groups())
    if (!is_precise(group, wanted)) wide.insert(wide.end(), group.cells.begin(), group.cells.end());
  std::vector<Cell> cells;
  for (const CellSummary& cell : summary.cells)
    if (cell.any_ok() && std::find(wide.begin(), wide.end(), &cell) != wide.end()) cells.push_back(cell.cell);
  return cells;
}

std::string precision_line(const StudySummary& summary, double wanted) {
  const std::vector<CellGroup> groups = summary.groups();
  const auto wide = std::count_if(groups.begin(), groups.end(),
                                  [&](const CellGroup& group) { return !is_precise(group, wanted); });
  size_t most = 0;
  for (const CellSummary& cell : summary.cells) most = std::max(most, cell.runs.size());
  if (wide == 0)
    return fmt::format("Every interval is within +- {} after at most {} repeats.", percent(wanted), most);
  const CellGroup& worst = *std::max_element(
      groups.begin(), groups.end(), [](const auto& a, const auto& b) { return widest(a) < widest(b); });
  return fmt::format(
      "After {} repeats the intervals of {} of {} groups are wider than +- {}, at most +- {}: the machine is "
      "too "
      "noisy, or the runs are too short.",
      most, wide, groups.size(), percent(wanted), percent(widest(worst)));
}

Status check_precision(const StudyFile& study) {
  std::map<std::string, std::vector<const Cell*>> groups;
  for (const Cell& cell : study.cells) groups[cell.group()].push_back(&cell);
  for (const auto& [name, cells] : groups)
    if (cells.size() == 1 && cells.front()->argument("compare-plain") != "true")
      return invalid_argument(fmt::format(
          "--until: the cell \"{}\" has no other to be compared with; set compare-plain = true in [base], or "
          "sweep gamma-policy",
          cells.front()->label()));
  return {};
}

Result<double> parse_precision(const std::string& text) {
  std::string_view number = text;
  if (number.ends_with('%')) number.remove_suffix(1);
  const auto percent = parse_number<double>(number);
  if (!percent || !(*percent >= 0.1 && *percent <= 50))
    return invalid_argument(fmt::format("--until {}: must be 0.1% to 50%", text));
  return *percent / 100;
}

}  // namespace outrider
