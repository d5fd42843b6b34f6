// Who may enter an encrypted socket. Internal to comm.
#pragma once

#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <zmq.hpp>

namespace outrider {

// Answers libzmq's question whether a client's key may enter (RFC 27/ZAP). Without an answer everybody would
// who knows the server's public key. A thread of its own, because a client must be able to connect while the
// server's owner computes, or waits for that client.
class Doorkeeper {
 public:
  // `keys`: public ones, as Z85. The context's sockets with a ZAP domain ask here.
  Doorkeeper(zmq::context_t& context, const std::vector<std::string>& keys);

  uint64_t refused() const { return refused_; }

 private:
  void answer();

  zmq::socket_t door_;
  std::set<std::string> allowed_;  // 32 bytes each
  std::atomic<uint64_t> refused_ = 0;
  std::jthread thread_;  // joins before the socket closes
};

}  // namespace outrider
