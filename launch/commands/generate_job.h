// One run of a coordinator over the requests of `outrider generate`.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/status.h"
#include "comm/transport.h"
#include "coordinator/trace.h"
#include "requests/by_category.h"
#include "requests/finished_results.h"
#include "requests/output.h"
#include "requests/round_record.h"
#include "start/coordinator_run.h"
#include "start/make_coordinator.h"

namespace outrider {

// Everything one run of the coordinator needs besides its transport. What it refers to outlives it.
struct GenerateJob {
  const ClusterSettings& cluster;
  const Preparation& prepared;
  const std::vector<PromptRequest>& requests;
  const FinishedResults& finished;  // requests that need not run
  int workers = 0;       // draft workers of the run itself; none: plain decoding
  bool listens = false;  // others may join
};

struct GenerateResult {
  std::vector<Generated> generated;
  std::vector<Request> asked;           // later turns with their prompts
  std::vector<int64_t> asked_as;        // ids; 0: never asked
  std::vector<RequestResult> requests;  // that ran and got any text
  Totals totals;
  RecordedCosts costs;
  nlohmann::json metrics;
  Status status;
};

// Until all requests are finished or the run fails, which `status` tells. `output` and `trace` may be null;
// `error` says whether a role of the run has died. A signal ends a run at once, unless workers have joined
// that must be told.
GenerateResult run_generate_job(const GenerateJob& job, std::unique_ptr<Transport> transport, Output* output,
                                Trace* trace, const ErrorOf& error);

// The same, with every role as a thread of this process.
GenerateResult run_in_one_process(const GenerateJob& job, Output* output, Trace* trace);

}  // namespace outrider
