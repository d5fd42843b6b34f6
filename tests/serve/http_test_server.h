// A server with limits so small that each is reached quickly, and a handler that the test controls.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "http_client.h"
#include "serve/http/server.h"
#include "tests/support/program.h"

namespace outrider::testing {

inline constexpr HttpLimits kSmall{.header_bytes = 2048,
                                   .body_bytes = 8192,
                                   .connections = 8,
                                   .unsent_bytes = 64 << 10,
                                   .header_time = std::chrono::milliseconds(300 * kPatience),
                                   .body_time = std::chrono::milliseconds(300 * kPatience),
                                   .idle_time = std::chrono::milliseconds(300 * kPatience),
                                   .write_time = std::chrono::milliseconds(300 * kPatience)};

// Answers /echo with the body and /big with much; /drop not at all, and fails at /throw. What else is asked
// for is kept for the test.
class HttpServerTest : public ::testing::Test {
 protected:
  using Held = std::pair<HttpRequest, std::shared_ptr<HttpReply>>;

  void start(const HttpLimits& limits) {
    server_.reset();
    auto started =
        HttpServer::start("127.0.0.1", 0, options_of(limits), [this](HttpRequest request, auto reply) {
          if (request.path == "/echo")
            return reply->send(200, "text/plain", request.method + " " + request.body);
          if (request.path == "/big") return reply->send(200, "text/plain", std::string(64 << 20, 'x'));
          if (request.path == "/throw") throw std::runtime_error("as the test asked");
          if (request.path != "/drop") hold({std::move(request), std::move(reply)});
        });
    ASSERT_TRUE(started.ok()) << started.status().message();
    server_ = std::move(started).value();
    const std::string address = server_->address();
    port_ = static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  }
  virtual HttpOptions options_of(const HttpLimits& limits) { return {.limits = limits}; }
  void SetUp() override { start(kSmall); }

  void hold(Held held) {
    {
      const std::lock_guard lock(mutex_);
      held_.push_back(std::move(held));
    }
    changed_.notify_one();
  }
  Held next() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(20 * kPatience), [&] { return !held_.empty(); }))
      throw std::runtime_error("nobody asks");
    Held held = std::move(held_.front());
    held_.erase(held_.begin());
    return held;
  }

  HttpClient client() { return HttpClient(port_); }
  HttpAnswer say(std::string_view bytes) {
    HttpClient c = client();
    c.send(bytes);
    return c.answer();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Held> held_;  // guarded
  std::unique_ptr<HttpServer> server_;
  uint16_t port_ = 0;
};

// Records calls of on_gone.
class Departure {
 public:
  explicit Departure(HttpReply& reply) {
    reply.on_gone([told = told_] { told->set_value(); });
  }
  bool is_told() {
    return future_.wait_for(std::chrono::seconds(20 * kPatience)) == std::future_status::ready;
  }
  bool is_told_already() {
    return future_.wait_for(std::chrono::milliseconds(0)) == std::future_status::ready;
  }

 private:
  std::shared_ptr<std::promise<void>> told_ = std::make_shared<std::promise<void>>();
  std::future<void> future_ = told_->get_future();
};

// In the form of OpenAI's, with `text` in its message.
void expect_error(const HttpAnswer& answer, int status, const std::string& text);

}  // namespace outrider::testing
