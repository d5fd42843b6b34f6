#include "coordinator/trace_writer.h"

#include <algorithm>

#include "base/json_text.h"

namespace outrider {

double TraceWriter::microseconds(Clock::time_point at) const {
  return std::chrono::duration<double, std::micro>(at - zero_).count();
}

void TraceWriter::write(Json event) {
  std::fputs(first_ ? "\n" : ",\n", file_);
  std::fputs(json_text(event).c_str(), file_);
  first_ = false;
}

void TraceWriter::name_process(int process, std::string_view name) {
  write({{"name", "process_name"}, {"ph", "M"}, {"pid", process}, {"args", {{"name", name}}}});
  write({{"name", "process_sort_index"}, {"ph", "M"}, {"pid", process}, {"args", {{"sort_index", process}}}});
}

TraceWriter::Lane& TraceWriter::lane_for(int process, const std::string& name, TraceSpan span) {
  auto& lanes = by_name_[{process, name}];
  const auto free = std::find_if(lanes.begin(), lanes.end(),
                                 [&](const Lane& lane) { return lane.free_from <= span.begin; });
  if (free != lanes.end()) return *free;
  const std::string shown = lanes.empty() ? name : name + ", at the same time";
  lanes.push_back({++lanes_, {}});
  write(
      {{"name", "thread_name"}, {"ph", "M"}, {"pid", process}, {"tid", lanes_}, {"args", {{"name", shown}}}});
  write({{"name", "thread_sort_index"},
         {"ph", "M"},
         {"pid", process},
         {"tid", lanes_},
         {"args", {{"sort_index", lanes_}}}});
  return lanes.back();
}

std::optional<TraceWriter::Place> TraceWriter::slice(int process, const std::string& lane,
                                                     std::string_view name, TraceSpan span, Json args) {
  if (span.end <= span.begin) return std::nullopt;
  Lane& at = lane_for(process, lane, span);
  at.free_from = span.end;
  write({{"name", name},
         {"cat", "work"},
         {"ph", "X"},
         {"pid", process},
         {"tid", at.number},
         {"ts", microseconds(span.begin)},
         {"dur", std::chrono::duration<double, std::micro>(span.end - span.begin).count()},
         {"args", std::move(args)}});
  return Place{process, at.number, span.middle()};
}

void TraceWriter::arrow(const Place& from, const Place& to, std::string_view name) {
  if (to.middle < from.middle) return;  // with clocks that disagree; arrows must point forward
  const int64_t id = ++arrows_;
  const auto write_end = [&](const Place& place, const char* phase) {
    Json event{{"name", name},
               {"cat", "flow"},
               {"ph", phase},
               {"id", id},
               {"pid", place.process},
               {"tid", place.lane},
               {"ts", microseconds(place.middle)}};
    if (*phase == 'f') event["bp"] = "e";  // binds to the slice around it
    write(std::move(event));
  };
  write_end(from, "s");
  write_end(to, "f");
}

void TraceWriter::begin(int process, const std::string& id, std::string_view name, Clock::time_point at,
                        Json args) {
  Json event{{"name", name}, {"cat", "round"},        {"ph", "b"}, {"id", id}, {"pid", process},
             {"tid", 0},     {"ts", microseconds(at)}};
  if (!args.is_null()) event["args"] = std::move(args);
  write(std::move(event));
}

void TraceWriter::end(int process, const std::string& id, std::string_view name, Clock::time_point at) {
  write({{"name", name},
         {"cat", "round"},
         {"ph", "e"},
         {"id", id},
         {"pid", process},
         {"tid", 0},
         {"ts", microseconds(at)}});
}

void TraceWriter::counter(int process, std::string_view name, std::string_view what, Clock::time_point at,
                          double value) {
  write({{"name", name},
         {"ph", "C"},
         {"pid", process},
         {"ts", microseconds(at)},
         {"args", {{std::string(what), value}}}});
}

}  // namespace outrider
