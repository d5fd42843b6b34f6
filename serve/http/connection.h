// One client's connection: parses requests and sends answers, with deadlines for everything. Used on the
// thread of the sockets; exists as long as it waits for its client.
#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "serve/http/exchange.h"
#include "serve/http/server.h"

namespace outrider {

class HttpParser;  // Boost.Beast's, which few files should include

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Clock = std::chrono::steady_clock;

  // Receives its events; must outlive it.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void asked(HttpRequest request, std::shared_ptr<HttpReply> reply,
                       std::shared_ptr<const HttpExchange> exchange) = 0;
    virtual void answered() = 0;
    virtual void noted(const HttpRecord& record) = 0;
    virtual void closed(HttpConnection& connection) = 0;
  };

  HttpConnection(boost::asio::ip::tcp::socket socket, const HttpOptions& options, Owner& owner,
                 std::shared_ptr<SocketThread> thread);
  ~HttpConnection();

  void start();
  // In place of start(): answers that there are too many connections, and closes.
  void refuse();
  // Finishes the current answer and takes no further request.
  void finish();
  void close();

  bool is_answering() const { return phase_ == Phase::kAnswer; }
  // The time since when the connection waits only for a new request, or for the client to close.
  std::optional<Clock::time_point> idle_since() const;

  // Called by the HttpReply of `exchange`, on this thread; no effect after the exchange is over.
  void send(const HttpExchange* exchange, int status, std::string_view content_type, std::string_view body,
            const HttpHeaders& headers);
  void begin_events(const HttpExchange* exchange);
  void event(const HttpExchange* exchange, const std::string& text);  // with the names of its lines
  void end_events(const HttpExchange* exchange);
  void drop(const HttpExchange* exchange);

 private:
  enum class Phase {
    kIdle,      // between requests
    kHeader,    // the first bytes have arrived, or the connection is new
    kBody,      // the headers have arrived
    kAnswer,    // the request is being handled; a read stays pending, to notice a client that leaves
    kFarewell,  // all is written; arriving bytes are discarded, or a reset would overtake the answer
    kClosed,
  };

  void read();
  void on_read(const boost::system::error_code& error, size_t bytes);
  void advance();
  bool parse();
  bool accept_header();
  void ask();
  void fail(int status, const std::string& message);
  void begin_record();
  void identify();
  void end_record(bool is_whole);
  void enter(Phase phase);
  void await(std::chrono::milliseconds limit);
  void on_deadline();

  void write(std::string_view bytes);
  void flush();
  void on_written(const boost::system::error_code& error, size_t bytes);
  void after_answer();
  void cut_off();
  void end_answer();
  std::string head(int status, std::string_view content_type, const HttpHeaders& headers);

  const HttpOptions& options_;
  const HttpLimits& limits_ = options_.limits;
  Owner& owner_;
  const std::shared_ptr<SocketThread> thread_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer read_timer_, write_timer_;
  std::string peer_;    // address of the peer
  std::string client_;  // client of the last request, possibly forwarded by a proxy
  Phase phase_ = Phase::kHeader;
  Clock::time_point phase_since_ = Clock::now();

  std::array<char, 8192> chunk_;
  bool reading_ = false;
  std::string inbox_;  // received, unparsed bytes; may contain further requests
  std::unique_ptr<HttpParser> parser_;
  bool is_head_ = false;                    // HEAD: only the headers are sent
  bool is_chunked_ = false;                 // events are sent as chunks: HTTP/1.1
  bool keep_alive_ = false;                 // after this answer
  bool has_begun_ = false;                  // headers of the answer were sent
  bool is_complete_ = false;                // the answer is complete; its last bytes may be unsent
  std::shared_ptr<HttpExchange> exchange_;  // while the answer is not complete
  bool broke_off_ = false;                  // a stream ended without its proper end
  std::string more_headers_;                // of this answer
  bool is_allowed_origin_ = false;          // the page's origin is allowed
  std::optional<HttpRecord> record_;        // of this answer
  Clock::time_point record_since_{};

  std::string sending_, unsent_;  // being written, from sent_ on; to be written next
  size_t sent_ = 0;
  bool writing_ = false;
};

}  // namespace outrider
