// When requests come and how long they are.
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

// "closed": all at once; "poisson:RATE"; "gamma:RATE/CV", inter-arrival times of that coefficient of
// variation; "azure:FILE[/SPEEDUP]", a trace of the Azure LLM inference data set
// (TIMESTAMP,ContextTokens,GeneratedTokens), which also gives the lengths. Sorted by time; the first one
// comes at 0.
Result<std::vector<SimulatedRequest>> make_arrivals(std::string_view text, int32_t requests,
                                                    int32_t prompt_tokens, int32_t output_tokens,
                                                    uint64_t seed);

}  // namespace outrider
