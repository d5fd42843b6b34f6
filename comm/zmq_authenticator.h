// Admission to an encrypted socket. Internal to comm.
#pragma once

#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <thread>

#include <zmq.hpp>

#include "comm/curve.h"

namespace outrider {

// Answers libzmq's requests to admit a client's key (RFC 27/ZAP). Without answers every client that knows the
// server's public key would be admitted. Uses a thread of its own, because a client must be able to connect
// while the server's owner computes, or waits for that client.
class Authenticator {
 public:
  // The context's sockets with a ZAP domain ask here. A file of keys is read for every connecting client,
  // which costs less than its handshake. A key that was removed from the file cannot connect any more, but
  // its open connections stay. While the file cannot be read, none of its keys is admitted, which is logged.
  Authenticator(zmq::context_t& context, const CurveKeys& keys);

  uint64_t refused() const { return refused_; }

 private:
  void answer();
  bool may_enter(const std::string& key);
  std::set<std::string> listed_keys();

  zmq::socket_t socket_;
  std::set<std::string> allowed_;  // 32 bytes each
  const std::filesystem::path file_;
  std::string told_;  // the last logged error of the file
  std::atomic<uint64_t> refused_ = 0;
  std::jthread thread_;  // joins before the socket closes
};

}  // namespace outrider
