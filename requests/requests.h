// Requests from the command line or a JSON-lines file, turned into tokens.
#pragma once

#include <cstdint>
#include <span>
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
  uint64_t form = 0;         // hash of the form that was asked for; 0: none
  uint64_t fingerprint = 0;  // RequestFingerprints
  std::string category;      // of published workloads (published_lines.h); empty without one
  // A later turn of a conversation: its prompt is that of the request before it in the list, the model's own
  // answer to that, and `turn` (request_of_turn). `request` has no prompt then.
  bool follows = false;
  std::vector<TokenId> turn;
};

// A later turn as it is asked, once the one before it was asked as `before` and answered. An error: it is
// longer than `max_context`.
Result<Request> request_of_turn(const PromptRequest& turn, const Request& before,
                                std::span<const TokenId> answer, int64_t max_context);

// The one request of `params`, if they have a prompt, else those of the file --prompts, whose lines replace
// what `params` say. Checks every request before the first one runs. Errors name the file, the line and the
// key. Published workloads are read as they are (published_lines.h); what of them is left out is added to
// `notes`, in sentences.
Result<std::vector<PromptRequest>> read_requests(const RequestParams& params, const std::string& prompts_file,
                                                 const RequestModel& model,
                                                 std::vector<std::string>* notes = nullptr);

}  // namespace outrider
