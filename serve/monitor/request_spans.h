// The spans of one request in OpenTelemetry's terms, as OTLP's JSON: the request, its wait for a place, its
// prefill, and its rounds with their drafts and verifications. Attributes named gen_ai.* follow
// OpenTelemetry's semantic conventions for generative AI; ours begin with outrider.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "coordinator/rounds/events.h"
#include "serve/monitor/trace_parent.h"

namespace outrider {

struct TracedRound {
  Clock::time_point begun_at, decided_at, planned_at, done_at;
  int32_t gamma = 0, drafted = 0, accepted = 0, emitted = 0, group = 0;
  int64_t draft_ns = 0;  // busy time of the draft worker
};

struct TracedRequest {
  static constexpr size_t kMaxRounds = 256;  // further ones are counted only

  // From its beginning.
  TraceParent parent;     // span_id empty: it begins the trace
  std::string operation;  // gen_ai.operation.name
  std::string model, request_id;
  size_t choice = 0;
  int64_t max_tokens = 0;
  double temperature = 0, top_p = 0;
  // From the engine.
  FinishReason reason = FinishReason::kStop;
  std::string error;
  Clock::time_point submitted_at;
  std::optional<Clock::time_point> begun_at, first_token_at, finished_at;
  int64_t prompt_tokens = 0, cached_tokens = 0, emitted = 0, drafted = 0, accepted = 0;
  std::vector<TracedRound> rounds;
  int64_t rounds_left_out = 0;
  int64_t clock_offset_ns = 0;  // from Clock to nanoseconds since 1970

  void add(const RoundDone& round);
  void finish(const Finish& finish);
};

// An array of spans. `random`: 64 random bits at each call.
nlohmann::json spans_of(const TracedRequest& request, const std::function<uint64_t()>& random);
// An upper bound of the number of spans that spans_of() writes.
size_t most_spans(const TracedRequest& request);
// The body of a POST to /v1/traces.
nlohmann::json export_request(const std::map<std::string, std::string>& resource, nlohmann::json spans);

}  // namespace outrider
