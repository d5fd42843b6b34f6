#include "coordinator/trace.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <nlohmann/json.hpp>

namespace outrider {
namespace {

using std::chrono::milliseconds;

RoundDone round_at(int64_t begin_ms) {
  const Clock::time_point begin{milliseconds(begin_ms)};
  return {.request = SequenceId(3),
          .round = Round(2),
          .base = Position(7),
          .step = 5,
          .gamma = 4,
          .drafted = 4,
          .accepted_count = 2,
          .emitted = 3,
          .draft_ns = 6'000'000,
          .target_ns = 5'000'000,
          .commit_ns = 1'000'000,
          .begun_at = begin,
          .decided_at = begin + milliseconds(10),
          .planned_at = begin + milliseconds(12),
          .done_at = begin + milliseconds(20)};
}

nlohmann::json written(const Trace& trace) {
  std::FILE* const file = std::tmpfile();
  trace.write(file);
  std::rewind(file);
  nlohmann::json document = nlohmann::json::parse(file);
  std::fclose(file);
  return document;
}

TEST(Trace, SpansOfARoundCoverItWithoutOverlap) {
  Trace trace;
  trace.add(round_at(100));
  std::vector<std::string> names;
  double end = 0;
  const nlohmann::json document = written(trace);
  for (const auto& event : document["traceEvents"]) {
    if (event["ph"] != "X") continue;
    names.push_back(event["name"]);
    EXPECT_NEAR(event["ts"].get<double>(), end, 1e-6);
    end = event["ts"].get<double>() + event["dur"].get<double>();
    EXPECT_EQ(event["tid"], 3);
    EXPECT_EQ(event["args"]["accepted_count"], 2);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"transfer", "draft", "transfer", "wait", "transfer", "verify",
                                             "commit", "transfer"}));
  EXPECT_NEAR(end, 20'000, 1e-6);  // microseconds
}

// A worker's word about its own time cannot stretch a span beyond the round.
TEST(Trace, ReportedTimesAreClamped) {
  Trace trace;
  RoundDone round = round_at(0);
  round.draft_ns = round.target_ns = round.commit_ns = int64_t{1} << 60;
  trace.add(round);
  const nlohmann::json document = written(trace);
  ASSERT_GT(document["traceEvents"].size(), 2u);
  for (const auto& event : document["traceEvents"]) {
    if (event["ph"] == "X") {
      EXPECT_LE(event["ts"].get<double>() + event["dur"].get<double>(), 20'000.001);
    }
  }
}

// Drafting ahead overlaps the verification before it, so it has a track of its own.
TEST(Trace, PreparationStartsAtTheDraftBeforeIt) {
  Trace trace;
  trace.add(round_at(0));
  RoundDone second = round_at(20);
  second.prepare_ns = 7'000'000;
  trace.add(second);
  const nlohmann::json document = written(trace);
  int prepared = 0;
  for (const auto& event : document["traceEvents"]) {
    if (event["name"] != "prepare") continue;
    ++prepared;
    EXPECT_NEAR(event["ts"].get<double>(), 10'000, 1e-6);
    EXPECT_NEAR(event["dur"].get<double>(), 7'000, 1e-6);
    EXPECT_NE(event["pid"], 1);
  }
  EXPECT_EQ(prepared, 1);
}

TEST(Trace, IsBounded) {
  Trace trace(2);
  for (int i = 0; i < 5; ++i) trace.add(round_at(i * 100));
  EXPECT_EQ(trace.dropped(), 3u);
  EXPECT_EQ(written(trace)["otherData"]["dropped_rounds"], 3);
}

}  // namespace
}  // namespace outrider
