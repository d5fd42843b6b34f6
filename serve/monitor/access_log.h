// Writes a line of JSON for each answer, on a thread of its own: a file that accepts nothing, such as a pipe
// without a reader, delays no answer.
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
  // Limit of waiting lines; further ones are dropped and counted.
  static constexpr size_t kMaxWaiting = 8192;

  // Null without a name; "-" is standard error. Appends, and can be read while it is written; an error names
  // --access-log.
  static Result<std::unique_ptr<AccessLog>> open(const std::string& file);
  // Writes the waiting lines, for at most a second.
  ~AccessLog();

  // Never waits. Thread-safe.
  void write(const HttpRecord& record);
  // The number of lines that were dropped, because too many waited or the file refused them. After each gap
  // the next written line is {"dropped": N}.
  int64_t dropped() const;

 private:
  struct State;
  explicit AccessLog(std::shared_ptr<State> state);

  const std::shared_ptr<State> state_;  // shared with the thread, in case a write never returns
  std::jthread thread_;
};

}  // namespace outrider
