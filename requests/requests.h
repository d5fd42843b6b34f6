// Requests from the command line or a JSON-lines file, turned into tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "coordinator/request/request.h"
#include "requests/request_builder.h"

namespace outrider {

// One line of --prompts, or the --prompt.
struct PromptRequest {
  Request request;
  size_t line = 0;           // 1-based in the file; 0 for --prompt
  std::string id;            // the line's own id, as JSON text; empty without one
  uint64_t form = 0;         // hash of the requested form; 0: none
  uint64_t fingerprint = 0;  // RequestFingerprints
  std::string category;      // of published workloads (published_lines.h); empty without one
  // A later turn of a conversation: its prompt consists of the previous request's prompt, the model's answer
  // to it, and `turn` (request_of_turn). `request` has no prompt then.
  bool follows = false;
  std::vector<TokenId> turn;
};

// The request of a later turn, after the one before it was run as `before` and answered. An error: it is
// longer than `max_context`.
Result<Request> request_of_turn(const PromptRequest& turn, const Request& before,
                                std::span<const TokenId> answer, int64_t max_context);

// The single request of `params`, if they have a prompt; else the requests of the file --prompts, whose lines
// override `params`. Checks every request before the first one runs. Errors name the file, the line and the
// key. Published workloads are read as they are (published_lines.h); sentences about ignored parts are added
// to `notes`.
Result<std::vector<PromptRequest>> read_requests(const RequestParams& params, const std::string& prompts_file,
                                                 const RequestModel& model,
                                                 std::vector<std::string>* notes = nullptr);

}  // namespace outrider
