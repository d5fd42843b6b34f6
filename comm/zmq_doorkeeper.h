// Who may enter an encrypted socket. Internal to comm.
#pragma once

#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <thread>

#include <zmq.hpp>

#include "comm/curve.h"

namespace outrider {

// Answers libzmq's question whether a client's key may enter (RFC 27/ZAP). Without an answer everybody would
// who knows the server's public key. A thread of its own, because a client must be able to connect while the
// server's owner computes, or waits for that client.
class Doorkeeper {
 public:
  // The context's sockets with a ZAP domain ask here. A file of keys is read for every client that asks,
  // which costs less than its handshake: who was struck from it cannot connect any more, though a connection
  // that is open stays. While it cannot be read, none of its keys may enter, which is logged.
  Doorkeeper(zmq::context_t& context, const CurveKeys& keys);

  uint64_t refused() const { return refused_; }

 private:
  void answer();
  bool may_enter(const std::string& key);
  std::set<std::string> listed_keys();

  zmq::socket_t door_;
  std::set<std::string> allowed_;  // 32 bytes each
  const std::filesystem::path file_;
  std::string told_;  // what was wrong with the file last time
  std::atomic<uint64_t> refused_ = 0;
  std::jthread thread_;  // joins before the socket closes
};

}  // namespace outrider
