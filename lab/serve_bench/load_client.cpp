#include "lab/serve_bench/load_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>

namespace outrider {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string head_of(const HttpAddress& server, const char* method, const std::string& path) {
  const std::string key =
      server.api_key.empty() ? "" : fmt::format("Authorization: Bearer {}\r\n", server.api_key);
  return fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\n{}", method, server.path, path,
                     server.host, server.port, key);
}

// One answer as it comes in, byte by byte if need be: its status, and its body with or without chunks.
class Answer {
 public:
  // The bytes of the body among these.
  std::string feed(std::string_view bytes) {
    in_ += bytes;
    if (!has_head_ && !read_head()) return {};
    if (!is_chunked_) return std::exchange(in_, {});
    std::string body;
    while (!is_whole_) {
      const size_t line = in_.find("\r\n");
      if (line == std::string::npos) break;
      size_t size = 0;
      const auto [end, error] = std::from_chars(in_.data(), in_.data() + line, size, 16);
      if (error != std::errc()) throw std::runtime_error("a chunk without a size");
      if (in_.size() < line + 2 + size + 2) break;
      body += in_.substr(line + 2, size);
      in_.erase(0, line + 2 + size + 2);
      is_whole_ = size == 0;
    }
    return body;
  }
  int status() const { return status_; }
  bool is_chunked() const { return is_chunked_; }
  bool is_whole() const { return is_whole_; }

 private:
  bool read_head() {
    const size_t end = in_.find("\r\n\r\n");
    if (end == std::string::npos) return false;
    std::string head = in_.substr(0, end);
    std::transform(head.begin(), head.end(), head.begin(), [](unsigned char c) { return std::tolower(c); });
    in_.erase(0, end + 4);
    if (!head.starts_with("http/1.") || head.size() < 12) throw std::runtime_error("not HTTP");
    std::from_chars(head.data() + 9, head.data() + 12, status_);
    is_chunked_ = head.find("transfer-encoding: chunked") != std::string::npos;
    has_head_ = true;
    return true;
  }

  std::string in_;
  int status_ = 0;
  bool has_head_ = false, is_chunked_ = false, is_whole_ = false;
};

// Events of one stream, and what they tell.
class Stream {
 public:
  Stream(RequestOutcome& outcome, Clock::time_point sent) : outcome_(outcome), sent_(sent) {}

  void feed(std::string_view body) {
    text_ += body;
    for (size_t end = text_.find("\n\n"); end != std::string::npos; end = text_.find("\n\n")) {
      take(std::string_view(text_).substr(0, end));
      text_.erase(0, end + 2);
    }
  }
  bool is_done() const { return done_; }

 private:
  void take(std::string_view event) {
    constexpr std::string_view kData = "data: ";
    if (!event.starts_with(kData)) return;  // a comment
    event.remove_prefix(kData.size());
    if (event == "[DONE]") {
      done_ = true;
      return;
    }
    const json data = json::parse(event);
    if (const auto error = data.find("error"); error != data.end())
      throw std::runtime_error(error->value("message", "an error event"));
    for (const json& choice : data.value("choices", json::array())) {
      const auto text = choice.find("text");
      if (text != choice.end() && text->is_string() && !text->get_ref<const std::string&>().empty())
        note_text();
    }
    if (const auto usage = data.find("usage"); usage != data.end() && usage->is_object()) {
      outcome_.prompt_tokens = usage->value("prompt_tokens", int64_t{0});
      outcome_.tokens = usage->value("completion_tokens", int64_t{0});
    }
    const auto drafts = data.value(json::json_pointer("/metrics/speculative_decoding"), json());
    if (drafts.is_object()) {
      outcome_.draft_tokens = drafts.value("num_draft_tokens", int64_t{0});
      outcome_.accepted_tokens = drafts.value("num_accepted_draft_tokens", int64_t{0});
      outcome_.step_drafted = drafts.value("per_step_drafted", std::vector<int64_t>());
      outcome_.step_accepted = drafts.value("per_step_accepted", std::vector<int64_t>());
    }
  }
  void note_text() {
    const double now = seconds_since(sent_);
    if (outcome_.first_s == 0)
      outcome_.first_s = now;
    else
      outcome_.gaps_s.push_back(now - last_);
    last_ = now;
  }

  RequestOutcome& outcome_;
  const Clock::time_point sent_;
  std::string text_;
  double last_ = 0;
  bool done_ = false;
};

asio::awaitable<void> ask(const HttpAddress& server, const tcp::resolver::results_type& ends,
                          const PlannedRequest& planned, Clock::time_point begin, double timeout_s,
                          RequestOutcome& outcome) {
  const auto executor = co_await asio::this_coro::executor;
  asio::steady_timer timer(executor);
  timer.expires_at(begin +
                   std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(planned.at_s)));
  co_await timer.async_wait(asio::use_awaitable);
  outcome.sent_s = seconds_since(begin);
  const auto sent = Clock::now();
  tcp::socket socket(executor);
  bool too_late = false;
  timer.expires_after(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s)));
  timer.async_wait([&](const boost::system::error_code& error) {
    if (error) return;
    too_late = true;
    boost::system::error_code ignored;
    socket.close(ignored);
  });
  try {
    co_await asio::async_connect(socket, ends, asio::use_awaitable);
    socket.set_option(tcp::no_delay(true));
    const std::string request =
        fmt::format("{}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
                    head_of(server, "POST", "/v1/completions"), planned.body.size(), planned.body);
    co_await asio::async_write(socket, asio::buffer(request), asio::use_awaitable);
    Answer answer;
    Stream stream(outcome, sent);
    std::string refusal;
    std::array<char, 16384> chunk;
    while (!stream.is_done() && !answer.is_whole()) {
      boost::system::error_code error;
      const size_t bytes = co_await socket.async_read_some(asio::buffer(chunk),
                                                           asio::redirect_error(asio::use_awaitable, error));
      if (error == asio::error::eof && answer.status() != 200) break;
      if (error) throw boost::system::system_error(error);
      const std::string body = answer.feed({chunk.data(), bytes});
      outcome.status = answer.status();
      if (answer.status() == 200)
        stream.feed(body);
      else
        refusal += body;
    }
    outcome.whole_s = seconds_since(sent);
    if (answer.status() != 200)
      outcome.error = fmt::format("status {}: {}", answer.status(), refusal.substr(0, 200));
    else if (!stream.is_done())
      outcome.error = "the stream broke off";
  } catch (const std::exception& error) {
    outcome.whole_s = seconds_since(sent);
    outcome.error = too_late ? fmt::format("no end after {} s", timeout_s) : error.what();
  }
  timer.cancel();
}

}  // namespace

Result<HttpAddress> HttpAddress::parse(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme))
    return invalid_argument(url + ": must begin with http://; put a proxy in front of TLS");
  std::string rest = url.substr(kScheme.size());
  HttpAddress out;
  if (const size_t slash = rest.find('/'); slash != std::string::npos) {
    out.path = rest.substr(slash);
    rest.erase(slash);
  }
  while (out.path.ends_with('/')) out.path.pop_back();
  if (out.path.ends_with("/v1")) out.path.erase(out.path.size() - 3);
  const size_t colon = rest.rfind(':');
  const bool has_port = colon != std::string::npos && rest.find(']', colon) == std::string::npos;
  out.port = has_port ? rest.substr(colon + 1) : "80";
  out.host = has_port ? rest.substr(0, colon) : rest;
  if (out.host.starts_with('[') && out.host.ends_with(']'))
    out.host = out.host.substr(1, out.host.size() - 2);
  if (out.host.empty()) return invalid_argument(url + ": has no host");
  return out;
}

std::vector<RequestOutcome> run_load(const HttpAddress& server, std::span<const PlannedRequest> plan,
                                     double timeout_s) {
  std::vector<RequestOutcome> outcomes(plan.size());
  asio::io_context context(1);
  boost::system::error_code error;
  const auto ends = tcp::resolver(context).resolve(server.host, server.port, error);
  if (error) {
    for (RequestOutcome& outcome : outcomes) outcome.error = error.message();
    return outcomes;
  }
  const auto begin = Clock::now();
  for (size_t i = 0; i < plan.size(); ++i)
    asio::co_spawn(context, ask(server, ends, plan[i], begin, timeout_s, outcomes[i]), asio::detached);
  context.run();
  return outcomes;
}

Result<std::string> http_get(const HttpAddress& server, const std::string& path) {
  try {
    asio::io_context context(1);
    tcp::socket socket(context);
    asio::connect(socket, tcp::resolver(context).resolve(server.host, server.port));
    asio::write(socket, asio::buffer(head_of(server, "GET", path) + "\r\n"));
    Answer answer;
    std::string body;
    std::array<char, 16384> chunk;
    for (;;) {
      boost::system::error_code error;
      const size_t bytes = socket.read_some(asio::buffer(chunk), error);
      if (error) break;
      body += answer.feed({chunk.data(), bytes});
    }
    if (answer.status() == 200) return body;
    return unavailable(
        fmt::format("{} answers with status {}: {}", path, answer.status(), body.substr(0, 200)));
  } catch (const std::exception& error) {
    return unavailable(error.what());
  }
}

}  // namespace outrider
