#include "lab/study/timeline.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace outrider {
namespace {

using Json = nlohmann::json;

Json span(const char* name, int request, int base, int step, double from, double to, int drafted,
          int emitted) {
  return {{"name", name},
          {"ph", "X"},
          {"tid", request},
          {"ts", from},
          {"dur", to - from},
          {"args",
           {{"base", base},
            {"step", step},
            {"drafted", drafted},
            {"accepted_count", drafted},
            {"emitted", emitted}}}};
}

// Two texts; microseconds.
Json trace() {
  return {{"otherData", {{"dropped_rounds", 3}}},
          {"traceEvents",
           {{{"name", "process_name"}, {"ph", "M"}},
            span("verify", 1, 10, 0, 0, 1000, 0, 1),
            span("verify", 2, 10, 0, 0, 1000, 0, 1),
            span("draft", 1, 11, 1, 1000, 2000, 2, 3),
            span("verify", 1, 11, 1, 2000, 4000, 2, 3),
            span("transfer", 1, 11, 1, 4000, 5000, 2, 3),
            span("prepare", 1, 14, 2, 2000, 6000, 1, 2),
            span("draft", 1, 14, 2, 6000, 6500, 1, 2),
            span("verify", 1, 14, 2, 7000, 9000, 1, 2)}}};
}

TEST(Timeline, ATraceIsCondensedToRoundsAndWork) {
  const Timeline t = timeline_of(Json::parse(condensed_trace(trace()).dump()));
  EXPECT_EQ(t.dropped, 3);
  ASSERT_EQ(t.rounds.size(), 4u);
  EXPECT_TRUE(t.rounds[0].first && t.rounds[1].first);
  EXPECT_EQ(t.rounds[2].drafted, 2);
  EXPECT_DOUBLE_EQ(t.rounds[2].end_ms, 5);  // with what followed the verification
  EXPECT_EQ(t.verify.size(), 3u);           // one per pass, however many texts are in it
  EXPECT_EQ(t.draft.size(), 2u);
  EXPECT_EQ(t.prepare.size(), 1u);
  EXPECT_DOUBLE_EQ(t.end_ms(), 9);
}

TEST(Timeline, GapsInsideABurstAreZero) {
  const Timeline t = timeline_of(condensed_trace(trace()));
  EXPECT_EQ(t.gaps_ms(), (std::vector<double>{0, 0, 0, 4, 4}));
}

TEST(Timeline, WorkIsCountedOnceHoweverManyDoIt) {
  const Timeline t = timeline_of(condensed_trace(trace()));
  EXPECT_DOUBLE_EQ(covered_share({&t.verify}, {0, 10}), 0.5);
  EXPECT_DOUBLE_EQ(covered_share({&t.draft, &t.prepare}, {0, 10}), 0.55);
  EXPECT_DOUBLE_EQ(covered_share({&t.draft, &t.verify, &t.prepare}, {2, 6}), 1);
  EXPECT_DOUBLE_EQ(covered_share({}, {2, 6}), 0);
}

TEST(Timeline, AStretchOfTheMiddleStartsWithARound) {
  const Timeline t = timeline_of(condensed_trace(trace()));
  EXPECT_DOUBLE_EQ(t.middle(2).begin_ms, 5);
  EXPECT_DOUBLE_EQ(t.middle(2).end_ms, 7);
  EXPECT_DOUBLE_EQ(t.middle(100).begin_ms, 1);
}

TEST(Timeline, ARecordWithoutOneIsEmpty) {
  const Timeline t = timeline_of(Json());
  EXPECT_TRUE(t.rounds.empty());
  EXPECT_TRUE(t.gaps_ms().empty());
  EXPECT_EQ(t.end_ms(), 0);
}

}  // namespace
}  // namespace outrider
