// Requests from the command line or a JSON-lines file, turned into tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/request.h"
#include "requests/request_builder.h"

namespace outrider {

// One line of --prompts, or the --prompt.
struct PromptRequest {
  Request request;
  size_t line = 0;           // 1-based in the file; 0 for --prompt
  std::string id;            // the line's own, as JSON text; empty without one
  uint64_t fingerprint = 0;  // RequestFingerprints
  std::string category;      // of published workloads (published_lines.h); empty without one
};

// The one request of `params`, if they have a prompt, else those of the file --prompts, whose lines replace
// what `params` say. Checks every request before the first one runs. Errors name the file, the line and the
// key. Published workloads are read as they are (published_lines.h); what of them is left out is added to
// `notes`, in sentences.
Result<std::vector<PromptRequest>> read_requests(const RequestParams& params, const std::string& prompts_file,
                                                 const RequestModel& model,
                                                 std::vector<std::string>* notes = nullptr);

}  // namespace outrider
