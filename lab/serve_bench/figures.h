// Statistics of a load of requests, pooled over turns. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "lab/serve_bench/load_client.h"

namespace outrider {

// Nearest rank; 0 of none.
struct Percentiles {
  int64_t count = 0;
  double p50 = 0, p95 = 0, p99 = 0, mean = 0;
  static Percentiles of(std::vector<double> values);
};

// Latency limits of a useful answer.
struct Objective {
  double first_s = 0, per_token_s = 0;
  bool met_by(const RequestOutcome& outcome) const {
    return outcome.ok() && outcome.first_s <= first_s && outcome.per_token_s() <= per_token_s;
  }
};

struct LoadFigures {
  int64_t requests = 0, failed = 0, good = 0;  // good: met the objective
  std::map<std::string, int64_t> errors;
  double seconds = 0;  // from the first request to the last end, summed over turns
  int64_t tokens = 0, prompt_tokens = 0, draft_tokens = 0, accepted_tokens = 0;
  Percentiles first_s, gap_s, per_token_s, whole_s;
  // Requests whose server tells rounds have a list each, in vLLM's and AIPerf's form: a number for each round
  // with a draft.
  std::vector<std::vector<int64_t>> per_step_drafted, per_step_accepted;

  double tokens_per_second() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
  double goodput() const { return seconds > 0 ? static_cast<double>(good) / seconds : 0; }
  double good_share() const {
    return requests > 0 ? static_cast<double>(good) / static_cast<double>(requests) : 0;
  }
};

LoadFigures figures_of(std::span<const std::vector<RequestOutcome>> turns, const Objective& objective);
nlohmann::json json_of(const LoadFigures& figures);

}  // namespace outrider
