#include "lab/study/timeline.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace outrider {
namespace {

using Json = nlohmann::json;

Json slice(const char* name, double from, double to, Json args) {
  return {{"name", name},           {"ph", "X"}, {"pid", 2}, {"tid", 1}, {"ts", from}, {"dur", to - from},
          {"args", std::move(args)}};
}

void add_round(Json& events, int request, int base, int step, double from, double to, int drafted,
               int emitted) {
  const std::string id = "request " + std::to_string(request);
  events.push_back({{"name", "round"},
                    {"ph", "b"},
                    {"id", id},
                    {"ts", from},
                    {"args",
                     {{"request", request},
                      {"base", base},
                      {"step", step},
                      {"drafted", drafted},
                      {"accepted_count", drafted},
                      {"emitted", emitted}}}});
  events.push_back({{"name", "round"}, {"ph", "e"}, {"id", id}, {"ts", to}});
}

// Two texts; microseconds.
Json trace() {
  Json events{{{"name", "process_name"}, {"ph", "M"}}};
  add_round(events, 1, 10, 0, 0, 1000, 0, 1);
  add_round(events, 2, 10, 0, 0, 1000, 0, 1);
  add_round(events, 1, 11, 1, 1000, 5000, 2, 3);
  add_round(events, 1, 14, 2, 5000, 9000, 1, 2);
  events.push_back(slice("verify", 0, 1000, {{"step", 0}}));
  events.push_back(slice("draft", 1000, 2000, {{"request", 1}, {"base", 11}}));
  events.push_back(slice("verify", 2000, 3500, {{"step", 1}}));
  events.push_back(slice("commit", 3500, 4000, {{"step", 1}}));
  events.push_back(slice("prepare", 2000, 6000, {{"request", 1}, {"base", 14}}));
  events.push_back(slice("draft", 6000, 6500, {{"request", 1}, {"base", 14}}));
  events.push_back(slice("verify", 7000, 9000, {{"step", 2}}));
  return {{"otherData", {{"dropped_rounds", 3}}}, {"traceEvents", std::move(events)}};
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
