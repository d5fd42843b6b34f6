#include "serve/api/answer.h"

#include <fmt/format.h>

#include <random>

#include "base/json_text.h"
#include "serve/api/format.h"

namespace outrider {
namespace {

// Only passes results on, because all requests share the engine's thread.
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

std::string new_id() {
  std::random_device random;
  return fmt::format("{:016x}", uint64_t{random()} << 32 | random());
}

int64_t seconds_since_1970() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Does not need the requests, which are moved to the engine.
size_t choices_of(const ApiRequest& request) { return request.requests.size(); }

}  // namespace

ApiError engine_error(const Status& status) {
  switch (status.code()) {
    case StatusCode::kResourceExhausted:
      return {.status = 429, .message = status.message(), .code = "queue_full"};
    case StatusCode::kUnavailable:
      return {.status = 503, .message = status.message()};
    case StatusCode::kDeadlineExceeded:
      return {.status = 504, .message = status.message(), .code = "deadline_exceeded"};
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnsupported:
      return {.status = 400, .message = status.message(), .param = param_of(status.message())};
    default:
      return {.status = 500, .message = status.message()};
  }
}

void send_error(HttpReply& reply, const ApiError& error, HttpHeaders headers) {
  if (error.status == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
  // The clients of OpenAI and Anthropic retry after any 5xx unless this header says no.
  if (error.status == 501) headers.emplace_back("x-should-retry", "false");
  reply.send(error.status, "application/json", error_body(error), headers);
}

ApiAnswer::ApiAnswer(ApiRequest request, std::shared_ptr<HttpReply> reply, const Tokenizer& tokenizer,
                     const AnswerOptions& options)
    : options_(options),
      state_{.request = std::move(request),
             .id = options.id.empty() ? new_id() : options.id,
             .created = options.created > 0 ? options.created : seconds_since_1970(),
             .choices = {},
             .tokenizer = tokenizer},
      shape_(make_reply_shape(state_)),
      reply_(std::move(reply)) {
  state_.choices.resize(choices_of(state_.request));
  if (state_.request.tools && state_.request.stream)
    for (ApiChoice& choice : state_.choices) choice.parser.emplace(*state_.request.tools);
  for (ApiChoice& choice : state_.choices) {
    if (!state_.request.channels) break;
    choice.channel_tokens.emplace(*state_.request.channels);
    if (state_.request.stream) choice.channels.emplace(*state_.request.channels);
  }
  if (!state_.request.thoughts) return;
  for (ApiChoice& choice : state_.choices) {
    choice.thought_tokens.emplace(*state_.request.thoughts);
    if (state_.request.stream) choice.thoughts.emplace(*state_.request.thoughts);
  }
}

void ApiAnswer::submit(Engine& engine, const std::string& client) {
  engine_ = &engine;
  client_ = client;
  std::vector<Submission> submissions;
  for (size_t i = 0; i < state_.choices.size(); ++i) {
    std::shared_ptr<RequestSink> sink = std::make_shared<Sink>(shared_from_this(), reply_, i);
    if (options_.trace) sink = options_.trace(std::move(sink), i, state_.request.requests[i]);
    submissions.push_back({std::move(state_.request.requests[i]), std::move(sink)});
  }
  auto tickets = engine.submit_all(std::move(submissions), client);
  if (!tickets.ok()) {
    is_over_ = true;
    const ApiError error = engine_error(tickets.status());
    HttpHeaders headers;
    if (error.status == 429)
      headers.emplace_back("Retry-After", std::to_string(engine.retry_after().count()));
    return send_error(*reply_, error, std::move(headers));
  }
  tickets_ = std::move(tickets).value();
  // The engine keeps the answer alive; the reply, which the answer owns, must not.
  reply_->on_gone([answer = weak_from_this()] {
    if (const auto alive = answer.lock()) alive->cancel();
  });
  if (state_.request.stream) begin_stream();
  if (state_.request.timeout.count() > 0) await_deadline();
}

// Sends the headers, which tell clients and proxies that the request was accepted.
void ApiAnswer::begin_stream() {
  reply_->begin_events();
  shape_->begin(*reply_);
  if (options_.keep_alive.count() > 0) keep_alive();
}

void ApiAnswer::keep_alive() {
  reply_->after(options_.keep_alive, [answer = weak_from_this()] {
    const auto alive = answer.lock();
    if (!alive || alive->is_over_ || alive->has_said_) return;
    alive->reply_->comment("waiting");
    alive->keep_alive();
  });
}

void ApiAnswer::await_deadline() {
  reply_->after(state_.request.timeout, [answer = weak_from_this()] {
    const auto alive = answer.lock();
    if (!alive) return;
    alive->fail({.status = 504,
                 .message = fmt::format("\"timeout\": the text was not ready after {} s",
                                        std::chrono::duration<double>(alive->state_.request.timeout).count()),
                 .param = "timeout",
                 .code = "deadline_exceeded"});
  });
}

void ApiAnswer::cancel() {
  is_over_ = has_left_ = true;
  for (const Ticket ticket : tickets_) engine_->cancel(ticket);
}

void ApiAnswer::fail(const ApiError& error) {
  if (is_over_) return;
  cancel();
  if (!state_.request.stream) return send_error(*reply_, error);
  shape_->fail(error_body(error), *reply_);
}

// ---- results of the engine -----------------------------------------------------------------------------

void ApiAnswer::emitted(size_t index, const Emit& emit) {
  if (is_over_) return;
  ApiChoice& choice = state_.choices[index];
  choice.prompt_logprobs.insert(choice.prompt_logprobs.end(), emit.prompt_logprobs.begin(),
                                emit.prompt_logprobs.end());
  if (state_.request.is_scored_only || emit.ids.empty()) return;
  choice.tokens += static_cast<int64_t>(emit.ids.size());
  for (const TokenId id : emit.ids) {
    if (choice.thought_tokens) choice.thought_tokens->add(shown_bytes(id, state_.tokenizer));
    if (choice.channel_tokens) choice.channel_tokens->add(shown_bytes(id, state_.tokenizer));
  }
  if (state_.request.stream) {
    has_said_ = true;
    return shape_->part(index, emit, *reply_);
  }
  choice.text += emit.text;
  choice.ids.insert(choice.ids.end(), emit.ids.begin(), emit.ids.end());
  choice.logprobs.insert(choice.logprobs.end(), emit.logprobs.begin(), emit.logprobs.end());
}

void ApiAnswer::finished(size_t index, const Finish& finish) {
  if (is_over_) return;
  if (finish.reason == FinishReason::kError) return fail(engine_error(finish.error));
  if (finish.reason == FinishReason::kCancelled)
    return fail({.status = 503, .message = "the server stops, and did not wait for this text to end"});
  ApiChoice& choice = state_.choices[index];
  choice.reason = state_.request.is_scored_only ? FinishReason::kLength : finish.reason;
  choice.stop = finish.stop;
  choice.metrics = finish.metrics;
  ++finished_;
  if (state_.request.includes_stop && !choice.stop.empty()) {
    if (state_.request.stream)
      shape_->part(index, {.request = finish.request, .ids = {}, .logprobs = {}, .text = choice.stop},
                   *reply_);
    else
      choice.text += choice.stop;
  }
  if (state_.request.stream) {
    has_said_ = true;
    shape_->end_choice(index, *reply_);
  }
  if (finished_ < state_.choices.size()) return;
  is_over_ = true;
  if (state_.request.stream)
    shape_->end(*reply_);
  else
    send_whole();
}

// Writes a long answer on another thread, so that health checks, metrics and streams go on meanwhile.
void ApiAnswer::send_whole() {
  constexpr size_t kMuch = 4096;  // tokens and log-probabilities that take a few milliseconds to write
  size_t values = 0;
  for (const ApiChoice& choice : state_.choices) {
    values += choice.ids.size();
    for (const auto* positions : {&choice.logprobs, &choice.prompt_logprobs})
      for (const PositionLogprobs& position : *positions) values += 1 + position.top.size();
  }
  const auto write = [answer = shared_from_this()] {
    if (!answer->has_left_) answer->reply_->send(200, "application/json", json_text(answer->shape_->whole()));
  };
  if (values < kMuch || !options_.writers) return write();
  options_.writers->add(client_, write);
}

}  // namespace outrider
