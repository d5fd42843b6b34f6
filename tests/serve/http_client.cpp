#include "http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/trimmed.h"
#include "tests/support/program.h"

namespace outrider::testing {
namespace {

constexpr int kPatienceMs = 20'000 * kPatience;

}  // namespace

HttpClient::HttpClient() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}

void HttpClient::connect(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    leave();
    throw std::runtime_error("nobody listens on port " + std::to_string(port));
  }
}

HttpClient::HttpClient(HttpClient&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)),
      buffer_(std::move(other.buffer_)),
      events_(std::move(other.events_)),
      is_chunked_(other.is_chunked_),
      ended_well_(other.ended_well_) {}

HttpClient::~HttpClient() { leave(); }

void HttpClient::leave() {
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
}

void HttpClient::reset() {
  const linger at_once{1, 0};
  setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  leave();
}

bool HttpClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

bool HttpClient::fill() {
  pollfd readable{socket_, POLLIN, 0};
  if (poll(&readable, 1, kPatienceMs) <= 0) throw std::runtime_error("the server says nothing");
  char bytes[65536];
  const ssize_t n = recv(socket_, bytes, sizeof bytes, 0);
  if (n > 0) buffer_.append(bytes, static_cast<size_t>(n));
  return n > 0;
}

std::optional<std::string> HttpClient::line() {
  size_t end = 0;
  while ((end = buffer_.find("\r\n")) == std::string::npos)
    if (!fill()) return std::nullopt;
  std::string text = buffer_.substr(0, end);
  buffer_.erase(0, end + 2);
  return text;
}

std::optional<std::string> HttpClient::take(size_t bytes) {
  while (buffer_.size() < bytes)
    if (!fill()) return std::nullopt;
  std::string text = buffer_.substr(0, bytes);
  buffer_.erase(0, bytes);
  return text;
}

// Empty: the last one.
std::optional<std::string> HttpClient::chunk() {
  const auto size = line();
  if (!size) return std::nullopt;
  auto bytes = take(std::stoul(*size, nullptr, 16));
  if (!bytes || !line()) return std::nullopt;
  return bytes;
}

HttpAnswer HttpClient::head() {
  HttpAnswer answer;
  const auto status = line();
  if (!status || status->size() < 12) return answer;
  while (const auto header = line()) {
    if (header->empty()) {
      answer.status = std::stoi(status->substr(9, 3));
      break;
    }
    std::string name = header->substr(0, header->find(':'));
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    answer.headers[name] = trimmed(std::string_view(*header).substr(name.size() + 1));
  }
  is_chunked_ = answer.headers["transfer-encoding"] == "chunked";
  ended_well_ = false;
  return answer;
}

HttpAnswer HttpClient::answer(bool to_head) {
  HttpAnswer answer = head();
  if (answer.status == 0) return answer;
  if (to_head || answer.status == 100 || answer.status == 204) {
    answer.is_whole = true;
  } else if (is_chunked_) {
    while (const auto bytes = chunk()) {
      answer.body += *bytes;
      if ((answer.is_whole = bytes->empty())) break;
    }
  } else if (const auto length = answer.headers.find("content-length"); length != answer.headers.end()) {
    const auto bytes = take(std::stoul(length->second));
    answer.body = bytes.value_or("");
    answer.is_whole = bytes.has_value();
  } else {
    while (fill()) continue;
    answer.body = std::exchange(buffer_, {});
    answer.is_whole = true;
  }
  return answer;
}

std::optional<std::string> HttpClient::block() {
  size_t end = 0;
  while ((end = events_.find("\n\n")) == std::string::npos) {
    const auto bytes = chunk();
    ended_well_ = bytes && bytes->empty() && events_.empty();
    if (!bytes || bytes->empty()) return std::nullopt;
    events_ += *bytes;
  }
  const std::string event = events_.substr(0, end);
  events_.erase(0, end + 2);
  return event;
}

std::optional<std::string> HttpClient::event() {
  auto text = block();
  while (text && text->starts_with(": ")) text = block();
  if (!text) return std::nullopt;
  if (text->starts_with("event: ")) text->erase(0, text->find('\n') + 1);
  if (!text->starts_with("data: ")) throw std::runtime_error("not an event: " + *text);
  return text->substr(6);
}

std::string HttpClient::comment() {
  const auto text = block();
  if (!text || !text->starts_with(": "))
    throw std::runtime_error("not a comment: " + text.value_or("the end"));
  return text->substr(2);
}

bool HttpClient::is_closed() {
  try {
    while (fill()) buffer_.clear();
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }
}

HttpAnswer HttpClient::get(const std::string& path) {
  send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  return answer();
}

HttpAnswer HttpClient::post(const std::string& path, const std::string& body, const std::string& headers) {
  send(post_text(path, body, headers));
  return answer();
}

std::string post_text(const std::string& path, const std::string& body, const std::string& headers) {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

}  // namespace outrider::testing
