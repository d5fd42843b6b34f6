// The page at /, and its numbers, for people who watch a server live.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "serve/engine/engine.h"
#include "serve/monitor/response_counts.h"

namespace outrider {

// The state's name, for people and programs.
const char* state_name(EngineState state);

// The name of a model's weights: files with other contents have another one. Empty: there are none.
std::string weights_name(uint64_t fingerprint);

struct StatusContext {
  std::string model, policy;
  int64_t max_num_seqs = 0, max_queued_requests = 0;
  double uptime_s = 0;
  std::string journal_fault;  // empty: none, or no journal
  const ResponseCounts& responses;
};

nlohmann::json status_json(const EngineNumbers& numbers, const EngineStatus& engine,
                           const StatusContext& context);
// The members of the run that are missing, in words.
std::vector<std::string> missing_members(const EngineNumbers& numbers, bool speculates);
// serve/monitor/status_page.html.
std::string_view status_page();

}  // namespace outrider
