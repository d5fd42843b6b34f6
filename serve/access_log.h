// A line of JSON for each answer, written by a thread of its own: a file that takes nothing, such as a pipe
// that no program reads, holds up no answer.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "base/status.h"
#include "serve/http/server.h"

namespace outrider {

std::string access_line(const HttpRecord& record, double seconds_since_1970);

class AccessLog {
 public:
  // Lines that wait; further ones are dropped and counted.
  static constexpr size_t kMostWaiting = 8192;

  // Null without a name; "-" is standard error. Appends, and can be read while it is written; an error names
  // --access-log.
  static Result<std::unique_ptr<AccessLog>> open(const std::string& file);
  // Writes what waits, for a second at most.
  ~AccessLog();

  // Never waits. Thread-safe.
  void write(const HttpRecord& record);
  // Lines that were not written, because too many waited or the file refused them. Each time that lines are
  // written again after some were dropped, a line {"dropped": N} stands before them.
  int64_t dropped() const;

 private:
  struct State;
  explicit AccessLog(std::shared_ptr<State> state);

  const std::shared_ptr<State> state_;  // the thread keeps it, should a write never return
  std::jthread thread_;
};

}  // namespace outrider
