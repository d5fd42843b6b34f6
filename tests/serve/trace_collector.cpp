#include "trace_collector.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

namespace outrider::testing {

using nlohmann::json;

TraceCollector::TraceCollector(int status) : status_(status) {
  socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(socket_, plain, size), 0);
  EXPECT_EQ(listen(socket_, 16), 0);
  EXPECT_EQ(getsockname(socket_, plain, &size), 0);
  port_ = ntohs(address.sin_port);
  thread_ = std::jthread([this] { run(); });
}

TraceCollector::~TraceCollector() {
  shutdown(socket_, SHUT_RDWR);
  thread_.join();
  close(socket_);
  for (const int connection : silent_) close(connection);
}

void TraceCollector::run() {
  for (int connection = -1; (connection = accept(socket_, nullptr, nullptr)) >= 0;) serve(connection);
}

void TraceCollector::serve(int connection) {
  std::string text;
  size_t body = std::string::npos, length = 0;
  char piece[4096];
  while (body == std::string::npos || text.size() < body + length) {
    const ssize_t count = read(connection, piece, sizeof piece);
    if (count <= 0) break;
    text.append(piece, static_cast<size_t>(count));
    if (body != std::string::npos || text.find("\r\n\r\n") == std::string::npos) continue;
    body = text.find("\r\n\r\n") + 4;
    length = std::stoul(text.substr(text.find("Content-Length: ") + 16));
  }
  {
    const std::lock_guard lock(mutex_);
    head_ = text.substr(0, body);
    last_ = json::parse(text.substr(body));
    const size_t before = spans_.size();
    for (const json& resource : last_["resourceSpans"])
      for (const json& scope : resource["scopeSpans"])
        for (const json& span : scope["spans"]) spans_.push_back(span);
    posts_.push_back(spans_.size() - before);
    if (status_ == 0) silent_.push_back(connection);
  }
  changed_.notify_all();
  if (status_ == 0) return;
  const std::string answer =
      "HTTP/1.1 " + std::to_string(status_) + " X\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
  EXPECT_EQ(write(connection, answer.data(), answer.size()), static_cast<ssize_t>(answer.size()));
  close(connection);
}

std::vector<json> TraceCollector::spans(const std::string& name, size_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::seconds(60), [&] {
    return static_cast<size_t>(std::count_if(spans_.begin(), spans_.end(), [&](const json& span) {
             return span["name"] == name;
           })) >= count;
  });
  return spans_;
}

std::vector<size_t> TraceCollector::posts() const {
  const std::lock_guard lock(mutex_);
  return posts_;
}

std::string TraceCollector::head() const {
  const std::lock_guard lock(mutex_);
  return head_;
}

std::map<std::string, std::string> TraceCollector::resource() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::string> out;
  for (const json& item : last_["resourceSpans"][0]["resource"]["attributes"])
    out[item["key"]] = item["value"]["stringValue"];
  return out;
}

json attribute(const json& span, const std::string& key) {
  for (const json& item : span["attributes"])
    if (item["key"] == key) return item["value"].begin().value();
  return {};
}

}  // namespace outrider::testing
