// Each counter of coordinator/metrics/counters.h is summed, and reported in the JSON report and in /metrics.
#include "coordinator/metrics/counters.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <type_traits>

#include "serve/monitor/metrics_text.h"
#include "serve/monitor/status.h"
#include "tests/serve/counted_numbers.h"
#include "tests/support/source_dir.h"

namespace outrider {
namespace {

using nlohmann::json;

json report_of(const EngineNumbers& numbers) {
  json report;
  fill_json(numbers.totals, report);
  fill_json(numbers.wire, numbers.totals, report["wire"]);
  return report;
}

std::string golden(const std::string& name) {
  std::ifstream file(source_dir() / "tests/goldens/metrics" / name);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::set<std::string> lines_of(const std::string& text) {
  std::set<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.insert(line);
  return lines;
}

// The goldens are what this program told when each output still had a list of counters of its own; only help
// texts have changed since. More may come, but tools that read these find them as they were.
TEST(Counters, TheReportKeepsItsKeysAndValues) {
  const json now = report_of(testing::counted_numbers()).flatten();
  const json before = json::parse(golden("report.json")).flatten();
  ASSERT_GT(before.size(), 150u);
  for (const auto& [path, value] : before.items()) EXPECT_EQ(now.value(path, json()), value) << path;
}

TEST(Counters, MetricsKeepTheirNamesAndValues) {
  const std::set<std::string> now =
      lines_of(metrics_text(testing::counted_numbers(), {.model = "demo", .vllm_names = true}));
  const std::set<std::string> before = lines_of(golden("metrics.txt"));
  ASSERT_GT(before.size(), 200u);
  for (const std::string& line : before) EXPECT_TRUE(now.contains(line)) << line;
}

// The report's value for a counter whose sum is `value`.
template <class Row>
json told(const Row& row, int64_t value) {
  return row.unit == Unit::kNanoseconds ? json(static_cast<double>(value) * 1e-6) : json(value);
}

// Gives every counter of a table a value of its own, adds the numbers to themselves, and looks for twice the
// value in `out(numbers)`, the part of the report that the table speaks of, and in /metrics.
template <class Table, class SumsIn, class Part>
void expect_everywhere(const Table& table, SumsIn sums_in, Part part, bool in_metrics = true) {
  EngineNumbers numbers;
  numbers.totals.drafters[1].name = "model";
  int64_t next = 1'000'000'000;
  std::map<std::pair<std::string, std::string>, double> samples;  // by name and label
  for (const auto& row : table) {
    auto& value = sums_in(numbers).*row.field;
    value = std::remove_reference_t<decltype(value)>(++next);
    const double shown = static_cast<double>(2 * next) * (row.unit == Unit::kNanoseconds ? 1e-9 : 1);
    samples[{std::string(row.metric), std::string(row.label)}] += shown;
  }
  EngineNumbers twice = numbers;
  if constexpr (std::is_same_v<std::remove_cvref_t<decltype(sums_in(twice))>, TransportStats>)
    add_counters(table, twice.wire, numbers.wire);
  else
    twice.totals.add(numbers.totals);
  const json report = report_of(twice);
  const json& told_in = part(report);
  next = 1'000'000'000;
  for (const auto& row : table) {
    const json& section = row.section.empty() ? told_in : told_in.at(std::string(row.section));
    EXPECT_EQ(section.value(std::string(row.key), json()), told(row, 2 * ++next)) << row.key;
  }
  if (!in_metrics) return;
  const std::string text = metrics_text(twice, {.model = "demo", .vllm_names = true});
  for (const auto& [of, value] : samples) {
    const auto& [name, label] = of;
    EXPECT_NE(name, "");
    const std::string line =
        fmt::format("\noutrider_{}{{model_name=\"demo\"{}{}}} ", name, label.empty() ? "" : ",", label);
    const size_t at = text.find(line);
    ASSERT_NE(at, std::string::npos) << line;
    EXPECT_NEAR(std::stod(text.substr(at + line.size())), value, 1e-9 * value) << line;
  }
}

TEST(Counters, EachIsInEveryOutput) {
  const auto whole = [](const json& report) -> const json& { return report; };
  const auto in = [](const char* section) {
    return [section](const json& report) -> const json& { return report.at(section); };
  };
  const auto totals = [](EngineNumbers& n) -> Totals& { return n.totals; };
  expect_everywhere(kEventCounters, totals, whole);
  expect_everywhere(kSliceCounters, totals,
                    [](const json& report) -> const json& { return report.at("wire").at("kinds"); });
  expect_everywhere(
      kRoundCounters, [](EngineNumbers& n) -> RoundSums& { return n.totals.rounds; }, in("rounds"));
  expect_everywhere(
      kPhaseCounters, [](EngineNumbers& n) -> PhaseTimes& { return n.totals.phases; }, in("phases"));
  expect_everywhere(
      kPreparationCounters, [](EngineNumbers& n) -> PreparationTotals& { return n.totals.preparation; },
      in("outcome_cache"));
  expect_everywhere(
      kWireCounters, [](EngineNumbers& n) -> TransportStats& { return n.wire; }, in("wire"));
  expect_everywhere(
      kDrafterCounters, [](EngineNumbers& n) -> DrafterTotals& { return n.totals.drafters[1]; },
      [](const json& report) -> const json& { return report.at("drafters").at(0); },
      /*in_metrics=*/false);
}

// With the label group, where there are two.
TEST(Counters, ThoseOfTargetGroupsAreToldApart) {
  EngineNumbers numbers;
  numbers.overview.groups = {{.here = true, .running = 3}, {.here = false}};
  int64_t next = 1'000'000'000;
  for (const int32_t group : {0, 1})
    for (const auto& counter : kGroupCounters) numbers.totals.group(group).*counter.field = ++next;
  numbers.totals.add(Totals(numbers.totals));
  const json report = report_of(numbers);
  const std::string text = metrics_text(numbers, {.model = "demo"});
  next = 1'000'000'000;
  for (const size_t group : {0u, 1u})
    for (const auto& counter : kGroupCounters) {
      EXPECT_EQ(report["groups"][group].value(std::string(counter.key), json()), told(counter, 2 * ++next));
      const std::string line =
          fmt::format("\noutrider_{}{{model_name=\"demo\",group=\"{}\"}} ", counter.metric, group);
      const size_t at = text.find(line);
      ASSERT_NE(at, std::string::npos) << line;
      const double shown = static_cast<double>(2 * next) * (counter.unit == Unit::kNanoseconds ? 1e-9 : 1);
      EXPECT_NEAR(std::stod(text.substr(at + line.size())), shown, 1e-9 * shown) << line;
    }
  EXPECT_NE(
      text.find("outrider_target_group_here{model_name=\"demo\",group=\"1\",host=\"\",role=\"decode\"} 0"),
      std::string::npos);
  EXPECT_EQ(metrics_text(EngineNumbers{}, {.model = "demo"}).find("target_group"), std::string::npos);
}

// The same groups as in the event `degraded` of the log.
TEST(MissingMembers, LostGroupsOfBothRolesAreNamed) {
  EngineNumbers numbers;
  numbers.overview.groups = {{.here = true, .only_prefills = true}, {.here = true}, {.here = false}};
  EXPECT_EQ(missing_members(numbers, false), std::vector<std::string>{});  // the third one never joined
  numbers.overview.groups = {{.was_lost = true, .only_prefills = true}, {.here = true}, {.was_lost = true}};
  EXPECT_EQ(missing_members(numbers, true),
            (std::vector<std::string>{"target group 0, which only prefills, is gone",
                                      "target group 2 is gone", "no draft worker drafts"}));
  numbers.overview.groups = {{.here = true, .only_prefills = true}, {.was_lost = true}};
  EXPECT_EQ(missing_members(numbers, false),
            std::vector<std::string>{"no target group is there that decodes"});
}

TEST(Counters, NoTwoHaveOneName) {
  std::set<std::pair<std::string_view, std::string_view>> seen;
  const auto look = [&](const auto& table) {
    for (auto row = std::begin(table); row != std::end(table); ++row) {
      const bool goes_on = row != std::begin(table) && (row - 1)->metric == row->metric;
      EXPECT_EQ(goes_on, row->help.empty()) << row->metric << ": the first of a metric explains it";
      const bool shares = goes_on && (row - 1)->label == row->label;
      EXPECT_EQ(seen.emplace(row->metric, row->label).second, !shares) << row->metric;
    }
  };
  look(kEventCounters);
  look(kSliceCounters);
  look(kRoundCounters);
  look(kPhaseCounters);
  look(kPreparationCounters);
  look(kWireCounters);
  look(kGroupCounters);
  look(kDrafterCounters);
}

}  // namespace
}  // namespace outrider
