// The part of HTTP/1.1 that the API needs: whole requests in, whole replies or server-sent events out, with
// limits on everything that a client may send (sizes, times, connections). Independent of models.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "serve/http/forwarded.h"

namespace outrider {

struct HttpRequest {
  std::string method;  // "GET" also for HEAD; the server omits the body
  std::string path;    // without the query
  std::string query;   // with its question mark; empty without one
  // Headers as sent; empty without one.
  std::string host;  // with the port
  std::string content_type, content_encoding;
  std::string authorization;
  std::string api_key;             // X-Api-Key
  std::string requested_headers;   // Access-Control-Request-Headers
  bool is_allowed_origin = false;  // sent by a web page of an allowed origin
  std::string client;              // its address, or the one that a trusted proxy forwards
  std::string traceparent, tracestate;
  std::string request_id;          // X-Request-Id, or a generated one; the answer contains it
  std::string body;
};

// The outcome of one request, for logs and counts.
struct HttpRecord {
  std::string client, method, path, request_id;  // method and path: empty if none could be parsed
  int status = 0;                                // 499: the client left before it was answered
  uint64_t bytes = 0;                            // of the answer, its head included
  bool is_whole = false;                         // all of it was written, and a stream ended properly
  std::chrono::steady_clock::duration time{};    // from the end of its headers
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// The answer to one request, given once, from any thread, at any time; calls of different threads must not
// overlap. Has no effect if the client has left. Destroyed without an answer it sends 500; destroyed within a
// stream it closes the connection.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  virtual void send(int status, std::string_view content_type, std::string body,
                    const HttpHeaders& headers = {}) = 0;

  // Alternatively a stream of events: begin, any number of events ("data: ...\n\n"; `data` without line
  // breaks), end.
  virtual void begin_events() = 0;
  // `name`, if not empty, is sent as a line before the data.
  virtual void event(std::string data, std::string_view name = {}) = 0;
  virtual void comment(std::string text) = 0;  // ignored by clients; keeps the connection alive
  virtual void end_events() = 0;

  // Runs `task` on the thread of the sockets, in order, for a caller that must not spend time on the answer.
  // Skipped if the client has left.
  virtual void later(std::function<void()> task) = 0;
  // Runs the task after `delay`, whatever the state of the answer.
  virtual void after(std::chrono::milliseconds delay, std::function<void()> task) = 0;

  // Calls `gone` once, on the thread of the sockets or in the server's destructor, if the client leaves, or
  // reads too slowly, before the answer is complete; at once if it has left already.
  virtual void on_gone(std::function<void()> gone) = 0;
};

// Called on one of the server's threads. Except on that of the sockets it may take long (a long prompt is
// tokenised there).
using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<HttpReply>)>;

struct HttpLimits {
  size_t header_bytes = 8 << 10;
  size_t body_bytes = 1 << 20;
  int connections = 1024;
  size_t unsent_bytes = 1 << 20;                  // limit for events; a slower client is disconnected
  std::chrono::milliseconds header_time{10'000};  // from the first byte to the last one
  std::chrono::milliseconds body_time{30'000};    // from the headers to the last byte
  std::chrono::milliseconds idle_time{60'000};    // until a connection's first or next request begins
  std::chrono::milliseconds write_time{30'000};   // without progress
};

struct HttpOptions {
  HttpLimits limits;
  std::vector<std::string> allowed_origins = {};  // of web pages; "*": all
  TrustedProxies trusted_proxies = {};            // whose X-Forwarded-For is used
  // Threads that handle requests. With several, the first one takes only requests with short bodies, so that
  // these never wait for long ones; clients take turns in both.
  int handler_threads = 2;
  size_t short_body_bytes = 64 << 10;
  // Requests that are handled at once, on the thread of the sockets, before all waiting ones: those that take
  // microseconds. Empty: none.
  std::function<bool(const HttpRequest&)> is_quick = {};
  std::function<void(const HttpRecord&)> on_answered = {};  // on the thread of the sockets
};

class HttpServer {
 public:
  // Listens, and answers from then on. Errors name --host and --port, and the likely owner of the port.
  static Result<std::unique_ptr<HttpServer>> start(const std::string& host, uint16_t port,
                                                   HttpOptions options, HttpHandler handler);
  virtual ~HttpServer() = default;          // closes every connection, then joins its threads
  virtual std::string address() const = 0;  // "http://127.0.0.1:8000": with port 0, the one that was given
  // Refuses new connections, and further requests on open ones. Returns when all answers are sent, or after
  // `limit`.
  virtual void drain(std::chrono::milliseconds limit) = 0;
};

}  // namespace outrider
