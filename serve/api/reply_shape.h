// The format of an answer for one kind of client: writes the results that ApiAnswer collects as JSON.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/rounds/events.h"
#include "serve/api/request.h"
#include "serve/api/tool_parser.h"
#include "serve/http/server.h"
#include "text/tokenizer/tokenizer.h"

namespace outrider {

// One text of an answer, in its present state.
struct ApiChoice {
  std::string text;
  std::vector<TokenId> ids;
  std::vector<PositionLogprobs> logprobs, prompt_logprobs;
  int64_t tokens = 0;
  int64_t text_offset = 0;  // of the next token
  bool has_begun = false;   // part of it was streamed
  FinishReason reason = FinishReason::kStop;
  std::string stop;  // the stop string that ended it; empty: none
  RequestMetrics metrics;
  std::optional<ToolCallParser> parser;   // of a stream that may have calls of tools
  std::optional<ThoughtParser> thoughts;  // of a stream that may have reasoning
  std::optional<ChannelParser> channels;  // of a stream with channels
  std::optional<ThoughtCounter> thought_tokens;
  std::optional<ChannelCounter> channel_tokens;
};

// A whole text, with reasoning and tool calls separated.
struct ReplyContent {
  struct Call {
    std::string id, name, arguments;
  };
  std::string reasoning;
  std::string text;
  std::vector<Call> calls;
};

struct ApiAnswerState {
  ApiRequest request;
  std::string id;       // without a kind's prefix
  int64_t created = 0;  // seconds since 1970
  std::vector<ApiChoice> choices;
  const Tokenizer& tokenizer;

  int64_t tokens() const;          // of all choices
  int64_t thought_tokens() const;  // of these
  // Whether a text consists of parts: reasoning, answer, calls.
  bool has_parts() const { return request.tools || request.thoughts || request.channels; }
  // Cached tokens of every prompt, counted once, for its first choice. Known at the end.
  int64_t cached_tokens() const;
  std::string call_id(size_t choice, const ToolEvent& call) const;
  ReplyContent content(size_t choice) const;
  // Events for a piece of a stream's text; null: the end of the text.
  std::vector<ToolEvent> events(size_t choice, const std::string* piece);
  // Whether the choice ended with tool calls, as far as its stream was parsed.
  bool has_called(size_t choice) const;
};

// Called on the thread of the sockets. For a stream: begin, then any number of parts and choice ends, then
// end. Otherwise only whole.
class ReplyShape {
 public:
  explicit ReplyShape(ApiAnswerState& state) : state_(state) {}
  virtual ~ReplyShape() = default;
  virtual void begin(HttpReply& reply) = 0;  // the headers were sent already
  virtual void part(size_t choice, const Emit& emit, HttpReply& reply) = 0;
  virtual void end_choice(size_t choice, HttpReply& reply) = 0;
  virtual void end(HttpReply& reply) = 0;  // also ends the events
  virtual nlohmann::json whole() = 0;
  // Reports an error in the middle of a stream.
  virtual void fail(const std::string& error_body, HttpReply& reply) = 0;

 protected:
  ApiAnswerState& state_;
};

// The shape for request.kind.
std::unique_ptr<ReplyShape> make_reply_shape(ApiAnswerState& state);
std::unique_ptr<ReplyShape> make_openai_shape(ApiAnswerState& state);     // completions and chats
std::unique_ptr<ReplyShape> make_messages_shape(ApiAnswerState& state);   // Anthropic's
std::unique_ptr<ReplyShape> make_responses_shape(ApiAnswerState& state);  // OpenAI's newer one
// The Response object of /v1/responses in the state `status`, without its usage.
struct ResponseHead {
  std::string id;       // without its prefix
  int64_t created = 0;  // seconds since 1970
  std::string model;
  const nlohmann::json& repeated;  // repeated_in_response()
};
nlohmann::json response_object(const ResponseHead& head, const char* status, nlohmann::json output);
// Fields of a body of /v1/responses that its answers repeat, as they were sent; values over 16 KiB are
// omitted.
nlohmann::json repeated_in_response(const nlohmann::json& body);

}  // namespace outrider
