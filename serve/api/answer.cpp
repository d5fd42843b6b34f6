#include "serve/api/answer.h"

#include <chrono>
#include <random>
#include <span>

#include "base/json_text.h"
#include "serve/api/format.h"

namespace outrider {
namespace {

using nlohmann::json;

// Hands over, and nothing more: the engine's thread serves everybody.
class Sink final : public RequestSink {
 public:
  Sink(std::shared_ptr<ApiAnswer> answer, std::shared_ptr<HttpReply> reply, size_t choice)
      : answer_(std::move(answer)), reply_(std::move(reply)), choice_(choice) {}
  void emitted(const Emit& emit) override {
    reply_->later([answer = answer_, choice = choice_, emit] { answer->emitted(choice, emit); });
  }
  void finished(const Finish& finish) override {
    reply_->later([answer = answer_, choice = choice_, finish] { answer->finished(choice, finish); });
  }

 private:
  const std::shared_ptr<ApiAnswer> answer_;
  const std::shared_ptr<HttpReply> reply_;
  const size_t choice_;
};

std::string new_id(ApiKind kind) {
  std::random_device random;
  const uint64_t number = uint64_t{random()} << 32 | random();
  return fmt::format("{}-{:016x}", kind == ApiKind::kChat ? "chatcmpl" : "cmpl", number);
}

int64_t seconds_since_1970() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

ApiError engine_error(const Status& status) {
  switch (status.code()) {
    case StatusCode::kResourceExhausted:
      return {.status = 429, .message = status.message(), .code = "queue_full"};
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
      return {.status = 503, .message = status.message()};
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnsupported:
      return {.status = 400, .message = status.message()};
    default:
      return {.status = 500, .message = status.message()};
  }
}

void send_error(HttpReply& reply, const ApiError& error, HttpHeaders headers) {
  if (error.status == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status == 429) headers.emplace_back("Retry-After", "1");
  reply.send(error.status, "application/json", error_body(error), headers);
}

ApiAnswer::ApiAnswer(ApiRequest request, std::shared_ptr<HttpReply> reply, const Tokenizer& tokenizer)
    : request_(std::move(request)),
      reply_(std::move(reply)),
      tokenizer_(tokenizer),
      id_(new_id(request_.kind)),
      created_(seconds_since_1970()),
      logprobs_(request_.requests.front().sampling.logprobs >= 0),
      choices_(request_.requests.size()) {}

void ApiAnswer::submit(Engine& engine) {
  engine_ = &engine;
  std::vector<Submission> submissions;
  for (size_t i = 0; i < choices_.size(); ++i)
    submissions.push_back(
        {std::move(request_.requests[i]), std::make_shared<Sink>(shared_from_this(), reply_, i)});
  auto tickets = engine.submit_all(std::move(submissions));
  if (!tickets.ok()) return fail(engine_error(tickets.status()));
  tickets_ = std::move(tickets).value();
  // It is the engine that keeps the answer alive; the reply, which the answer keeps, must not.
  reply_->on_gone([answer = weak_from_this()] {
    if (const auto alive = answer.lock()) alive->cancel();
  });
}

void ApiAnswer::cancel() {
  is_over_ = true;
  for (const Ticket ticket : tickets_) engine_->cancel(ticket);
}

void ApiAnswer::fail(const ApiError& error) {
  if (is_over_) return;
  cancel();
  if (!has_begun_) return send_error(*reply_, error);
  reply_->event(error_body(error));
  reply_->end_events();
}

// ---- what the engine says -------------------------------------------------------------------------------

void ApiAnswer::emitted(size_t index, const Emit& emit) {
  if (is_over_) return;
  Choice& choice = choices_[index];
  choice.tokens += static_cast<int64_t>(emit.ids.size());
  if (!request_.stream) {
    choice.text += emit.text;
    choice.logprobs.insert(choice.logprobs.end(), emit.logprobs.begin(), emit.logprobs.end());
    return;
  }
  if (emit.text.empty() && emit.logprobs.empty()) return;  // text that is held back
  begin_choice(index);
  json logprobs = logprobs_of(choice, emit.logprobs);
  stream(is_chat() ? choice_json(index, "delta", {{"content", emit.text}}, std::move(logprobs), nullptr)
                   : choice_json(index, "text", emit.text, std::move(logprobs), nullptr));
}

void ApiAnswer::finished(size_t index, const Finish& finish) {
  if (is_over_) return;
  if (finish.reason == FinishReason::kError) return fail(engine_error(finish.error));
  if (finish.reason == FinishReason::kCancelled)
    return fail({.status = 503, .message = "the server stops, and did not wait for this text to end"});
  choices_[index].reason = finish.reason;
  choices_[index].metrics = finish.metrics;
  ++finished_;
  if (request_.stream) {
    begin_choice(index);
    const json reason = finish_reason_name(finish.reason);
    stream(is_chat() ? choice_json(index, "delta", json::object(), nullptr, reason)
                     : choice_json(index, "text", "", nullptr, reason));
  }
  if (finished_ < choices_.size()) return;
  is_over_ = true;
  request_.stream ? end_stream() : send_whole();
}

// ---- events ---------------------------------------------------------------------------------------------

void ApiAnswer::begin_choice(size_t index) {
  if (!has_begun_) reply_->begin_events();
  has_begun_ = true;
  if (std::exchange(choices_[index].has_begun, true)) return;
  if (is_chat())
    stream(choice_json(index, "delta", {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr));
  else if (!request_.echo.empty())
    stream(choice_json(index, "text", request_.echo[index], nullptr, nullptr));
}

void ApiAnswer::stream(json choice, bool is_last) {
  json event = base();
  event["choices"] = json::array();
  if (!is_last) event["choices"].push_back(std::move(choice));
  if (is_last || request_.continuous_usage)
    event["usage"] = usage();
  else if (request_.include_usage)
    event["usage"] = nullptr;
  if (is_last) event["metrics"] = metrics();
  reply_->event(json_text(event));
}

void ApiAnswer::end_stream() {
  if (request_.include_usage) stream(nullptr, true);
  reply_->event("[DONE]");
  reply_->end_events();
}

// ---- shapes ---------------------------------------------------------------------------------------------

json ApiAnswer::base() const {
  const char* const object = !is_chat()        ? "text_completion"
                             : request_.stream ? "chat.completion.chunk"
                                               : "chat.completion";
  json reply{{"id", id_}, {"object", object}, {"created", created_}, {"model", request_.model}};
  if (!request_.synthetic_acceptance.empty())  // then the text means nothing
    reply["synthetic_acceptance"] = request_.synthetic_acceptance;
  return reply;
}

json ApiAnswer::usage() const {
  int64_t tokens = 0;
  for (const Choice& choice : choices_) tokens += choice.tokens;
  return usage_json(request_.prompt_tokens, tokens);
}

// What speculation did for a reply of one text; of several it is not told, as vLLM does.
json ApiAnswer::metrics() const {
  return choices_.size() == 1 ? speculation_json(choices_[0].metrics.rounds) : json();
}

json ApiAnswer::logprobs_of(Choice& choice, std::span<const PositionLogprobs> positions) const {
  if (!logprobs_) return nullptr;
  return is_chat() ? chat_logprobs(positions, tokenizer_)
                   : completion_logprobs(positions, tokenizer_, choice.text_offset);
}

json ApiAnswer::choice_json(size_t index, const char* body, json content, json logprobs, json reason) const {
  return {{"index", index},
          {body, std::move(content)},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", std::move(reason)}};
}

void ApiAnswer::send_whole() {
  json reply = base();
  reply["choices"] = json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    json logprobs = logprobs_of(choice, choice.logprobs);
    const json reason = finish_reason_name(choice.reason);
    const std::string text = (request_.echo.empty() ? "" : request_.echo[i]) + choice.text;
    reply["choices"].push_back(
        is_chat()
            ? choice_json(i, "message", {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}},
                          std::move(logprobs), reason)
            : choice_json(i, "text", text, std::move(logprobs), reason));
  }
  reply["usage"] = usage();
  reply["metrics"] = metrics();
  reply_->send(200, "application/json", json_text(reply));
}

}  // namespace outrider
