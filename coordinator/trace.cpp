#include "coordinator/trace.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

namespace outrider {
namespace {

using Json = nlohmann::json;

// Microseconds since the first round, as the format wants them.
class SpanWriter {
 public:
  SpanWriter(std::ofstream& file, Clock::time_point zero) : file_(file), zero_(zero) {}

  void span(std::string_view name, const RoundDone& round, Clock::time_point begin, Clock::time_point end) {
    if (end <= begin) return;
    write({{"name", name},
           {"cat", "round"},
           {"ph", "X"},
           {"pid", 1},
           {"tid", round.request.value()},
           {"ts", microseconds(begin - zero_)},
           {"dur", microseconds(end - begin)},
           {"args",
            {{"round", round.round.value()},
             {"base", round.base.value()},
             {"step", round.step},
             {"gamma", round.gamma},
             {"drafted", round.drafted},
             {"accepted_count", round.accepted_count},
             {"emitted", round.emitted}}}});
  }
  void write(const Json& event) {
    file_ << (first_ ? "\n" : ",\n") << event.dump();
    first_ = false;
  }

 private:
  static double microseconds(Clock::duration duration) {
    return std::chrono::duration<double, std::micro>(duration).count();
  }
  std::ofstream& file_;
  Clock::time_point zero_;
  bool first_ = true;
};

// The worker reports only how long it was busy, so both ways of the wire get an equal share of the rest.
void write_round(const RoundDone& round, SpanWriter* out) {
  const auto commit =
      std::min<Clock::duration>(std::chrono::nanoseconds(round.commit_ns), round.done_at - round.planned_at);
  if (round.gamma > 0) {
    const Clock::duration waited = round.decided_at - round.begun_at;
    const auto busy = std::min<Clock::duration>(std::chrono::nanoseconds(round.draft_ns), waited);
    const auto draft_begin = round.begun_at + (waited - busy) / 2;
    out->span("transfer", round, round.begun_at, draft_begin);
    out->span("draft", round, draft_begin, draft_begin + busy);
    out->span("transfer", round, draft_begin + busy, round.decided_at);
  }
  out->span("wait", round, round.decided_at, round.planned_at);
  out->span("verify", round, round.planned_at, round.done_at - commit);
  out->span("commit", round, round.done_at - commit, round.done_at);
}

}  // namespace

void Trace::add(const RoundDone& round) {
  if (rounds_.size() < max_rounds_)
    rounds_.push_back(round);
  else
    ++dropped_;
}

Status Trace::write(const std::filesystem::path& path) const {
  const std::filesystem::path temporary = path.string() + ".tmp";
  std::ofstream file(temporary);
  if (!file) return not_found(fmt::format("trace file {}: cannot be written", temporary.string()));
  Clock::time_point zero = Clock::time_point::max();
  for (const RoundDone& round : rounds_) zero = std::min(zero, round.begun_at);
  file << "{\"displayTimeUnit\":\"ms\",\"otherData\":" << Json{{"dropped_rounds", dropped_}}.dump()
       << ",\"traceEvents\":[";
  SpanWriter writer(file, zero);
  writer.write({{"name", "process_name"}, {"ph", "M"}, {"pid", 1}, {"args", {{"name", "outrider"}}}});
  for (const RoundDone& round : rounds_) write_round(round, &writer);
  file << "\n]}\n";
  file.close();
  if (!file)
    return resource_exhausted(
        fmt::format("trace file {}: writing failed; is the disk full?", temporary.string()));
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) return not_found(fmt::format("trace file {}: {}", path.string(), error.message()));
  return {};
}

}  // namespace outrider
