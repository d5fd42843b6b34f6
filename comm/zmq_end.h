// Common part of ZeroMQ connections: comm/zmq_server.cpp, comm/zmq_client.cpp. Internal to comm.
#pragma once

#include <optional>
#include <string>

#include "base/core_watch.h"
#include "comm/bell.h"
#include "comm/frame_end.h"
#include "comm/zmq_socket.h"

namespace outrider {

// One end: a context with one I/O thread and one socket. Subclasses define the peers.
class ZmqEnd : public Transport {
 public:
  ZmqEnd(zmq::socket_type type, const ZmqOptions& options)
      : context_(1),
        socket_(context_, type),
        frames_(options.cluster, random_generation(),
                {.frame_bytes = static_cast<size_t>(options.max_message_bytes)}) {
    set_socket_options(socket_, options);
  }

  std::optional<Incoming> receive(Clock::time_point deadline) override {
    constexpr int kMaxDropsPastDeadline = 64;  // a flood of malformed frames must not hold up receive()
    constexpr int kDropsPerLook = 16;          // ... or the other reasons to wake it
    const auto sleep_from = looking_.count() > 0 ? Clock::now() + looking_ : Clock::time_point();
    int since_look = 0;
    if (looking_.count() > 0) watch_.begin(Clock::now());
    for (int dropped = 0; dropped < kMaxDropsPastDeadline;) {
      update_stats();
      zmq::message_t first;
      if (receive_now(socket_, first)) {
        if (auto incoming = accept(std::move(first))) return incoming;
        dropped += Clock::now() >= deadline;
        if (++since_look < kDropsPerLook) continue;
      } else {
        const auto now = Clock::now();
        if (now >= deadline) break;
        if (now >= sleep_from || !watch_.may_look(now)) {
          wait_in(socket_, deadline, {bell_->fd(), other_fd_});
          watch_.begin(Clock::now());
        }
      }
      since_look = 0;
      if (bell_->heard() || can_be_read(other_fd_)) break;
    }
    return std::nullopt;
  }

  std::function<void()> waker() override {
    return [bell = bell_] { bell->ring(); };
  }
  void keep_looking(std::chrono::microseconds time) override { looking_ = time; }
  const TransportStats& stats() const override { return frames_.stats; }
  void recycle(QSlice slice) override { frames_.recycle(std::move(slice)); }
  std::string endpoint() const override { return endpoint_; }
  int ready_fd() const override { return socket_.get(zmq::sockopt::fd); }
  // receive() also returns empty when `fd` becomes readable. -1: none.
  void wake_by(int fd) { other_fd_ = fd; }

 protected:
  virtual void update_stats() {}
  // Empty: dropped (malformed, repeated).
  virtual std::optional<Incoming> accept(zmq::message_t first) = 0;

  // Reads and drops the remaining parts of a message that has too many.
  bool drop_extra_parts(bool more) {
    if (!more) return false;
    for (zmq::message_t part; more && receive_now(socket_, part);) more = part.more();
    ++frames_.stats.malformed_frames;
    return true;
  }

  zmq::context_t context_;  // outlives the socket
  zmq::socket_t socket_;
  FrameEnd frames_;
  std::string endpoint_;
  const std::shared_ptr<Bell> bell_ = std::make_shared<Bell>();
  std::chrono::microseconds looking_{0};
  CoreWatch watch_;
  int other_fd_ = -1;
};

// make_zmq_server for callers that also wait for other descriptors.
Result<std::unique_ptr<ZmqEnd>> open_zmq_server(const std::string& bind_endpoint, const ZmqOptions& options);

}  // namespace outrider
