// A minimal client over a plain socket: sends any bytes, invalid ones too, and reads the reply.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace outrider::testing {

struct HttpAnswer {
  int status = 0;                              // 0: the connection ended before an answer was there
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  bool is_whole = false;  // nothing of the body is missing
};

class HttpClient {
 public:
  HttpClient();  // not connected yet
  explicit HttpClient(uint16_t port) : HttpClient() { connect(port); }
  ~HttpClient();
  HttpClient(HttpClient&& other) noexcept;
  HttpClient& operator=(HttpClient&&) = delete;

  void connect(uint16_t port);
  // False: the server has closed the connection.
  bool send(std::string_view bytes);
  // Waits for an answer; `to_head`: HEAD has none but headers. Interim answers (100) come as one of their
  // own.
  HttpAnswer answer(bool to_head = false);
  // Sends a whole request and waits.
  HttpAnswer get(const std::string& path);
  HttpAnswer post(const std::string& path, const std::string& body, const std::string& headers = {});
  // The head of a stream, then what stands after "data: " in each event, comments left out. Empty: the stream
  // has ended.
  HttpAnswer head();
  std::optional<std::string> event();
  std::string comment();  // the next thing in the stream, without its ": "; must be one
  // Whether the last stream ended as it should.
  bool ended_well() const { return ended_well_; }
  bool is_closed();  // by the server, within the patience of this test; throws away what still comes

  void leave();  // closes
  void reset();  // closes so that the server gets an error

 private:
  bool fill();  // more bytes into buffer_; false at the end
  std::optional<std::string> line();
  std::optional<std::string> take(size_t bytes);
  std::optional<std::string> chunk();
  std::optional<std::string> block();  // up to an empty line

  int socket_ = -1;
  std::string buffer_, events_;
  bool is_chunked_ = false, ended_well_ = false;
};

std::string post_text(const std::string& path, const std::string& body, const std::string& headers = {});

}  // namespace outrider::testing
