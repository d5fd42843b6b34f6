// The body of a completion or chat completion, checked and converted to requests of the engine, one for each
// choice.
#pragma once

#include <chrono>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "requests/request_builder.h"
#include "serve/api/channel_parser.h"
#include "serve/api/thought_parser.h"
#include "serve/api/tool_format.h"

namespace outrider {

enum class ApiKind : int { kCompletion, kChat, kMessages, kResponses };

struct ApiRequest {
  ApiKind kind = ApiKind::kCompletion;
  std::string model;              // the name in answers: the server's first one
  std::vector<Request> requests;  // all choices of the first prompt, then of the next
  std::vector<std::string> echo;  // one per request: the echoed beginning of its text; empty without echo
  std::vector<std::vector<TokenId>> prompt_ids;  // one per request, if the answer shows them; else empty
  int64_t prompt_tokens = 0;                     // of every prompt, counted once
  int choices = 1;                               // for every prompt
  int logprobs = -1, prompt_logprobs = -1;       // as requested
  bool echoes_logprobs = false;                  // "logprobs" include those of the prompt
  bool return_token_ids = false;
  bool tokens_as_ids = false;            // log-probabilities name tokens "token_id:42"
  bool includes_stop = false;            // the text includes the stop string that ended it
  bool is_scored_only = false;           // "max_tokens": 0: generated tokens are not shown
  std::chrono::milliseconds timeout{0};  // 0: none
  bool stream = false;
  bool include_usage = false;                      // a stream's last event contains the usage,
  bool continuous_usage = false;                   // and every other event the usage so far
  bool lists_rounds = false;                       // replies have an entry for each round with a draft
  std::string synthetic_acceptance;                // the server's, if it has one
  std::optional<ToolReading> tools;                // the text is scanned for calls
  std::optional<ThoughtReading> thoughts;          // the text is scanned for reasoning
  std::optional<ChannelReading> channels;          // the text has channels, in place of the two above
  std::shared_ptr<const nlohmann::json> repeated;  // of /v1/responses (repeated_in_response)
};

struct ApiLimits {
  int choices = 16;                     // n
  size_t requests = 128;                // prompts times n
  int64_t logprobs = int64_t{1} << 20;  // of a whole answer
};

struct ApiDefaults {
  const RequestParams& params;  // for fields that a request leaves out
  const std::vector<std::string>& models;
  std::string synthetic_acceptance;  // the server's, if it has one
  uint64_t seed = 0;                 // for a request without a seed
  ApiLimits limits;
  std::chrono::milliseconds timeout{0};  // for a request without a timeout; 0: none
  bool lists_rounds = false;             // as of ApiRequest
  bool parts_thoughts = true;            // of chats
  bool drafts = true;                    // the server has a drafter, or workers may join
  std::string_view text = {};            // the original body, for the order of keys
};

// Parses the body of any endpoint: strict JSON, an object, at most 32 levels deep.
Result<nlohmann::json> read_body(const std::string& body);
// The model that a request names, or the first. kNotFound: it is not served.
Result<std::string> read_model(const nlohmann::json& body, const std::vector<std::string>& models);

// Errors name the field in quotes. kNotFound: the model is not served. kResourceExhausted: a prompt is longer
// than the context.
Result<ApiRequest> read_api_request(ApiKind kind, const nlohmann::json& body, const ApiDefaults& defaults,
                                    const RequestBuilder& builder);

// The tokens for /tokenize: of "prompt", or of "messages" and "tools". `text`: the body as it came.
Result<std::vector<TokenId>> read_tokenize(const nlohmann::json& body, std::string_view text,
                                           const RequestBuilder& builder);
// The prompt of a body of /v1/messages/count_tokens, which is a body of /v1/messages without the fields about
// the answer. `text`: the original body.
Result<std::vector<TokenId>> read_count_tokens(const nlohmann::json& body, std::string_view text,
                                               const RequestBuilder& builder);
// The text of /detokenize's "tokens".
Result<std::string> read_detokenize(const nlohmann::json& body, const RequestBuilder& builder);

}  // namespace outrider
