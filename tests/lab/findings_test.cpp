// Conclusions of a study from synthetic repeats with known truth.
#include "lab/study/findings.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "lab/report/html.h"
#include "lab/study/study_report.h"

namespace outrider {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class Findings : public ::testing::Test {
 protected:
  explicit Findings() : noise_(0, 0.02) {}

  // `truth`: tokens/s without noise. Each repeat slows all cells down alike.
  void add(const std::string& policy, const std::string& batch, double truth, int repeats = 3) {
    summary_.study.repeats = repeats;
    CellSummary cell;
    cell.cell.id = policy + batch;
    cell.cell.values = {{"gamma-policy", policy}, {"max-num-seqs", batch}};
    cell.cell.arguments = {"--gamma-policy=" + policy, "--max-num-seqs=" + batch};
    for (int repeat = 0; repeat < repeats; ++repeat) {
      RunFigures run;
      run.ok = true;
      run.repeat = repeat;
      run.tokens_per_second = truth * (1 + 0.2 * repeat) * std::exp(noise_(random_));
      cell.runs.push_back(run);
    }
    summary_.cells.push_back(std::move(cell));
  }
  std::vector<std::string> found() const { return conclusions_of(summary_); }

  StudySummary summary_;
  std::mt19937_64 random_{3};
  std::normal_distribution<double> noise_;
};

TEST_F(Findings, APolicyIsJudgedAgainstTheBestFixedLengthOverAllGroups) {
  for (const char* batch : {"1", "4"}) {
    add("fixed:gamma=1", batch, 100, 5);
    add("fixed:gamma=4", batch, 150, 5);
    add("ewma", batch, 120, 5);
  }
  const auto lines = found();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_TRUE(lines[0].starts_with("ewma has 0.")) << lines[0];
  EXPECT_TRUE(contains(lines[0], "on average over 2 groups")) << lines[0];
  EXPECT_TRUE(contains(lines[0], "95 % interval 0.")) << lines[0];
  EXPECT_TRUE(lines[0].ends_with("slower.")) << lines[0];
  EXPECT_TRUE(contains(lines[1], "gamma 4 is fastest")) << lines[1];
  EXPECT_TRUE(contains(lines[1], "every other is slower")) << lines[1];
}

TEST_F(Findings, ThoseAreEqualThatTheRepeatsDoNotTellApart) {
  add("fixed:gamma=1", "1", 100);
  add("fixed:gamma=2", "1", 150);
  add("fixed:gamma=3", "1", 151);
  add("ewma", "1", 150);
  const auto lines = found();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[0].ends_with("not distinguishable.")) << lines[0];
  EXPECT_TRUE(contains(lines[1], "not distinguishable from it: ")) << lines[1];
  EXPECT_FALSE(contains(lines[1], "gamma 1")) << lines[1];
}

// Repeats are slowed down together by up to 0.8, so only what is taken repeat by repeat tells 20 %.
TEST_F(Findings, RegretHasThePairedInterval) {
  add("fixed:gamma=1", "1", 100, 5);
  add("fixed:gamma=4", "1", 150, 5);
  add("ewma", "1", 120, 5);
  const CellGroup group = summary_.groups().front();
  const auto regret = group.regret(*group.cells[2]);
  ASSERT_TRUE(regret && regret->has_interval());
  EXPECT_LT(regret->low, 0.2);
  EXPECT_GT(regret->high, 0.2);
  EXPECT_LT(regret->high - regret->low, 0.1);
  EXPECT_FALSE(group.regret(*group.cells[1])->has_interval()) << "the best against itself";
  const auto json = study_json(summary_)["groups"][0]["cells"];
  EXPECT_DOUBLE_EQ(json[2]["regret"]["interval"][0].get<double>(), regret->low);
  EXPECT_TRUE(json[1]["regret"]["interval"].is_null());
  summary_.study.repeats = 5;
  const std::string page = report::html_page(study_report(summary_));
  EXPECT_TRUE(contains(page, fmt::format("{:.1f} ({:.1f} to {:.1f})", 100 * regret->value, 100 * regret->low,
                                         100 * regret->high)));
}

TEST_F(Findings, OneRepeatProvesNothing) {
  add("fixed:gamma=1", "1", 100, 1);
  add("ewma", "1", 200, 1);
  const auto lines = found();
  EXPECT_TRUE(contains(lines[0], "one repeat gives no interval")) << lines[0];
  EXPECT_TRUE(lines[0].ends_with("not distinguishable.")) << lines[0];
  EXPECT_EQ(StudySummary().cells.size(), 0u);
  EXPECT_EQ(conclusions_of(StudySummary()).front(), "Nothing was measured yet: no run has succeeded.");
}

TEST_F(Findings, RunsOfSeveralVersionsAndNoiseAreWarnedOf) {
  add("fixed:gamma=1", "1", 100);
  add("fixed:gamma=2", "1", 101);
  summary_.cells[0].runs[0].commit = "aaa";
  summary_.cells[1].runs[0].other_cores = summary_.cells[1].runs[1].other_cores = 1;
  const auto warnings = warnings_of(summary_);
  ASSERT_EQ(warnings.size(), 2u) << warnings[0];
  EXPECT_TRUE(contains(warnings[0], "2 versions of the program")) << warnings[0];
  EXPECT_TRUE(contains(warnings[1], "repeats of a cell lie further apart")) << warnings[1];
}

// Two repeats: 1 of 10 tokens, and 90 of 100. The mean of rates would say 0.5.
TEST_F(Findings, RatesArePooledOverTheirTests) {
  CellSummary cell;
  cell.runs.resize(2);
  const double accepted[] = {1, 90}, tested[] = {10, 100}, drafted[] = {20, 160};
  for (size_t i = 0; i < 2; ++i) {
    cell.runs[i].accepted_tokens = accepted[i];
    cell.runs[i].tested_tokens = tested[i];
    cell.runs[i].drafted_tokens = drafted[i];
    cell.runs[i].position_accepted = {accepted[i]};
    cell.runs[i].position_tested = {tested[i]};
  }
  EXPECT_NEAR(cell.acceptance().value(), 91.0 / 110, 1e-12);
  EXPECT_EQ(cell.acceptance().of, 110);
  EXPECT_NEAR(cell.utilisation().value(), 91.0 / 180, 1e-12);
  EXPECT_NEAR(cell.position_acceptance().at(0), 91.0 / 110, 1e-12);
}

}  // namespace
}  // namespace outrider
