#include "serve/http/connection.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <ctime>
#include <random>

#include "serve/http/error_body.h"

namespace outrider {

namespace asio = boost::asio;
namespace http = boost::beast::http;

class HttpParser : public http::request_parser<http::string_body> {};

namespace {

constexpr size_t kInboxBytes = size_t{64} << 10;  // further bytes wait in the kernel
constexpr std::chrono::milliseconds kFarewellTime{2000};

// A handler's reference to an exchange.
class Reply final : public HttpReply {
 public:
  Reply(std::weak_ptr<HttpConnection> connection, std::shared_ptr<SocketThread> thread,
        std::shared_ptr<HttpExchange> exchange)
      : connection_(std::move(connection)), thread_(std::move(thread)), exchange_(std::move(exchange)) {}
  ~Reply() override {
    on_connection([](HttpConnection& c, const HttpExchange* e) { c.drop(e); });
  }

  void send(int status, std::string_view content_type, std::string body,
            const HttpHeaders& headers) override {
    on_connection(
        [=, type = std::string(content_type), text = std::make_shared<std::string>(std::move(body))](
            HttpConnection& c, const HttpExchange* e) { c.send(e, status, type, *text, headers); });
  }
  void begin_events() override {
    on_connection([](HttpConnection& c, const HttpExchange* e) { c.begin_events(e); });
  }
  void event(std::string data, std::string_view name) override {
    const std::string first = name.empty() ? "" : fmt::format("event: {}\n", name);
    say(fmt::format("{}data: {}\n\n", first, data));
  }
  void comment(std::string text) override { say(fmt::format(": {}\n\n", text)); }
  void end_events() override {
    on_connection([](HttpConnection& c, const HttpExchange* e) { c.end_events(e); });
  }
  void later(std::function<void()> task) override {
    thread_->post([exchange = exchange_, run = std::move(task)] {
      if (!exchange->is_gone()) run();
    });
  }
  void after(std::chrono::milliseconds delay, std::function<void()> task) override {
    thread_->after(delay, std::move(task));
  }
  void on_gone(std::function<void()> gone) override { exchange_->on_gone(std::move(gone)); }

 private:
  void say(std::string text) {
    on_connection([said = std::move(text)](HttpConnection& c, const HttpExchange* e) { c.event(e, said); });
  }
  template <class Task>
  void on_connection(Task task) {
    thread_->post([connection = connection_, exchange = exchange_, run = std::move(task)] {
      if (const auto alive = connection.lock()) run(*alive, exchange.get());
    });
  }

  const std::weak_ptr<HttpConnection> connection_;
  const std::shared_ptr<SocketThread> thread_;
  const std::shared_ptr<HttpExchange> exchange_;
};

// Removes line breaks, which would begin another header.
std::string without_controls(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
  return text;
}

// The client's own id if it can be printed and returned, else a new one.
std::string request_id_of(const std::string& sent) {
  constexpr size_t kMostBytes = 128;
  const bool is_visible = std::all_of(sent.begin(), sent.end(), [](char c) { return c > ' ' && c < '\x7f'; });
  if (!sent.empty() && sent.size() <= kMostBytes && is_visible) return sent;
  static const uint32_t life = std::random_device()();
  static std::atomic<uint32_t> count{0};
  return fmt::format("req-{:08x}{:08x}", life, ++count);
}

// Headers that let a web page of this origin read the answer; empty for other origins.
std::string cors_headers(const std::string& origin, const std::vector<std::string>& allowed) {
  const auto is = [&](const std::string& one) { return one == "*" || one == origin; };
  if (origin.empty() || std::none_of(allowed.begin(), allowed.end(), is)) return {};
  return fmt::format(
      "Access-Control-Allow-Origin: {}\r\nVary: Origin\r\nAccess-Control-Expose-Headers: X-Request-Id, "
      "Retry-After\r\n",
      without_controls(origin));
}

// The joined values of a header that may come in several lines.
std::string all_of(const HttpParser* parser, std::string_view name) {
  std::string all;
  if (!parser) return all;
  const auto [begin, end] = parser->get().equal_range({name.data(), name.size()});
  for (auto at = begin; at != end; ++at) {
    if (!all.empty()) all += ',';
    all.append(at->value().data(), at->value().size());
  }
  return all;
}

std::string address_of(const asio::ip::tcp::socket& socket) {
  boost::system::error_code error;
  const auto end = socket.remote_endpoint(error);
  return error ? std::string() : end.address().to_string();
}

}  // namespace

HttpConnection::HttpConnection(asio::ip::tcp::socket socket, const HttpOptions& options, Owner& owner,
                               std::shared_ptr<SocketThread> thread)
    : options_(options),
      owner_(owner),
      thread_(std::move(thread)),
      socket_(std::move(socket)),
      read_timer_(socket_.get_executor()),
      write_timer_(socket_.get_executor()),
      peer_(address_of(socket_)),
      client_(peer_) {}

HttpConnection::~HttpConnection() = default;

void HttpConnection::start() {
  boost::system::error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  enter(Phase::kIdle);  // its headers may begin as late as those of a next request
  read();
}

void HttpConnection::refuse() {
  start();
  fail(503, "too many connections; try again later");
}

void HttpConnection::finish() {
  keep_alive_ = false;
  if (phase_ != Phase::kAnswer) close();
}

std::optional<HttpConnection::Clock::time_point> HttpConnection::idle_since() const {
  const bool idle = phase_ == Phase::kIdle || phase_ == Phase::kHeader || phase_ == Phase::kFarewell;
  return idle ? std::optional(phase_since_) : std::nullopt;
}

// ---- bytes in -------------------------------------------------------------------------------------------

void HttpConnection::enter(Phase phase) {
  phase_ = phase;
  phase_since_ = Clock::now();
  switch (phase) {
    case Phase::kIdle:
      return await(limits_.idle_time);
    case Phase::kHeader:
      parser_ = std::make_unique<HttpParser>();
      parser_->header_limit(static_cast<uint32_t>(limits_.header_bytes));
      parser_->body_limit(limits_.body_bytes);
      return await(limits_.header_time);
    case Phase::kBody:
      return await(limits_.body_time);
    case Phase::kFarewell:
      return await(kFarewellTime);
    case Phase::kAnswer:
    case Phase::kClosed:
      read_timer_.cancel();
  }
}

// Sets the deadline of a whole phase: single bytes do not extend it.
void HttpConnection::await(std::chrono::milliseconds limit) {
  read_timer_.expires_after(limit);
  read_timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    // The handler of a moved deadline may already have been queued.
    if (!error && self->read_timer_.expiry() <= Clock::now()) self->on_deadline();
  });
}

void HttpConnection::on_deadline() {
  const bool has_begun = phase_ == Phase::kBody || (phase_ == Phase::kHeader && !inbox_.empty());
  if (phase_ == Phase::kAnswer) return;
  if (!has_begun) return close();
  fail(408, phase_ == Phase::kBody ? "the body took too long; send it faster, or less"
                                   : "the headers took too long; send them faster");
}

void HttpConnection::read() {
  if (reading_ || phase_ == Phase::kClosed || inbox_.size() + chunk_.size() > kInboxBytes) return;
  reading_ = true;
  socket_.async_read_some(asio::buffer(chunk_),
                          [self = shared_from_this()](const boost::system::error_code& error, size_t bytes) {
                            self->on_read(error, bytes);
                          });
}

void HttpConnection::on_read(const boost::system::error_code& error, size_t bytes) {
  reading_ = false;
  if (phase_ == Phase::kClosed) return;
  if (error) return close();  // the client left
  if (phase_ != Phase::kFarewell) inbox_.append(chunk_.data(), bytes);
  advance();
  read();
}

void HttpConnection::advance() {
  if (phase_ == Phase::kIdle && !inbox_.empty()) enter(Phase::kHeader);
  if (phase_ == Phase::kHeader && parse() && parser_->is_header_done()) {
    if (!accept_header()) return;
    parser_->eager(true);
    enter(Phase::kBody);
  }
  if (phase_ == Phase::kBody && parse() && parser_->is_done()) ask();
}

// Parses the inbox up to the end of the request. False: the request was refused.
bool HttpConnection::parse() {
  if (parser_->is_done()) return true;
  boost::system::error_code error;
  inbox_.erase(0, parser_->put(asio::buffer(inbox_), error));
  const bool is_stuck = error == http::error::need_more && inbox_.size() + chunk_.size() > kInboxBytes;
  if (!error || (error == http::error::need_more && !is_stuck)) return true;
  if (error == http::error::body_limit)
    fail(413, fmt::format("the body is longer than {} bytes", limits_.body_bytes));
  else if (error == http::error::header_limit)
    fail(431, fmt::format("the headers are longer than {} bytes", limits_.header_bytes));
  else
    fail(400, fmt::format("not HTTP/1.1: {}", is_stuck ? "an endless line" : error.message()));
  return false;
}

bool HttpConnection::accept_header() {
  const auto& header = parser_->get();
  is_head_ = header.method() == http::verb::head;
  is_chunked_ = header.version() == 11;
  const bool is_plain = header.count(http::field::transfer_encoding) == 0 || parser_->chunked();
  if (!is_plain) {
    fail(400, "transfer encodings other than chunked are not understood");
  } else if (!is_chunked_ && header.count(http::field::transfer_encoding) > 0) {
    fail(400, "HTTP/1.0 knows no Transfer-Encoding; send Content-Length, or HTTP/1.1");
  } else if (is_chunked_ && header.count(http::field::host) == 0) {
    fail(400, "the Host header is missing");
  } else if (header.count(http::field::host) > 1) {
    fail(400, "there are several Host headers; send one");
  } else if (!header.target().starts_with('/')) {
    fail(400, "write the path alone, as in GET /health");
  } else {
    keep_alive_ = header.keep_alive();
    begin_record();
    identify();
    if (boost::beast::iequals(header[http::field::expect], "100-continue") && !parser_->is_done())
      write("HTTP/1.1 100 Continue\r\n\r\n");
    return true;
  }
  return false;
}

void HttpConnection::ask() {
  auto& message = parser_->get();
  const auto field = [&](http::field name) { return std::string(message[name]); };
  const std::string_view target(message.target().data(), message.target().size());
  HttpRequest request{.method = is_head_ ? "GET" : std::string(message.method_string()),
                      .path = std::string(target.substr(0, target.find('?'))),
                      .query = std::string(target.substr(std::min(target.find('?'), target.size()))),
                      .host = field(http::field::host),
                      .content_type = field(http::field::content_type),
                      .content_encoding = field(http::field::content_encoding),
                      .authorization = field(http::field::authorization),
                      .api_key = std::string(message["X-Api-Key"]),
                      .requested_headers = field(http::field::access_control_request_headers),
                      .is_allowed_origin = is_allowed_origin_,
                      .client = client_,
                      .traceparent = std::string(message["traceparent"]),
                      .tracestate = std::string(message["tracestate"]),
                      .request_id = record_->request_id,
                      .body = std::move(message.body())};
  record_->method = request.method;
  record_->path = request.path;
  parser_.reset();
  exchange_ = std::make_shared<HttpExchange>();
  has_begun_ = is_complete_ = false;
  enter(Phase::kAnswer);
  owner_.asked(std::move(request), std::make_shared<Reply>(weak_from_this(), thread_, exchange_), exchange_);
}

void HttpConnection::begin_record() {
  record_ = HttpRecord{.client = client_, .method = {}, .path = {}, .request_id = {}};
  record_since_ = Clock::now();
}

void HttpConnection::end_record(bool is_whole) {
  if (!record_) return;
  if (record_->status == 0) record_->status = 499;
  record_->is_whole = is_whole;
  record_->time = Clock::now() - record_since_;
  owner_.noted(*std::exchange(record_, std::nullopt));
}

// Finds the client and the request id from the headers received so far.
void HttpConnection::identify() {
  const auto sent = [&](auto name) { return parser_ ? std::string(parser_->get()[name]) : std::string(); };
  client_ = options_.trusted_proxies.client(peer_, all_of(parser_.get(), "X-Forwarded-For"));
  record_->client = client_;
  if (record_->request_id.empty()) record_->request_id = request_id_of(sent("X-Request-Id"));
  const std::string cors = cors_headers(sent(http::field::origin), options_.allowed_origins);
  is_allowed_origin_ = !cors.empty();
  more_headers_ = cors + fmt::format("X-Request-Id: {}\r\n", record_->request_id);
}

// Answers with an error and closes: later bytes of this connection cannot be parsed.
void HttpConnection::fail(int status, const std::string& message) {
  keep_alive_ = false;
  is_complete_ = true;
  if (!record_) begin_record();
  is_head_ = parser_ && parser_->get().method() == http::verb::head;
  identify();
  enter(Phase::kAnswer);
  const std::string body = error_body({.status = status, .message = message});
  write(head(status, "application/json", {{"Content-Length", std::to_string(body.size())}}));
  if (!is_head_) write(body);
}

// ---- answers out ----------------------------------------------------------------------------------------

std::string HttpConnection::head(int status, std::string_view content_type, const HttpHeaders& headers) {
  if (record_) record_->status = status;
  const auto reason = http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status)));
  std::string text = fmt::format("HTTP/1.1 {} {}\r\nDate: {:%a, %d %b %Y %H:%M:%S} GMT\r\nConnection: {}\r\n",
                                 status, std::string_view(reason.data(), reason.size()),
                                 fmt::gmtime(std::time(nullptr)), keep_alive_ ? "keep-alive" : "close");
  if (!content_type.empty()) text += fmt::format("Content-Type: {}\r\n", content_type);
  for (const auto& [name, value] : headers)
    text += fmt::format("{}: {}\r\n", without_controls(name), without_controls(value));
  return text + more_headers_ + "\r\n";
}

void HttpConnection::send(const HttpExchange* exchange, int status, std::string_view content_type,
                          std::string_view body, const HttpHeaders& headers) {
  if (exchange != exchange_.get() || has_begun_) return;
  HttpHeaders all = headers;
  if (status != 204) all.emplace_back("Content-Length", std::to_string(body.size()));
  write(head(status, content_type, all));
  if (!is_head_) write(body);
  end_answer();
}

// Without chunks, closing the connection ends the events.
void HttpConnection::begin_events(const HttpExchange* exchange) {
  if (exchange != exchange_.get() || has_begun_) return;
  has_begun_ = true;
  HttpHeaders headers{{"Cache-Control", "no-store"}};
  if (is_chunked_) headers.emplace_back("Transfer-Encoding", "chunked");
  keep_alive_ = keep_alive_ && is_chunked_;
  write(head(200, "text/event-stream; charset=utf-8", headers));
}

void HttpConnection::event(const HttpExchange* exchange, const std::string& event) {
  if (exchange != exchange_.get() || !has_begun_) return;
  if (sending_.size() - sent_ + unsent_.size() + event.size() > limits_.unsent_bytes) return cut_off();
  write(is_chunked_ ? fmt::format("{:x}\r\n{}\r\n", event.size(), event) : event);
}

void HttpConnection::end_events(const HttpExchange* exchange) {
  if (exchange != exchange_.get() || !has_begun_) return;
  if (is_chunked_) write("0\r\n\r\n");
  end_answer();
}

void HttpConnection::drop(const HttpExchange* exchange) {
  if (exchange != exchange_.get()) return;
  if (has_begun_) {  // without the last chunk, so that an interrupted stream does not look complete
    keep_alive_ = false;
    broke_off_ = true;
    return end_answer();
  }
  const std::string body = error_body({.status = 500, .message = "the request was not answered"});
  send(exchange, 500, "application/json", body, {});
}

void HttpConnection::end_answer() {
  is_complete_ = true;
  exchange_->complete();
  exchange_.reset();
  if (!writing_) after_answer();
}

void HttpConnection::write(std::string_view bytes) {
  unsent_ += bytes;
  if (record_ && record_->status != 0) record_->bytes += bytes.size();
  if (!writing_ && phase_ != Phase::kClosed) flush();
}

void HttpConnection::flush() {
  if (sent_ == sending_.size()) {
    sending_.clear();
    sent_ = 0;
    sending_.swap(unsent_);
  }
  writing_ = true;
  write_timer_.expires_after(limits_.write_time);
  write_timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    if (!error && self->writing_ && self->write_timer_.expiry() <= Clock::now()) self->cut_off();
  });
  socket_.async_write_some(asio::buffer(sending_.data() + sent_, sending_.size() - sent_),
                           [self = shared_from_this()](const boost::system::error_code& error, size_t bytes) {
                             self->on_written(error, bytes);
                           });
}

void HttpConnection::on_written(const boost::system::error_code& error, size_t bytes) {
  writing_ = false;
  if (phase_ == Phase::kClosed) return;
  if (error) return close();
  sent_ += bytes;
  if (sent_ < sending_.size() || !unsent_.empty()) return flush();
  write_timer_.cancel();
  if (is_complete_ && phase_ == Phase::kAnswer) after_answer();
}

void HttpConnection::after_answer() {
  is_complete_ = false;
  end_record(!broke_off_);
  broke_off_ = false;
  more_headers_.clear();
  if (keep_alive_) {
    enter(Phase::kIdle);
    advance();
  } else {
    boost::system::error_code ignored;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
    inbox_.clear();
    enter(Phase::kFarewell);
  }
  read();
  owner_.answered();
}

// Closes with a reset, so that the kernel drops bytes that the client did not read.
void HttpConnection::cut_off() {
  boost::system::error_code ignored;
  socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  close();
}

void HttpConnection::close() {
  if (phase_ == Phase::kClosed) return;
  const auto self = shared_from_this();
  enter(Phase::kClosed);
  write_timer_.cancel();
  boost::system::error_code ignored;
  socket_.close(ignored);
  if (const auto exchange = std::exchange(exchange_, nullptr)) exchange->leave();
  end_record(false);
  owner_.closed(*this);
}

}  // namespace outrider
