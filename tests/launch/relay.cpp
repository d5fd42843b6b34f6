#include "relay.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>

namespace outrider::testing {
namespace {

constexpr int kLookMs = 5;

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int new_socket() { return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); }

// The peer gets a reset.
void reset(int fd) {
  const linger none{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
  close(fd);
}

}  // namespace

Relay::Relay(const std::string& endpoint)
    : to_(static_cast<uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)))),
      listener_(new_socket()) {
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener_, 16) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw std::runtime_error("relay: cannot listen");
  endpoint_ = "tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  thread_ = std::thread([this] { run(); });
}

Relay::~Relay() {
  ends_ = true;
  thread_.join();
  for (const Wire& wire : wires_) close(wire.ends[0]), close(wire.ends[1]);
  close(listener_);
}

void Relay::run() {
  while (!ends_) {
    std::vector<pollfd> waiting{{listener_, POLLIN, 0}};
    for (const Wire& wire : wires_)
      for (const int end : {0, 1}) waiting.push_back({wire.is_open[end] ? wire.ends[end] : -1, POLLIN, 0});
    poll(waiting.data(), waiting.size(), kLookMs);
    for (size_t i = 0; i < wires_.size() && !is_cut_; ++i)
      for (const int end : {0, 1})
        if (waiting[1 + 2 * i + static_cast<size_t>(end)].revents) carry(wires_[i], end);
    std::erase_if(wires_, [&](const Wire& wire) {
      const bool ended = !wire.is_open[0] && !wire.is_open[1];
      if (!is_cut_ && !ended) return false;
      broken_ += !ended;
      for (const int end : wire.ends) ended ? void(close(end)) : reset(end);
      return true;
    });
    if (waiting[0].revents) accept_one();
  }
}

void Relay::accept_one() {
  const int from = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (from < 0) return;
  const sockaddr_in address = loopback(to_);
  const int to = new_socket();
  if (!is_cut_ && connect(to, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
    return wires_.push_back({.ends = {from, to}});
  ++turned_away_;
  reset(from), close(to);
}

// When one end has finished sending, the relay closes that direction only, so the other end may still send.
void Relay::carry(Wire& wire, int from) {
  const int to = wire.ends[1 - from];
  char bytes[65536];
  const ssize_t count = recv(wire.ends[from], bytes, sizeof bytes, 0);
  for (ssize_t sent = 0, n = 0; sent < count; sent += n)
    if (n = send(to, bytes + sent, static_cast<size_t>(count - sent), MSG_NOSIGNAL); n <= 0) break;
  if (count > 0) return;
  wire.is_open[from] = false;
  shutdown(to, SHUT_WR);
}

}  // namespace outrider::testing
