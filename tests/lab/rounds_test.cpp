// Rounds as CSV, and the figures of such a file.
#include "lab/study/rounds.h"

#include <gtest/gtest.h>

#include <sstream>

#include "requests/round_table.h"

namespace outrider {
namespace {

RoundDone round_of(uint64_t request, int32_t base, uint64_t step, int32_t drafted, int32_t accepted) {
  return {.request = SequenceId(request),
          .round = Round(1),
          .base = Position(base),
          .step = step,
          .gamma = drafted,
          .drafted = drafted,
          .tested = std::min(drafted, accepted + 1),
          .accepted_count = accepted,
          .emitted = accepted + 1,
          .draft_ns = drafted * 500'000,
          .target_ns = 2'000'000};
}

std::vector<RoundDone> three_rounds() {
  std::vector<RoundDone> rounds{round_of(7, 10, 1, 0, 0), round_of(7, 11, 2, 3, 1), round_of(9, 5, 2, 2, 2)};
  rounds[1].margins = {2.5F, 0.25F, 1};
  return rounds;
}

TEST(RoundTable, HasALineForEachRound) {
  EXPECT_EQ(round_table(three_rounds()),
            "request,round,position,asked,drafted,tested,accepted,emitted,draft_ms,verify_ms,rows,batch,"
            "confidence\n"
            "7,1,10,0,0,0,0,1,0,2,1,1,\n"
            "7,2,11,3,3,2,1,2,1.5,2,7,2,2.5 0.25 1\n"
            "9,1,5,2,2,2,2,3,1,2,7,2,\n");
}

Result<std::map<std::string, RoundCounts>> read(const std::string& text, const std::string& by = "") {
  std::istringstream file(text);
  return read_rounds(file, "rounds.csv", by);
}

TEST(RoundTable, IsReadBack) {
  auto rounds = three_rounds();
  rounds.push_back(round_of(7, 13, 3, 3, 3));
  const auto series = read(round_table(rounds)).value();
  ASSERT_EQ(series.size(), 1u);
  const RoundCounts& counts = series.at("");
  EXPECT_EQ(counts.tested, (std::vector<int64_t>{2, 2, 1})) << "first rounds of requests are left out";
  EXPECT_EQ(counts.accepted, (std::vector<int64_t>{2, 1, 1}));
  EXPECT_EQ(counts.rounds, (std::vector<int64_t>{0, 0, 0, 2}));
  EXPECT_EQ(counts.emitted, (std::vector<int64_t>{0, 0, 0, 6}));
  const report::Figure by_position = acceptance_by_position(series), by_length = tokens_by_length(series);
  const auto& acceptance = std::get<report::Plot>(by_position.drawing).panels[0].series;
  ASSERT_EQ(acceptance.size(), 1u);
  EXPECT_EQ(acceptance[0].points[1].x, 2);
  EXPECT_EQ(acceptance[0].points[1].y.value, 0.5);
  const auto& tokens = std::get<report::Plot>(by_length.drawing).panels[0].series;
  ASSERT_EQ(tokens[0].points.size(), 1u);
  EXPECT_EQ(tokens[0].points[0].x, 3);
  EXPECT_EQ(tokens[0].points[0].y.value, 3);
}

TEST(RoundTable, SeriesByAColumn) {
  const std::string text =
      "label,round,drafted,tested,accepted,emitted\n"
      "\"a, \"\"b\"\"\",2,2,1,0,1\n"
      "c,2,0,0,0,1\r\n";
  const auto series = read(text, "label").value();
  ASSERT_EQ(series.size(), 2u);
  EXPECT_EQ(series.at("a, \"b\"").tested, (std::vector<int64_t>{1}));
  EXPECT_EQ(series.at("c").rounds, (std::vector<int64_t>{1}));
  EXPECT_EQ(std::get<report::Plot>(acceptance_by_position(series).drawing).panels[0].series.size(), 1u);
}

TEST(RoundTable, ErrorsNameLineAndColumn) {
  const std::string header = "round,drafted,tested,accepted,emitted\n";
  const auto error = [&](const std::string& text, const std::string& by = "") {
    const auto series = read(text, by);
    return series.ok() ? "" : series.status().message();
  };
  EXPECT_EQ(error(""), "rounds.csv: holds no line");
  EXPECT_NE(error("round,drafted\n2,1\n").find("has no column \"tested\""), std::string::npos);
  EXPECT_NE(error(header + "2,1,1,1,2\n", "label").find("has no column \"label\""), std::string::npos);
  EXPECT_NE(error(header + "2,1,1,1\n").find("rounds.csv:2: has another number"), std::string::npos);
  EXPECT_NE(error(header + "2,1,1,1,2\n2,x,1,1,2\n").find("rounds.csv:3: a count"), std::string::npos);
  EXPECT_NE(error(header + "2,1,2,1,2\n").find("fit no round"), std::string::npos);
  EXPECT_NE(error(header + "2,99999999,1,1,2\n").find("fit no round"), std::string::npos);
  EXPECT_NE(error(header + "1,0,0,0,1\n").find("holds no round after a prompt"), std::string::npos);
}

}  // namespace
}  // namespace outrider
