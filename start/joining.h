// What every program needs that joins a run from elsewhere: where it is, keys, and patience.
#pragma once

#include <chrono>
#include <string>

#include "base/status.h"
#include "comm/transport.h"

namespace outrider {

struct JoinSettings {
  std::string connect;                       // the endpoint that the run tells
  std::string curve_secret_key, server_key;  // files; both or none
  int retry_for_s = 60;                      // seconds without a coordinator until it gives up
};

// Each attempt is a new socket, so that a wrong address or a dead route is not held on to.
constexpr std::chrono::milliseconds kJoiningConnectTimeout{1000};

Result<ZmqOptions> joining_options(const JoinSettings& settings);
// Of a connection or a life that ended: the next one would end in the same way.
bool is_final(const Status& status);
// The pause before attempt n after a break, short at first, and up to a quarter more, so that those who join
// do not come back together.
std::chrono::milliseconds pause_before(int attempt);

}  // namespace outrider
