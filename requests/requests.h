// Requests from the command line or a JSON-lines file, turned into tokens.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/request.h"
#include "start/flags/options.h"
#include "transformer/chat_template/chat_template.h"
#include "transformer/tokenizer/tokenizer.h"

namespace outrider {

// One line of --prompts, or the --prompt.
struct PromptRequest {
  Request request;
  size_t line = 0;           // 1-based in the file; 0 for --prompt
  nlohmann::json id;         // the line's own, as it was written; null without one
  uint64_t fingerprint = 0;  // RequestFingerprints
};

// Checks every request before the first one runs. `chat`: the model's, or why there is none, which only those
// who need it are told. Errors name the file, the line and the key.
Result<std::vector<PromptRequest>> read_requests(const RunOptions& options, const Tokenizer& tokenizer,
                                                 const Result<std::unique_ptr<ChatTemplate>>& chat,
                                                 int64_t max_context, int64_t vocab_size);

}  // namespace outrider
