// Moves messages between roles. One owner thread per Transport. Sends never block; receives have a deadline.
// The coordinator's end talks to many peers, a worker's end to one (kCoordinatorPeer).
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>

#include "base/status.h"
#include "comm/curve.h"
#include "comm/messages.h"

namespace outrider {

using Clock = std::chrono::steady_clock;

// A worker as its coordinator sees it. Local to one Transport; never on the wire.
struct PeerId {
  uint64_t value = 0;
  auto operator<=>(const PeerId&) const = default;
};
constexpr PeerId kCoordinatorPeer{0};

// The endpoint through which a peer connected. kInside: roles that the job started. kOutside (--listen): any
// peer, or peers with a listed key. kTargets (--listen-targets): target groups with a key listed there. A
// peer's permissions follow from its endpoint, never from its messages.
enum class TrustZone : uint8_t { kInside, kOutside, kTargets };

struct Incoming {
  PeerId peer;
  Message message;
  size_t bytes = 0;  // of its frame
  TrustZone zone = TrustZone::kInside;
};

struct TransportStats {
  static constexpr size_t kKinds = std::variant_size_v<Message>;
  std::array<uint64_t, kKinds> sent_messages{}, sent_bytes{};  // by message type
  std::array<uint64_t, kKinds> received_messages{}, received_bytes{};
  uint64_t malformed_frames = 0;  // dropped: bad magic, version, checksum, lengths, values
  uint64_t duplicate_frames = 0;  // dropped: sequence number already seen from that sender and generation
  uint64_t refused_keys = 0;      // connections of clients that are not on the server's list
  uint64_t refused_peers =
      0;                 // dropped: a second connection of one identity, a second identity of one connection
  uint64_t hung_up = 0;  // connections closed because of OutsideLimits
};

class Transport {
 public:
  virtual ~Transport() = default;
  // kResourceExhausted: the peer is slow and its queue is full. kUnavailable: the peer is gone.
  virtual Status send(PeerId to, const Message& message) = 0;
  // The next well-formed message from any peer, or empty at the deadline. Malformed frames are counted and
  // dropped.
  virtual std::optional<Incoming> receive(Clock::time_point deadline) = 0;
  // A coordinator's end gives a function that makes the receive() that waits, or the next one that would,
  // return at once and empty; any thread may call it, also after this is destroyed. Empty: no wake-up needed.
  virtual std::function<void()> waker() { return {}; }
  // From now on receive() polls for this long before it sleeps, for an owner with a core of its own: a
  // wake-up takes tens of microseconds and may move the thread to another core.
  virtual void keep_looking(std::chrono::microseconds) {}
  virtual const TransportStats& stats() const = 0;
  // Gives back a received slice, whose storage may serve the next one.
  virtual void recycle(QSlice) {}
  // The address for workers; empty in one process.
  virtual std::string endpoint() const { return {}; }
  // The host from which this peer connects, for people, such as 10.0.0.2; "this host" over a Unix socket.
  // Empty: it is not known, or the peer is in this process.
  virtual std::string host_of(PeerId) const { return {}; }
  // Becomes readable when receive(), which was empty a moment ago, may have a message. -1: there is no such
  // descriptor.
  virtual int ready_fd() const { return -1; }
};

// In one process: bounded queues of encoded frames. connect() may be called from any thread, each end has one
// owner.
class InprocHub {
 public:
  virtual ~InprocHub() = default;
  virtual std::unique_ptr<Transport> coordinator_end() = 0;  // once
  virtual std::unique_ptr<Transport> connect() = 0;          // once per worker

  // Also calls `wake` at every event that a waiting coordinator must see; from any thread, briefly.
  virtual void wake_by(std::function<void()> wake) = 0;

  // Runs a worker on the coordinator's thread: whenever the coordinator has read all its messages, and before
  // it would sleep, its receive() calls `turn` there, so no thread has to be woken for a message (which takes
  // 50 microseconds and more where a core must leave its idle state). Blocks the calling thread, the worker's
  // own, until `turn` returns false or throws (the exception is passed on), or the coordinator is gone. For
  // workers that would only wait for each other; `turn` handles arrived messages and must not wait.
  virtual void lend(Transport& worker, const std::function<bool()>& turn) = 0;
};

struct InprocOptions {
  size_t high_water_mark = 64;  // frames under way in each direction
};
// A worker whose Transport is destroyed is gone: sends to it are kUnavailable, frames it sent still arrive.
// The same holds for a coordinator: a worker notices at its next send, or reads the Shutdown that was left
// for it.
std::shared_ptr<InprocHub> make_inproc_hub(const InprocOptions& options = {});

// Limits of a server for connections from outside the job. A peer is a stranger until it is sent a Welcome
// that accepts it, then a member. Beyond the allowed number, the stranger that was silent longest is dropped.
// Beyond the allowed bytes, the connection that holds the most is closed. Bytes are those that came over TCP
// and are still unread: ZeroMQ bounds whole messages, but not the parts of an incomplete one.
struct OutsideLimits {
  size_t strangers = 128, peers = 384;
  int64_t stranger_bytes = int64_t{1} << 20;  // of all strangers; the members' limit after a member was lost
  int64_t member_bytes = int64_t{64} << 20;   // of all members together
};

struct ZmqOptions {
  int64_t max_message_bytes = int64_t{64} << 20;
  int high_water_mark = 64;
  uint64_t cluster = 0;  // frames of another cluster id are dropped
  // Both ends: encrypts, and admits only clients whose key the server knows. Without keys a server binds
  // loopback and Unix sockets only, unless allow_remote declares the network trusted.
  std::optional<CurveKeys> curve;
  bool allow_remote = false;
  std::optional<OutsideLimits> outside;
  std::chrono::milliseconds connect_timeout{5000};  // a client gives up if no server answers within this
  std::chrono::milliseconds linger{1000};           // time for a closing end to deliver sent messages
};
// Binds, e.g. "tcp://127.0.0.1:*" or "ipc:///tmp/dir/control"; endpoint() tells the address that was bound.
Result<std::unique_ptr<Transport>> make_zmq_server(const std::string& bind_endpoint,
                                                   const ZmqOptions& options = {});
// Waits until the server answers. kDeadlineExceeded: no answer; kInvalidArgument: it rejects our keys. On a
// broken connection send() is kUnavailable, and the client reconnects for as long as it exists; the server
// knows a reconnected worker by the same PeerId.
Result<std::unique_ptr<Transport>> make_zmq_client(const std::string& endpoint,
                                                   const ZmqOptions& options = {});

// The coordinator's single end for the job's own roles, in this process or (`inside`, a ZeroMQ server) in
// others, and for peers that connect to an outside endpoint. endpoint() returns the outside address; keys,
// peers and limits apply to it alone.
Result<std::unique_ptr<Transport>> make_joined_end(InprocHub& hub, const std::string& bind_endpoint,
                                                   const ZmqOptions& options = {});
Result<std::unique_ptr<Transport>> make_joined_end(std::unique_ptr<Transport> inside,
                                                   const std::string& bind_endpoint,
                                                   const ZmqOptions& options = {});

// The same with one or two outside endpoints of different kinds. `endpoint` becomes the bound address;
// endpoint() of the result is that of the last one.
struct ZoneEndpoint {
  TrustZone zone = TrustZone::kOutside;
  std::string endpoint;
  ZmqOptions zmq;
};
Result<std::unique_ptr<Transport>> make_joined_end(InprocHub& hub, std::span<ZoneEndpoint> endpoints);

}  // namespace outrider
