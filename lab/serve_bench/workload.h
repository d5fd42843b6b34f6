// Which requests come when: arrivals and lengths of a trace or of chosen laws, prompts with shared
// beginnings. Pure: the same options give the same plan, whatever server it is for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace outrider {

struct ArrivalShape {
  double at_s = 0;  // at a rate of one request a second
  int64_t prompt_tokens = 0, output_tokens = 0;
};

struct WorkloadOptions {
  std::string trace;  // a file of Azure's traces (TIMESTAMP,ContextTokens,GeneratedTokens); empty: none
  // Without a trace: a Poisson process of arrivals, and the lengths of every request.
  int64_t prompt_tokens = 64, output_tokens = 64;
  double length_scale = 1;        // of a trace's lengths
  int64_t max_prompt_tokens = 0;  // longer ones are cut; 0: not
  int64_t max_output_tokens = 0;
  // The number of leading words of a prompt that its group shares; groups come at random. 0: none are shared.
  int64_t prefix_tokens = 0;
  int prefix_groups = 1;
  uint64_t seed = 1;
};

// So many requests, from the trace's first one on; their mean rate is one a second.
Result<std::vector<ArrivalShape>> arrivals_of(const WorkloadOptions& options, size_t count);
// Words, about one token each for common vocabularies, of request `index`.
std::string prompt_of(const WorkloadOptions& options, size_t index, int64_t tokens);

}  // namespace outrider
