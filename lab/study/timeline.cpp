#include "lab/study/timeline.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxRounds = 4096;  // of a run; a figure shows no more

using RoundKey = std::pair<int64_t, int64_t>;  // request and base

struct SpannedRound {
  int64_t drafted = 0, accepted = 0, emitted = 0;
  double end_us = 0;
};

void append(Json& column, double begin_us, double end_us) {
  column.push_back(std::llround(begin_us));
  column.push_back(std::llround(end_us));
}

std::vector<Interval> intervals(const Json& column) {
  std::vector<Interval> out;
  for (size_t i = 0; i + 1 < column.size(); i += 2)
    out.push_back({column[i].get<double>() * 1e-3, column[i + 1].get<double>() * 1e-3});
  std::sort(out.begin(), out.end(), [](Interval a, Interval b) { return a.begin_ms < b.begin_ms; });
  return out;
}

Json column_of(const Json& condensed, const char* name) { return condensed.value(name, Json::array()); }

}  // namespace

// Rounds are the asynchronous slices of that name, one after the other within a request; what was worked on
// them tells its request and base, and a pass its step.
Json condensed_trace(const Json& trace) {
  std::map<RoundKey, SpannedRound> rounds;
  std::map<std::string, RoundKey> open;  // by request
  std::map<std::string, Json> busy{
      {"draft", Json::array()}, {"prepare", Json::array()}, {"verify", Json::array()}};
  std::map<int64_t, std::pair<double, double>> passes;  // the target's part, by step
  int64_t dropped = trace.value(Json::json_pointer("/otherData/dropped_rounds"), int64_t{0});
  const Json events = trace.value("traceEvents", Json::array());
  for (const Json& event : events) {
    if (event.value("name", "") != "round") continue;
    const std::string id = event.at("id");
    if (event.at("ph") == "e") {
      if (const auto round = rounds.find(open[id]); round != rounds.end())
        round->second.end_us = event.at("ts");
      continue;
    }
    const Json& args = event.at("args");
    open[id] = {args.at("request"), args.at("base")};
    if (rounds.size() == kMaxRounds && !rounds.contains(open[id])) {
      ++dropped;
      continue;
    }
    rounds[open[id]] = {args.at("drafted"), args.at("accepted_count"), args.at("emitted"), 0};
    passes[args.at("step").get<int64_t>()] = {0, 0};
  }
  for (const Json& event : events) {
    if (event.value("ph", "") != "X") continue;
    const Json& args = event.at("args");
    const std::string name = event.at("name");
    const double begin = event.at("ts"), end = begin + event.at("dur").get<double>();
    if (name == "draft" || name == "prepare") {
      if (rounds.contains({args.at("request"), args.at("base")})) append(busy[name], begin, end);
    } else if (name == "verify" || name == "commit") {
      const auto pass = passes.find(args.at("step").get<int64_t>());
      if (pass == passes.end()) continue;
      auto& span = pass->second;
      span = span.second > 0 ? std::pair(std::min(span.first, begin), std::max(span.second, end))
                             : std::pair(begin, end);
    }
  }
  for (const auto& [step, span] : passes)
    if (span.second > span.first) append(busy["verify"], span.first, span.second);
  Json out{{"dropped", dropped},
           {"draft", busy["draft"]},
           {"prepare", busy["prepare"]},
           {"verify", busy["verify"]}};
  for (const auto& [key, round] : rounds) {
    out["request"].push_back(key.first);
    out["drafted"].push_back(round.drafted);
    out["accepted"].push_back(round.accepted);
    out["emitted"].push_back(round.emitted);
    out["end_us"].push_back(std::llround(round.end_us));
  }
  return out;
}

Timeline timeline_of(const Json& condensed) {
  Timeline out;
  if (!condensed.is_object()) return out;
  const Json request = column_of(condensed, "request"), drafted = column_of(condensed, "drafted"),
             accepted = column_of(condensed, "accepted"), emitted = column_of(condensed, "emitted"),
             end_us = column_of(condensed, "end_us");
  std::set<int64_t> seen;
  for (size_t i = 0; i < end_us.size(); ++i)
    out.rounds.push_back({.request = request.at(i),
                          .drafted = drafted.at(i),
                          .accepted = accepted.at(i),
                          .emitted = emitted.at(i),
                          .first = seen.insert(request.at(i).get<int64_t>()).second,
                          .end_ms = end_us.at(i).get<double>() * 1e-3});
  std::stable_sort(out.rounds.begin(), out.rounds.end(),
                   [](const TimedRound& a, const TimedRound& b) { return a.end_ms < b.end_ms; });
  out.draft = intervals(column_of(condensed, "draft"));
  out.prepare = intervals(column_of(condensed, "prepare"));
  out.verify = intervals(column_of(condensed, "verify"));
  out.dropped = condensed.value("dropped", int64_t{0});
  return out;
}

std::vector<double> Timeline::gaps_ms() const {
  std::vector<double> gaps;
  std::map<int64_t, double> last;
  for (const TimedRound& round : rounds) {
    if (round.emitted == 0) continue;
    if (const auto before = last.find(round.request); before != last.end())
      gaps.push_back(round.end_ms - before->second);
    gaps.insert(gaps.end(), static_cast<size_t>(round.emitted - 1), 0.0);
    last[round.request] = round.end_ms;
  }
  std::sort(gaps.begin(), gaps.end());
  return gaps;
}

Interval Timeline::middle(double length_ms) const {
  const double begin = std::max(0.0, (end_ms() - length_ms) / 2);
  // From the start of a round: figures that begin alike compare better.
  const auto round = std::lower_bound(rounds.begin(), rounds.end(), begin,
                                      [](const TimedRound& r, double at) { return r.end_ms < at; });
  const double from = round == rounds.end() ? begin : round->end_ms;
  return {from, from + length_ms};
}

double covered_share(const std::vector<const std::vector<Interval>*>& lists, Interval within) {
  std::vector<Interval> all;
  for (const auto* list : lists)
    for (const Interval& span : *list)
      if (span.end_ms > within.begin_ms && span.begin_ms < within.end_ms)
        all.push_back({std::max(span.begin_ms, within.begin_ms), std::min(span.end_ms, within.end_ms)});
  std::sort(all.begin(), all.end(), [](Interval a, Interval b) { return a.begin_ms < b.begin_ms; });
  double covered = 0, reached = within.begin_ms;
  for (const Interval& span : all) {
    covered += std::max(0.0, span.end_ms - std::max(reached, span.begin_ms));
    reached = std::max(reached, span.end_ms);
  }
  const double length = within.end_ms - within.begin_ms;
  return length > 0 ? covered / length : 0;
}

}  // namespace outrider
