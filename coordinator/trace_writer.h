// Writes a Chrome trace (the "Trace Event Format" of Chromium, which Perfetto reads): lanes of processes with
// slices, nested asynchronous slices, arrows, counters. Its rules are kept here: every lane and process is
// named, slices of a lane do not overlap, asynchronous slices end in the order opposite to their begin, an
// arrow starts and ends inside a slice.
#pragma once

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/transport.h"

namespace outrider {

struct TraceSpan {
  Clock::time_point begin, end;
  Clock::time_point middle() const { return begin + (end - begin) / 2; }
};

class TraceWriter {
 public:
  using Json = nlohmann::json;
  // Where a slice was written.
  struct Place {
    int process = 0, lane = 0;
    Clock::time_point middle;
  };

  TraceWriter(std::FILE* file, Clock::time_point zero) : file_(file), zero_(zero) {}

  void name_process(int process, std::string_view name);
  // A complete slice on the lane `lane` of a process. What overlaps an earlier one goes to another lane of
  // that name, so that neither is drawn wrongly. Spans without length are left out.
  std::optional<Place> slice(int process, const std::string& lane, std::string_view name, TraceSpan span,
                             Json args);
  // Between slices that were written.
  void arrow(const Place& from, const Place& to, std::string_view name);
  // Asynchronous, for what overlaps by its nature. Within an `id` the last begun ends first.
  void begin(int process, const std::string& id, std::string_view name, Clock::time_point at, Json args = {});
  void end(int process, const std::string& id, std::string_view name, Clock::time_point at);
  void counter(int process, std::string_view name, std::string_view what, Clock::time_point at, double value);

 private:
  struct Lane {
    int number = 0;
    Clock::time_point free_from{};
  };
  Lane& lane_for(int process, const std::string& name, TraceSpan span);
  void write(Json event);
  double microseconds(Clock::time_point at) const;

  std::FILE* file_;
  Clock::time_point zero_;
  bool first_ = true;
  int lanes_ = 0;
  int64_t arrows_ = 0;
  std::map<std::pair<int, std::string>, std::vector<Lane>> by_name_;
};

}  // namespace outrider
