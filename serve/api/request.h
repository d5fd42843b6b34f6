// The body of a completion or chat completion, checked and made requests of the engine: one for each choice.
#pragma once

#include <chrono>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "requests/request_builder.h"
#include "serve/api/tool_format.h"

namespace outrider {

enum class ApiKind : int { kCompletion, kChat, kMessages, kResponses };

struct ApiRequest {
  ApiKind kind = ApiKind::kCompletion;
  std::string model;              // as answers say it: the server's first name
  std::vector<Request> requests;  // all choices of the first prompt, then of the next
  std::vector<std::string> echo;  // one per request: what its text begins with; empty without echo
  std::vector<std::vector<TokenId>> prompt_ids;  // one per request, where the answer shows them; else none
  int64_t prompt_tokens = 0;                     // of every prompt, once
  int choices = 1;                               // of every prompt
  int logprobs = -1, prompt_logprobs = -1;       // as asked for
  bool echoes_logprobs = false;                  // "logprobs" are also those of the prompt
  bool return_token_ids = false;
  bool tokens_as_ids = false;            // log-probabilities name tokens "token_id:42"
  bool includes_stop = false;            // the text has the stop text that ended it
  bool is_scored_only = false;           // "max_tokens": 0: what is generated is not shown
  std::chrono::milliseconds timeout{0};  // 0: none
  bool stream = false;
  bool include_usage = false;                      // a last event of a stream tells it,
  bool continuous_usage = false;                   // and every other one what it is so far
  std::string synthetic_acceptance;                // the server's, if it has one
  std::optional<ToolReading> tools;                // calls are looked for in the text
  std::shared_ptr<const nlohmann::json> repeated;  // of /v1/responses (repeated_in_response)
};

struct ApiLimits {
  int choices = 16;                     // n
  size_t requests = 128;                // prompts times n
  int64_t logprobs = int64_t{1} << 20;  // of a whole answer
};

struct ApiDefaults {
  const RequestParams& params;  // of fields that a request leaves out
  const std::vector<std::string>& models;
  std::string synthetic_acceptance;  // the server's, if it has one
  uint64_t seed = 0;                 // of a request that leaves its own out
  ApiLimits limits;
  std::chrono::milliseconds timeout{0};  // of a request that does not say; 0: none
  std::string_view text = {};            // the body as it came, where the order of keys counts
};

// A body of at most so many bytes, as every endpoint reads it: strict JSON, an object, at most 32 levels
// deep.
Result<nlohmann::json> read_body(const std::string& body);
// The model that a request names, or the first. kNotFound: it is not served.
Result<std::string> read_model(const nlohmann::json& body, const std::vector<std::string>& models);

// Errors name the field in quotes. kNotFound: the model is not served. kResourceExhausted: a prompt is longer
// than the context.
Result<ApiRequest> read_api_request(ApiKind kind, const nlohmann::json& body, const ApiDefaults& defaults,
                                    const RequestBuilder& builder);

// What /tokenize is to tell: of "prompt", or of "messages" and "tools". `text`: the body as it came.
Result<std::vector<TokenId>> read_tokenize(const nlohmann::json& body, std::string_view text,
                                           const RequestBuilder& builder);
// The prompt of a body of /v1/messages/count_tokens, which is one of /v1/messages without what says how to
// answer. `text`: the body as it came.
Result<std::vector<TokenId>> read_count_tokens(const nlohmann::json& body, std::string_view text,
                                               const RequestBuilder& builder);
// The text of /detokenize's "tokens".
Result<std::string> read_detokenize(const nlohmann::json& body, const RequestBuilder& builder);

}  // namespace outrider
