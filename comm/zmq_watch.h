// Bounds the unread bytes of a server's connections and closes those that exceed it. Internal to comm.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include <zmq.hpp>

#include "comm/transport.h"

namespace outrider {

// ZeroMQ keeps the parts of a message until its last one arrives, counts none of it against a limit, and
// reports none of it. The kernel counts the bytes of each TCP connection, and the socket's monitor lists the
// connections. A thread of its own checks every kLook, because the server's owner may be busy for long.
// Connections of Unix sockets come only from this user's processes; they are counted and not measured.
class ConnectionWatch {
 public:
  // Before `socket` is bound; both outlive this.
  ConnectionWatch(zmq::context_t& context, zmq::socket_t& socket, const OutsideLimits& limits);
  ~ConnectionWatch();

  // Identifies a connection, even if its descriptor's number is reused later. 0: none.
  struct Id {
    int fd = -1;
    uint64_t order = 0;  // of arrival
  };
  // The connection whose message was read just now, by ZeroMQ's descriptor.
  Id id_of(int fd);
  // A message of this connection was read, so its earlier ones are no longer held.
  void note_read(Id id);
  void note_member(Id id, bool is_member);

  uint64_t closed() const { return closed_; }

 private:
  // A copy of ZeroMQ's descriptor, which therefore refers to the same connection while it exists.
  struct Connection {
    int copy = -1;
    uint64_t order = 0;
    bool is_member = false;
    bool was_read = false;    // since the last check
    uint64_t read_until = 0;  // bytes that had arrived by then
    uint64_t unread = 0;
  };
  using Connections = std::map<int, Connection>;  // by ZeroMQ's descriptor

  void look_until(const std::stop_token& stop, int events_fd);
  void take_events();
  Connection* find(Id id);
  Connections::iterator least();
  void admit(int fd);
  void forget(int fd);
  void measure();
  void keep_below(bool members, uint64_t bytes);
  void keep_few();
  void hang_up(Connections::iterator connection);

  const OutsideLimits limits_;
  zmq::socket_t& socket_;
  std::mutex mutex_;
  zmq::socket_t monitor_;  // this member and the following ones: guarded by the mutex
  Connections connections_;
  uint64_t last_order_ = 0;
  Clock::time_point may_return_until_{};  // a member whose connection broke
  std::atomic<uint64_t> closed_ = 0;
  std::jthread thread_;  // joins before the other members end
};

}  // namespace outrider
