// Settings of programs that join a run from elsewhere: its address, keys, and retries; and what they tell.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/event_log.h"
#include "base/status.h"
#include "comm/transport.h"

namespace outrider {

struct JoinSettings {
  // Endpoints of the run: of its coordinator and, perhaps, of the one that takes its place.
  std::vector<std::string> connect;
  std::string curve_secret_key, server_key;  // files; both or none
  int retry_for_s = 60;                      // time without a coordinator until it gives up
  bool stay = false;                         // after the end of a job it waits for the next one
};

// Each attempt uses a new socket, so that it does not stay with a wrong address or a dead route.
constexpr std::chrono::milliseconds kJoiningConnectTimeout{1000};

Result<ZmqOptions> joining_options(const JoinSettings& settings);
// Whether a retry is useless after this error of a connection or a life.
bool is_final(const Status& status);
// The log's message after the end of a job.
std::string describe_end(const JoinSettings& settings);
// The pause before attempt n after a break, short at first. It includes a random part of up to a quarter, so
// that workers do not return all at once.
std::chrono::milliseconds pause_before(int attempt);

// The endpoints of --connect in turn: each attempt, and each life that ended, goes on to the next.
class JoinEndpoints {
 public:
  explicit JoinEndpoints(const JoinSettings& settings) : all_(settings.connect) {}
  const std::string& current() const { return all_[at_]; }
  void turn() { at_ = (at_ + 1) % all_.size(); }

 private:
  const std::vector<std::string>& all_;  // not empty
  size_t at_ = 0;
};

// Messages of such a program, with its name and number in front, and what they are about if it does several
// things. A quiet one tells nothing.
class JoiningMessages {
 public:
  JoiningMessages(const char* who, const JoinSettings& settings, bool quiet, std::string_view about = "");
  void tell(std::string_view text) const;
  void tell(LogLevel level, std::string_view event, std::string_view text) const;

 private:
  std::string who_, host_;
  bool quiet_;
};

}  // namespace outrider
