// Arrival times and lengths of requests.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace outrider {

struct SimulatedRequest {
  double arrival_s = 0;
  int32_t prompt_tokens = 64;
  int32_t output_tokens = 128;
};

struct Arrivals {
  std::vector<SimulatedRequest> requests;  // in order of arrival
  // Closed loop: the number of clients, each with one request at a time. The first requests come at 0, each
  // other one `think_s` after the client's last answer. 0: open loop, every request comes at its own time.
  int32_t clients = 0;
  double think_s = 0;
};

// "burst": all at once; "closed:N[/THINK]": N clients, each asks again THINK seconds (0) after its last
// answer ended; "poisson:RATE"; "gamma:RATE/CV", inter-arrival times of that coefficient of variation;
// "azure:FILE[/SPEEDUP]", a trace of the Azure LLM inference data set
// (TIMESTAMP,ContextTokens,GeneratedTokens), which also gives the lengths. The first one comes at 0.
Result<Arrivals> make_arrivals(std::string_view text, int32_t requests, int32_t prompt_tokens,
                               int32_t output_tokens, uint64_t seed);

}  // namespace outrider
