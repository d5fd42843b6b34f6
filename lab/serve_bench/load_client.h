// Sends requests to a server with OpenAI's API at planned moments, whether or not earlier ones are answered
// (an open loop), and records the arrival of each part of an answer. One thread; times are taken at this end.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace outrider {

struct HttpAddress {
  std::string host, port;
  std::string path;     // in front of every other, without a slash at its end
  std::string api_key;  // empty: none

  // "http://127.0.0.1:8000", with or without /v1 at its end. An error names what is wrong; TLS is a proxy's.
  static Result<HttpAddress> parse(const std::string& url);
};

struct PlannedRequest {
  double at_s = 0;   // after the beginning
  std::string body;  // of /v1/completions; must ask for a stream with usage
};

struct RequestOutcome {
  std::string error;                // empty: the whole answer came
  int status = 0;                   // of HTTP; 0: there was none
  double sent_s = 0;                // after the beginning
  double first_s = 0, whole_s = 0;  // after it was sent: the first text, and the end
  std::vector<double> gaps_s;       // between chunks with text; one may bring several tokens
  int64_t prompt_tokens = 0, tokens = 0;
  int64_t draft_tokens = 0, accepted_tokens = 0;  // if the server reports them
  std::vector<int64_t> step_drafted, step_accepted;  // by round with a draft, if the server reports them

  bool ok() const { return error.empty(); }
  // Mean time of a token behind the first one; 0 where there is none.
  double per_token_s() const {
    return tokens > 1 ? (whole_s - first_s) / static_cast<double>(tokens - 1) : 0;
  }
};

// In the order of the plan. `timeout_s`: of each request.
std::vector<RequestOutcome> run_load(const HttpAddress& server, std::span<const PlannedRequest> plan,
                                     double timeout_s);
// The body of a GET that is answered with 200.
Result<std::string> http_get(const HttpAddress& server, const std::string& path);

}  // namespace outrider
