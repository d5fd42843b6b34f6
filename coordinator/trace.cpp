#include "coordinator/trace.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/json_text.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr int kRounds = 1, kAhead = 2;  // "processes": a track of each per request

// Microseconds since the first round, as the format wants them.
class SpanWriter {
 public:
  SpanWriter(std::FILE* file, Clock::time_point zero) : file_(file), zero_(zero) {}

  void span(std::string_view name, const RoundDone& round, Clock::time_point begin, Clock::time_point end,
            int process = kRounds) {
    if (end <= begin) return;
    Json args{{"round", round.round.value()}, {"base", round.base.value()},
              {"step", round.step},           {"gamma", round.gamma},
              {"drafted", round.drafted},     {"accepted_count", round.accepted_count},
              {"emitted", round.emitted}};
    if (!round.parents.empty()) {
      args["parents"] = round.parents;
      args["path"] = round.path;
    }
    write({{"name", name},
           {"cat", "round"},
           {"ph", "X"},
           {"pid", process},
           {"tid", round.request.value()},
           {"ts", microseconds(begin - zero_)},
           {"dur", microseconds(end - begin)},
           {"args", std::move(args)}});
  }
  void name_process(int process, std::string_view name) {
    write({{"name", "process_name"}, {"ph", "M"}, {"pid", process}, {"args", {{"name", name}}}});
  }

 private:
  void write(const Json& event) {
    std::fputs(first_ ? "\n" : ",\n", file_);
    std::fputs(json_text(event).c_str(), file_);
    first_ = false;
  }
  static double microseconds(Clock::duration duration) {
    return std::chrono::duration<double, std::micro>(duration).count();
  }
  std::FILE* file_;
  Clock::time_point zero_;
  bool first_ = true;
};

// Peers report only how long they were busy, so both ways of the wire get an equal share of the rest.
struct Busy {
  Clock::time_point begin, end;
};
Busy busy_within(Clock::time_point from, Clock::time_point to, int64_t busy_ns) {
  const auto busy = std::min<Clock::duration>(std::chrono::nanoseconds(busy_ns), to - from);
  const auto begin = from + (to - from - busy) / 2;
  return {begin, begin + busy};
}

void write_round(const RoundDone& round, SpanWriter* out) {
  if (round.gamma > 0) {
    const Busy draft = busy_within(round.begun_at, round.decided_at, round.draft_ns);
    out->span("transfer", round, round.begun_at, draft.begin);
    out->span("draft", round, draft.begin, draft.end);
    out->span("transfer", round, draft.end, round.decided_at);
  }
  out->span("wait", round, round.decided_at, round.planned_at);
  const Busy target = busy_within(round.planned_at, round.done_at, round.target_ns);
  const auto commit =
      std::min<Clock::duration>(std::chrono::nanoseconds(round.commit_ns), target.end - target.begin);
  out->span("transfer", round, round.planned_at, target.begin);
  out->span("verify", round, target.begin, target.end - commit);
  out->span("commit", round, target.end - commit, target.end);
  out->span("transfer", round, target.end, round.done_at);
}

// A worker prepares from its last draft on until it is asked again; over links that is longer than it looks
// from here, by as much at either end.
void write_preparation(const RoundDone& round, Clock::time_point last_draft, SpanWriter* out) {
  const Clock::duration busy = std::chrono::nanoseconds(round.prepare_ns);
  const Clock::duration late = std::max(Clock::duration(0), busy - (round.begun_at - last_draft));
  out->span("prepare", round, last_draft - late / 2, last_draft - late / 2 + busy, kAhead);
}

}  // namespace

void Trace::add(const RoundDone& round) {
  if (rounds_.size() < max_rounds_)
    rounds_.push_back(round);
  else
    ++dropped_;
}

void Trace::write(std::FILE* file) const {
  Clock::time_point zero = Clock::time_point::max();
  for (const RoundDone& round : rounds_) zero = std::min(zero, round.begun_at);
  const std::string other = json_text(Json{{"dropped_rounds", dropped_}});
  std::fprintf(file, "{\"displayTimeUnit\":\"ms\",\"otherData\":%s,\"traceEvents\":[", other.c_str());
  SpanWriter writer(file, zero);
  writer.name_process(kRounds, "outrider");
  writer.name_process(kAhead, "drafting ahead");
  std::map<SequenceId, Clock::time_point> last_draft;
  for (const RoundDone& round : rounds_) {
    write_round(round, &writer);
    const auto before = last_draft.find(round.request);
    if (before != last_draft.end()) write_preparation(round, before->second, &writer);
    last_draft[round.request] = round.decided_at;
  }
  std::fputs("\n]}\n", file);
}

}  // namespace outrider
