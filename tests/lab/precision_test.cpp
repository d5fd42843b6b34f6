// When a study with --until has repeated enough.
#include "lab/study/precision.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

// The runs of a cell, in the order of its repeats.
CellSummary cell(const std::string& policy, const std::string& batch, const std::vector<double>& rates) {
  CellSummary summary;
  summary.cell = make_cell({}, {{"gamma-policy", {policy}}, {"max-num-seqs", {batch}}}, 0);
  for (size_t i = 0; i < rates.size(); ++i) {
    RunFigures run;
    run.ok = true, run.repeat = static_cast<int>(i), run.tokens_per_second = rates[i];
    summary.runs.push_back(run);
  }
  return summary;
}

StudySummary of(std::vector<CellSummary> cells) {
  StudySummary summary;
  summary.cells = std::move(cells);
  return summary;
}

TEST(Precision, OneRepeatIsNeverEnough) {
  const StudySummary summary = of({cell("fixed:gamma=2", "1", {100}), cell("ewma", "1", {90})});
  EXPECT_EQ(imprecise_cells(summary, 0.5).size(), 2u);
  EXPECT_EQ(half_width(Ratio{.value = 1, .samples = 1}), std::numeric_limits<double>::infinity());
}

// Every repeat of the second group is slower by the same factor, so its ratio is exact; the first one
// scatters.
TEST(Precision, OnlyGroupsThatScatterAreRepeated) {
  const StudySummary summary =
      of({cell("fixed:gamma=2", "1", {100, 80, 120}), cell("ewma", "1", {90, 99, 70}),
          cell("fixed:gamma=2", "4", {100, 50, 200}), cell("ewma", "4", {90, 45, 180})});
  const std::vector<Cell> again = imprecise_cells(summary, 0.02);
  ASSERT_EQ(again.size(), 2u);
  for (const Cell& repeated : again) EXPECT_EQ(repeated.values.at("max-num-seqs"), "1");
  EXPECT_NE(precision_line(summary, 0.02)
                .find("After 3 repeats the intervals of 1 of 2 groups are wider than +- 2.0 %"),
            std::string::npos)
      << precision_line(summary, 0.02);
}

TEST(Precision, TheWidthIsHalfTheIntervalOverTheValue) {
  EXPECT_NEAR(half_width(Ratio{.value = 2, .low = 1.9, .high = 2.2, .samples = 3}), 0.075, 1e-12);
  const StudySummary summary =
      of({cell("fixed:gamma=2", "4", {100, 50, 200}), cell("ewma", "4", {90, 45, 180})});
  EXPECT_NEAR(widest(summary.groups().front()), 0, 1e-9);
  EXPECT_EQ(precision_line(summary, 0.02), "Every interval is within +- 2.0 % after at most 3 repeats.");
}

// A cell that always fails would be repeated for ever, and would hold up the others.
TEST(Precision, CellsThatFailAreLeftAside) {
  CellSummary failed = cell("ewma", "1", {1, 1});
  for (RunFigures& run : failed.runs) run.ok = false;
  const StudySummary summary =
      of({cell("fixed:gamma=1", "1", {100, 101}), cell("fixed:gamma=2", "1", {60, 90}), failed});
  const std::vector<Cell> again = imprecise_cells(summary, 0.02);
  ASSERT_EQ(again.size(), 2u);
  for (const Cell& repeated : again) EXPECT_NE(repeated.choice(), "ewma");
}

TEST(Precision, OneThatIsLeftAloneIsNotRepeated) {
  CellSummary failed = cell("ewma", "1", {1, 1});
  for (RunFigures& run : failed.runs) run.ok = false;
  EXPECT_TRUE(imprecise_cells(of({cell("fixed:gamma=1", "1", {100, 101}), failed}), 0.02).empty());
}

TEST(Precision, ACellAloneIsComparedWithPlainDecoding) {
  CellSummary alone = cell("ewma", "1", {100, 100, 100});
  for (RunFigures& run : alone.runs) run.speedup = 1.5;
  EXPECT_TRUE(imprecise_cells(of({alone}), 0.02).empty());
  StudyFile study;
  study.cells = {make_cell({}, {{"gamma-policy", {"ewma"}}, {"seed", {"1", "2"}}}, 0)};
  EXPECT_NE(check_precision(study).message().find("compare-plain"), std::string::npos);
  study.cells = {make_cell({{"compare-plain", {"true"}}}, {{"gamma-policy", {"ewma"}}}, 0)};
  EXPECT_TRUE(check_precision(study).ok());
  study.cells = {make_cell({}, {{"gamma-policy", {"ewma", "heuristic"}}}, 0),
                 make_cell({}, {{"gamma-policy", {"ewma", "heuristic"}}}, 1)};
  EXPECT_TRUE(check_precision(study).ok());
}

TEST(Precision, PercentagesAreRead) {
  EXPECT_DOUBLE_EQ(parse_precision("2%").value(), 0.02);
  EXPECT_DOUBLE_EQ(parse_precision("0.5").value(), 0.005);
  for (const char* wrong : {"", "%", "two", "0%", "nan", "80%", "2 %", "-1%"})
    EXPECT_FALSE(parse_precision(wrong).ok()) << wrong;
}

}  // namespace
}  // namespace outrider
