// One completion in progress: submits its requests to the engine, collects the results, and has them written
// in its client's format (reply_shape.h), whole or as events.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "serve/api/reply_shape.h"
#include "serve/api/slow_lane.h"
#include "serve/engine/engine.h"
#include "serve/http/error_body.h"
#include "serve/http/server.h"

namespace outrider {

// Settings of the server for all answers.
struct AnswerOptions {
  std::chrono::milliseconds keep_alive{10'000};  // interval of comments until a stream's first event; 0: none
  SlowLane* writers = nullptr;                   // writes long answers; null: the thread of the sockets does
  std::string id = {};                           // without its prefix; empty: a new one
  int64_t created = 0;                           // seconds since 1970; 0: now
  // A sink around that of a choice, which also writes the trace of its request; empty: it has none.
  std::function<std::shared_ptr<RequestSink>(std::shared_ptr<RequestSink>, size_t choice, const Request&)>
      trace = {};
};

// Lives as long as the engine works for it. Everything happens on the thread of the sockets, to which the
// engine's thread passes work through HttpReply::later; only a long, complete answer is written on another
// thread.
class ApiAnswer : public std::enable_shared_from_this<ApiAnswer> {
 public:
  ApiAnswer(ApiRequest request, std::shared_ptr<HttpReply> reply, const Tokenizer& tokenizer,
            const AnswerOptions& options);

  // `client`: the key for taking turns while requests wait.
  void submit(Engine& engine, const std::string& client);

  void emitted(size_t choice, const Emit& emit);
  void finished(size_t choice, const Finish& finish);
  bool has_begun() const { return state_.tokens() > 0; }

 private:
  void begin_stream();
  void keep_alive();
  void await_deadline();
  void cancel();
  void fail(const ApiError& error);
  void send_whole();

  const AnswerOptions options_;
  ApiAnswerState state_;
  const std::unique_ptr<ReplyShape> shape_;
  const std::shared_ptr<HttpReply> reply_;
  Engine* engine_ = nullptr;
  std::vector<Ticket> tickets_;
  size_t finished_ = 0;
  bool has_said_ = false;  // an event was sent
  bool is_over_ = false;   // answered, or the client has left
  std::atomic<bool> has_left_ = false;
  std::string client_;
};

// The client's error for an error of the engine.
ApiError engine_error(const Status& status);
void send_error(HttpReply& reply, const ApiError& error, HttpHeaders headers = {});

}  // namespace outrider
