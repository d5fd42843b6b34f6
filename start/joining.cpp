#include "start/joining.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <utility>

#include "base/printable.h"
#include "comm/endpoint.h"

namespace outrider {

Result<ZmqOptions> joining_options(const JoinSettings& settings) {
  ZmqOptions zmq;
  zmq.connect_timeout = kJoiningConnectTimeout;
  for (const std::string& endpoint : settings.connect)
    if (const Status status = check_endpoint(endpoint); !status.ok()) return status.in("--connect");
  if (settings.curve_secret_key.empty() != settings.server_key.empty())
    return invalid_argument(
        "--curve-secret-key and --server-key go together: our key, and the job's public one");
  if (settings.curve_secret_key.empty()) return zmq;
  auto own = read_curve_keys(settings.curve_secret_key);
  if (!own.ok()) return own.status().in("--curve-secret-key");
  auto server = read_public_keys(settings.server_key);
  if (!server.ok()) return server.status().in("--server-key");
  CurveKeys keys;
  keys.own = std::move(own).value();
  keys.server = server->front();
  zmq.curve = std::move(keys);
  return zmq;
}

bool is_final(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kMalformed;
}

std::string describe_end(const JoinSettings& settings) {
  if (!settings.stay) return "the job has ended";
  return fmt::format("the job has ended; waiting for the next one for {} s (--stay, --retry-for)",
                     settings.retry_for_s);
}

std::chrono::milliseconds pause_before(int attempt) {
  constexpr std::chrono::milliseconds kFirst{50}, kLongest{1000};
  const auto pause = std::min(kFirst * (int64_t{1} << std::min(attempt, 10)), kLongest);
  std::random_device random;
  return pause + pause * (random() % 256) / 1024;
}

JoiningMessages::JoiningMessages(const char* who, const JoinSettings& settings, bool quiet,
                                 std::string_view about)
    : who_(fmt::format("{} {}{}", who, getpid(), about.empty() ? "" : fmt::format(" ({})", about))),
      host_(fmt::format("{}", fmt::join(settings.connect, ","))),
      quiet_(quiet) {}

void JoiningMessages::tell(std::string_view text) const {
  if (!quiet_) tell_error(fmt::format("{}: {}", who_, text));
}

void JoiningMessages::tell(LogLevel level, std::string_view event, std::string_view text) const {
  if (!quiet_) log_event(level, event, fmt::format("{}: {}", who_, text), {{"host", host_}});
}

}  // namespace outrider
