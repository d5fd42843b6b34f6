#include "lab/study/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "lab/bench/conclusions.h"
#include "lab/study/names.h"

namespace outrider {
namespace {

std::string interval(const Ratio& ratio, const char* of) {
  return ratio.has_interval()
             ? fmt::format("95 % interval {:.2f} to {:.2f}, {} {}", ratio.low, ratio.high, ratio.samples, of)
             : "one repeat gives no interval";
}

// Repeat by repeat the mean, over all groups, of what a policy has of the best fixed length.
struct PolicyRecord {
  std::map<int, std::vector<double>> logs;  // by repeat
  size_t groups = 0;
  double worst = 1e300;

  void add(const CellSummary& cell, const CellSummary& best) {
    const Ratio ratio = rate_ratio(cell, best);
    if (!ratio.measured()) return;
    ++groups;
    worst = std::min(worst, ratio.value);
    for (const RunFigures& one : cell.runs)
      for (const RunFigures& other : best.runs)
        if (one.ok && other.ok && one.repeat == other.repeat && one.tokens_per_second > 0 &&
            other.tokens_per_second > 0)
          logs[one.repeat].push_back(std::log(one.tokens_per_second / other.tokens_per_second));
  }
  Ratio ratio() const {
    std::vector<double> means;
    for (const auto& [repeat, values] : logs) {
      if (values.size() != groups) continue;  // a repeat in which some run failed
      double sum = 0;
      for (const double value : values) sum += value;
      means.push_back(std::exp(sum / static_cast<double>(values.size())));
    }
    return paired_ratio(means);
  }
};

// Compares each adaptive policy with the best fixed lengths.
std::vector<std::string> policy_lines(const std::vector<CellGroup>& groups) {
  std::vector<std::string> names;
  std::map<std::string, PolicyRecord> records;
  for (const CellGroup& group : groups) {
    const CellSummary* best = group.best_fixed();
    for (const CellSummary* cell : group.cells) {
      if (!best || cell->cell.fixed_gamma() || !cell->any_ok()) continue;
      const std::string name = short_value("gamma-policy", cell->cell.choice());
      if (!records.contains(name)) names.push_back(name);
      records[name].add(*cell, *best);
    }
  }
  std::vector<std::string> lines;
  for (const std::string& name : names) {
    const PolicyRecord& record = records[name];
    const Ratio ratio = record.ratio();
    if (!ratio.measured()) continue;
    const std::string where = record.groups == 1 ? std::string()
                                                 : fmt::format(" on average over {} groups, at worst {:.2f}",
                                                               record.groups, record.worst);
    lines.push_back(fmt::format("{} has {:.2f} times the tokens/s of the best fixed length{} ({}): {}.", name,
                                ratio.value, where, interval(ratio, "repeats"), speed_verdict(ratio)));
  }
  return lines;
}

// The fastest cell of a group, and which others are not distinguishable from it. Null without any.
const CellSummary* fastest(const CellGroup& group) {
  const CellSummary* best = nullptr;
  for (const CellSummary* cell : group.cells)
    if (cell->any_ok() && (!best || cell->median_rate() > best->median_rate())) best = cell;
  return best;
}

std::vector<std::string> equals_of(const CellGroup& group, const CellSummary& best) {
  std::vector<std::string> out;
  for (size_t i = 0; i < group.cells.size(); ++i)
    if (group.cells[i] != &best && group.cells[i]->any_ok() && !rate_ratio(*group.cells[i], best).is_below(1))
      out.push_back(group.names[i]);
  return out;
}

std::string group_line(const CellGroup& group, bool named) {
  const CellSummary* best = fastest(group);
  if (!best) return "";
  const size_t index =
      static_cast<size_t>(std::find(group.cells.begin(), group.cells.end(), best) - group.cells.begin());
  std::string line = named ? group.name + ": " : std::string();
  line +=
      fmt::format("{} is fastest, {:.1f} tokens/s",
                  group.names[index].empty() ? "The only choice" : group.names[index], best->median_rate());
  if (const Ratio speedup = best->speedup(); speedup.measured())
    line += fmt::format(", {:.2f} times plain decoding ({}){}", speedup.value, interval(speedup, "repeats"),
                        speedup.differs_from(1) ? "" : ", not distinguishable from it");
  const auto equal = equals_of(group, *best);
  const size_t others = static_cast<size_t>(std::count_if(group.cells.begin(), group.cells.end(),
                                                          [](const auto* c) { return c->any_ok(); })) -
                        1;
  if (others == 0) return line + ".";
  if (equal.empty()) return line + "; every other is slower.";
  return line + fmt::format("; not distinguishable from it: {}.", listed(equal));
}

// How far repeats lie apart, over their median: the median over cells.
double usual_noise(const std::vector<const CellSummary*>& cells) {
  std::vector<double> noise;
  for (const CellSummary* cell : cells)
    if (cell->runs.size() > 1 && cell->any_ok())
      noise.push_back(cell->spread(&RunFigures::tokens_per_second).relative());
  return median(std::move(noise));
}

std::string noise_warning(const std::vector<CellGroup>& groups) {
  size_t noisy = 0, all = 0;
  double most = 0;
  for (const CellGroup& group : groups) {
    const CellSummary* best = fastest(group);
    if (!best || group.cells.size() < 2) continue;
    ++all;
    double slowest = best->median_rate();
    for (const CellSummary* cell : group.cells)
      if (cell->any_ok()) slowest = std::min(slowest, cell->median_rate());
    const double noise = usual_noise(group.cells), effect = 1 - slowest / best->median_rate();
    if (noise <= effect) continue;
    ++noisy;
    most = std::max(most, noise);
  }
  if (noisy == 0) return "";
  return fmt::format(
      "in {} of {} groups the repeats of a cell lie further apart (up to {:.0f} %) than its fastest and its "
      "slowest cell; more repeats, longer runs or a quieter machine tell more",
      noisy, all, 100 * most);
}

}  // namespace

std::vector<std::string> conclusions_of(const StudySummary& summary) {
  const std::vector<CellGroup> groups = summary.groups();
  std::vector<std::string> out = policy_lines(groups);
  for (const CellGroup& group : groups)
    if (std::string line = group_line(group, groups.size() > 1); !line.empty())
      out.push_back(std::move(line));
  if (out.empty()) out.push_back("Nothing was measured yet: no run has succeeded.");
  return out;
}

std::vector<std::string> warnings_of(const StudySummary& summary) {
  MachineResult machine;
  std::vector<double> others, bandwidths;
  std::set<std::string> commits, hosts;
  for (const CellSummary& cell : summary.cells)
    for (const RunFigures& run : cell.runs) {
      if (!run.ok) continue;
      others.push_back(run.other_cores);
      machine.load.steal_share = std::max(machine.load.steal_share, run.steal_share);
      if (run.read_bandwidth > 0) bandwidths.push_back(run.read_bandwidth);
      commits.insert(run.commit);
      hosts.insert(run.host);
    }
  machine.bandwidth = Spread::of(bandwidths);
  machine.load.other_cores = median(others);
  std::vector<std::string> out = disturbances(machine);
  if (commits.size() > 1)
    out.push_back(fmt::format("runs were made by {} versions of the program: {}", commits.size(),
                              listed({commits.begin(), commits.end()})));
  if (hosts.size() > 1)
    out.push_back(
        fmt::format("runs were made on {} machines: {}", hosts.size(), listed({hosts.begin(), hosts.end()})));
  if (std::string noise = noise_warning(summary.groups()); !noise.empty()) out.push_back(std::move(noise));
  return out;
}

}  // namespace outrider
