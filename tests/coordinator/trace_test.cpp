#include "coordinator/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace outrider {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

RoundDone round_at(int64_t begin_ms, uint64_t request = 3, uint64_t step = 5) {
  const Clock::time_point begin{milliseconds(begin_ms)};
  return {.request = SequenceId(request),
          .round = Round(2),
          .base = Position(7),
          .step = step,
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

json written(const Trace& trace) {
  std::FILE* const file = std::tmpfile();
  trace.write(file);
  std::rewind(file);
  json document = json::parse(file);
  std::fclose(file);
  return document["traceEvents"];
}

struct Slice {
  double begin, end;
  std::string name;
};
using Lane = std::pair<int, int>;  // pid, tid

std::map<Lane, std::vector<Slice>> slices_of(const json& events) {
  std::map<Lane, std::vector<Slice>> out;
  for (const json& e : events)
    if (e["ph"] == "X")
      out[{e["pid"], e["tid"]}].push_back(
          {e["ts"], e["ts"].get<double>() + e["dur"].get<double>(), e["name"]});
  for (auto& [lane, slices] : out)
    std::sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) { return a.begin < b.begin; });
  return out;
}

constexpr double kNanosecond = 1e-3;

// The rules of the Trace Event Format that a viewer relies on.
void expect_valid(const json& events) {
  std::set<int> processes;
  std::set<Lane> lanes;
  for (const json& e : events) {
    if (e["name"] == "process_name") {
      EXPECT_TRUE(processes.insert(e["pid"].get<int>()).second);
    }
    if (e["name"] == "thread_name") {
      EXPECT_TRUE(lanes.insert(Lane{e["pid"].get<int>(), e["tid"].get<int>()}).second);
    }
  }
  const auto slices = slices_of(events);
  for (const auto& [lane, own] : slices)
    for (size_t i = 1; i < own.size(); ++i)
      EXPECT_GE(own[i].begin, own[i - 1].end - kNanosecond) << own[i].name << " overlaps " << own[i - 1].name;
  std::map<std::string, std::vector<std::pair<std::string, double>>> open;  // begun asynchronous slices
  std::map<int64_t, std::vector<json>> arrows;
  for (const json& e : events) {
    const std::string phase = e["ph"];
    ASSERT_TRUE(std::string("MXbesfC").find(phase) != std::string::npos) << e;
    EXPECT_TRUE(processes.contains(e["pid"])) << e;
    if (phase == "M") continue;
    EXPECT_TRUE(std::isfinite(e["ts"].get<double>())) << e;
    if (phase == "X") {
      EXPECT_GT(e["dur"], 0) << e;
      EXPECT_TRUE(lanes.contains({e["pid"], e["tid"]})) << e;
    } else if (phase == "b" || phase == "e") {
      auto& stack = open[e["cat"].get<std::string>() + e["id"].get<std::string>()];
      if (phase == "b") {
        if (!stack.empty()) {
          EXPECT_GE(e["ts"].get<double>(), stack.back().second - kNanosecond) << e;
        }
        stack.emplace_back(e["name"], e["ts"]);
      } else {
        ASSERT_FALSE(stack.empty()) << e;
        EXPECT_EQ(stack.back().first, e["name"]) << "an end of another than the last begun";
        EXPECT_GE(e["ts"].get<double>(), stack.back().second) << e;
        stack.pop_back();
      }
    } else if (phase == "C") {
      for (const auto& [what, value] : e["args"].items()) EXPECT_TRUE(value.is_number()) << e;
    } else {
      arrows[e["id"]].push_back(e);
    }
  }
  for (const auto& [id, stack] : open) EXPECT_TRUE(stack.empty()) << id << " never ends";
  for (const auto& [id, ends] : arrows) {
    ASSERT_EQ(ends.size(), 2u);
    EXPECT_EQ(ends[0]["ph"], "s");
    EXPECT_EQ(ends[1]["ph"], "f");
    EXPECT_EQ(ends[1]["bp"], "e");
    EXPECT_LE(ends[0]["ts"], ends[1]["ts"]);
    for (const json& e : ends) {
      const double at = e["ts"];
      const auto lane = slices.find({e["pid"], e["tid"]});
      ASSERT_NE(lane, slices.end());
      EXPECT_TRUE(std::any_of(lane->second.begin(), lane->second.end(), [&](const Slice& s) {
        return s.begin <= at && at <= s.end;
      })) << "an arrow hangs in the air";
    }
  }
}

size_t count(const json& events, const char* name, const char* phase) {
  return static_cast<size_t>(std::count_if(
      events.begin(), events.end(), [&](const json& e) { return e["name"] == name && e["ph"] == phase; }));
}

TEST(Trace, PhasesOfARoundCoverItByTheCoordinatorsClock) {
  Trace trace;
  trace.add(round_at(100), 9);
  const json events = written(trace);
  expect_valid(events);
  std::vector<std::string> names;
  double reached = 0;
  for (const json& e : events) {
    if (e["ph"] != "b" || e["pid"] != 1) continue;
    names.push_back(e["name"]);
    if (names.size() > 2) {
      EXPECT_NEAR(e["ts"].get<double>(), reached, 1e-6);
    }
    if (names.size() == 3) reached = 10'000;
    if (names.size() == 4) reached = 12'000;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"request 3", "round", "waits for its draft", "waits for a pass",
                                             "waits for the verdict"}));
  for (const json& e : events)
    if (e["ph"] == "C" && e["name"] == "requests in the queue") {
      EXPECT_EQ(e["args"]["requests"], 9);
    }
  EXPECT_EQ(count(events, "gamma", "C"), 1u);
  EXPECT_EQ(count(events, "acceptance", "C"), 1u);
}

TEST(Trace, APassIsDrawnOnceAndEveryDraftPointsAtIt) {
  Trace trace;
  for (const uint64_t request : {3, 4, 5}) trace.add(round_at(0, request));
  const json events = written(trace);
  expect_valid(events);
  EXPECT_EQ(count(events, "verify", "X"), 1u);
  EXPECT_EQ(count(events, "commit", "X"), 1u);
  EXPECT_EQ(count(events, "pass of 3 texts", "X"), 1u);
  EXPECT_EQ(count(events, "draft", "X"), 3u);
  EXPECT_EQ(count(events, "draft to verdict", "s"), 3u);
  // Drafted at the same time by one worker: on lanes that do not overlap.
  EXPECT_EQ(slices_of(events).size(), 5u);
}

TEST(Trace, WhatIsAssumedSaysSo) {
  Trace trace;
  trace.add(round_at(0));
  for (const json& e : written(trace)) {
    const bool measured = e["pid"] == 1;
    if (e["ph"] == "X" || (e["ph"] == "b" && !measured)) {
      EXPECT_EQ(e["args"].contains("placed"), !measured) << e;
    }
  }
}

TEST(Trace, WorkersHaveLanesOfTheirOwn) {
  Trace trace;
  for (const uint64_t request : {3, 4, 5}) {
    const RoundDone round = round_at(0, request);
    trace.note_draft(round.request, request == 5 ? Round(1) : round.round, PeerId{70 + request});
    trace.add(round);
  }
  std::set<std::string> names;
  for (const json& e : written(trace))
    if (e["name"] == "thread_name") names.insert(e["args"]["name"]);
  EXPECT_TRUE(names.contains("draft worker 1") && names.contains("draft worker 2"));
  EXPECT_FALSE(names.contains("draft worker 3")) << "by a draft of another round";
  EXPECT_TRUE(names.contains("some draft worker"));
  EXPECT_TRUE(names.contains("target rank 0, which leads"));
}

// A worker's word about its own time cannot stretch a span beyond the round.
TEST(Trace, ReportedTimesAreClamped) {
  for (const int64_t ns : {int64_t{1} << 60, int64_t{-5}}) {
    Trace trace;
    RoundDone round = round_at(0);
    round.draft_ns = round.target_ns = round.commit_ns = ns;
    trace.add(round);
    const json events = written(trace);
    expect_valid(events);
    for (const auto& [lane, slices] : slices_of(events)) EXPECT_LE(slices.back().end, 20'000.001);
  }
}

// Drafting ahead starts at the draft before it.
TEST(Trace, PreparationStartsAtTheDraftBeforeIt) {
  Trace trace;
  trace.add(round_at(0));
  RoundDone second = round_at(20, 3, 6);
  second.prepare_ns = 7'000'000;
  trace.add(second);
  const json events = written(trace);
  expect_valid(events);
  int prepared = 0;
  for (const json& event : events) {
    if (event["name"] != "prepare") continue;
    ++prepared;
    EXPECT_NEAR(event["ts"].get<double>(), 10'000, 1e-6);
    EXPECT_NEAR(event["dur"].get<double>(), 7'000, 1e-6);
  }
  EXPECT_EQ(prepared, 1);
}

TEST(Trace, ARoundWithoutADraftHasNoneDrawn) {
  Trace trace;
  RoundDone plain = round_at(0);
  plain.gamma = plain.drafted = plain.accepted_count = 0;
  plain.draft_ns = 0;
  trace.add(plain);
  const json events = written(trace);
  expect_valid(events);
  EXPECT_EQ(count(events, "draft", "X"), 0u);
  EXPECT_EQ(count(events, "draft to verdict", "s"), 0u);
  EXPECT_EQ(count(events, "verify", "X"), 1u);
}

TEST(Trace, IsBounded) {
  Trace trace(2);
  for (int i = 0; i < 5; ++i) trace.add(round_at(i * 100, 3, static_cast<uint64_t>(i)));
  EXPECT_EQ(trace.dropped(), 3u);
  EXPECT_EQ(count(written(trace), "round", "b"), 2u);
}

TEST(Trace, OfNothingIsEmptyAndValid) { expect_valid(written(Trace())); }

}  // namespace
}  // namespace outrider
