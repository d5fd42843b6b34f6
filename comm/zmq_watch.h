// What connections of a server hold that nobody has read, and who is closed for it. Internal to comm.
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

// ZeroMQ keeps the parts of a message until its last one is there, counts none of them against any limit, and
// tells nobody. The kernel, however, counts the bytes of each TCP connection, and the socket's monitor says
// which ones there are. A thread of its own looks every kLook, because the server's owner may be busy for
// long. Connections of Unix sockets, which only this user's processes can make, are counted and not measured.
class ConnectionWatch {
 public:
  // Before `socket` is bound; both outlive this.
  ConnectionWatch(zmq::context_t& context, zmq::socket_t& socket, const OutsideLimits& limits);
  ~ConnectionWatch();

  // One connection, also when its descriptor's number means another one later. 0: none.
  struct Id {
    int fd = -1;
    uint64_t order = 0;  // of arrival
  };
  // Tells the connection whose message was read just now, by ZeroMQ's descriptor for it.
  Id id_of(int fd);
  // A message of this connection was read, so those before it are not kept any more.
  void note_read(Id id);
  void note_member(Id id, bool is_member);

  uint64_t closed() const { return closed_; }

 private:
  // A copy of ZeroMQ's descriptor, which therefore means the same connection for as long as it is here.
  struct Connection {
    int copy = -1;
    uint64_t order = 0;
    bool is_member = false;
    bool was_read = false;    // since the last look
    uint64_t read_until = 0;  // bytes that had come then
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
  zmq::socket_t monitor_;  // this and what follows: with the mutex
  Connections connections_;
  uint64_t last_order_ = 0;
  Clock::time_point may_return_until_{};  // a member whose connection broke
  std::atomic<uint64_t> closed_ = 0;
  std::jthread thread_;  // joins before the rest goes
};

}  // namespace outrider
