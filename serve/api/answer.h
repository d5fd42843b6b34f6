// One completion on its way: hands its requests to the engine, gathers what comes back, and writes the reply,
// whole or as events.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "serve/api/error_body.h"
#include "serve/api/request.h"
#include "serve/engine.h"
#include "serve/http/server.h"

namespace outrider {

// Lives as long as the engine works for it. Everything happens on the thread of the sockets, where the
// engine's thread sends it through HttpReply::later.
class ApiAnswer : public std::enable_shared_from_this<ApiAnswer> {
 public:
  ApiAnswer(ApiRequest request, std::shared_ptr<HttpReply> reply, const Tokenizer& tokenizer);

  void submit(Engine& engine);

  void emitted(size_t choice, const Emit& emit);
  void finished(size_t choice, const Finish& finish);

 private:
  struct Choice {
    std::string text;
    std::vector<PositionLogprobs> logprobs;
    int64_t tokens = 0;
    int64_t text_offset = 0;  // of the next token
    bool has_begun = false;   // something of it was streamed
    FinishReason reason = FinishReason::kStop;
    RequestMetrics metrics;
  };

  bool is_chat() const { return request_.kind == ApiKind::kChat; }
  void cancel();
  void fail(const ApiError& error);
  void begin_choice(size_t choice);
  void stream(nlohmann::json choices, bool is_last = false);
  void end_stream();
  void send_whole();
  nlohmann::json base() const;
  nlohmann::json usage() const;
  nlohmann::json metrics() const;
  nlohmann::json logprobs_of(Choice& choice, std::span<const PositionLogprobs> positions) const;
  // `body`: "text", "delta" or "message".
  nlohmann::json choice_json(size_t index, const char* body, nlohmann::json content, nlohmann::json logprobs,
                             nlohmann::json reason) const;

  ApiRequest request_;
  const std::shared_ptr<HttpReply> reply_;
  const Tokenizer& tokenizer_;
  const std::string id_;
  const int64_t created_;
  const bool logprobs_;
  Engine* engine_ = nullptr;
  std::vector<Ticket> tickets_;
  std::vector<Choice> choices_;
  size_t finished_ = 0;
  bool has_begun_ = false;  // the events have
  bool is_over_ = false;    // answered, or the client has left
};

// What a client is told of an error of the engine.
ApiError engine_error(const Status& status);
void send_error(HttpReply& reply, const ApiError& error, HttpHeaders headers = {});

}  // namespace outrider
