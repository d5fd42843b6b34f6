// ZeroMQ's DEALER: a worker's end.
#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/zmq_end.h"
#include "comm/zmq_room.h"

namespace outrider {
namespace {

class ZmqClient final : public ZmqEnd {
 public:
  explicit ZmqClient(const ZmqOptions& options)
      : ZmqEnd(zmq::socket_type::dealer, options),
        monitor_(context_, zmq::socket_type::pair),
        has_keys_(options.curve.has_value()) {
    constexpr const char* kMonitor = "inproc://connection";
    if (zmq_socket_monitor(socket_.handle(), kMonitor,
                           ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED |
                               ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) != 0)
      throw zmq::error_t();
    monitor_.set(zmq::sockopt::linger, 0);
    monitor_.connect(kMonitor);
    if (!options.curve) return;
    socket_.set(zmq::sockopt::curve_serverkey, options.curve->server);
    socket_.set(zmq::sockopt::curve_publickey, options.curve->own.public_key);
    socket_.set(zmq::sockopt::curve_secretkey, options.curve->own.secret_key);
  }
  // libzmq keeps events that it could not hand over: stops the monitor, or they would never be freed.
  ~ZmqClient() override { zmq_socket_monitor(socket_.handle(), nullptr, 0); }

  void connect(const std::string& endpoint, const std::string& address) {
    socket_.set(zmq::sockopt::ipv6, address.starts_with("tcp://["));
    socket_.connect(address);
    endpoint_ = endpoint;
  }

  Status wait_until_connected(Clock::time_point deadline) {
    while (!connected() && !refused_ && Clock::now() < deadline) poll_in(monitor_, until(deadline));
    if (connected_) return {};
    if (refused_ && !has_keys_)
      return invalid_argument(fmt::format(
          "endpoint {}: the coordinator there refuses connections without keys; give --curve-secret-key and "
          "--server-key here, too",
          endpoint_));
    if (refused_)
      return invalid_argument(
          fmt::format("endpoint {}: the coordinator there does not take our keys: it needs ours on its list, "
                      "and we need its public key (--server-key)",
                      endpoint_));
    if (reached_)
      return deadline_exceeded(fmt::format(
          "endpoint {}: something listens there and does not finish the handshake; {}", endpoint_,
          has_keys_ ? "is the file of --server-key the run's own public key, and does the run use "
                      "--curve-secret-key?"
                    : "does the run use keys (--curve-secret-key)? Then give --curve-secret-key and "
                      "--server-key here, too"));
    return deadline_exceeded(
        fmt::format("endpoint {}: no answer; is the coordinator running there?", endpoint_));
  }

  Status send(PeerId to, const Message& message) override {
    if (to != kCoordinatorPeer) return unavailable(fmt::format("a worker has no peer {}", to.value));
    if (!connected()) return unavailable("the coordinator is gone");
    ASSIGN_OR_RETURN(buffer_, frames_.pack(message, std::move(buffer_)));
    try {
      if (!send_now(socket_, {}, buffer_))
        return resource_exhausted("the coordinator is slow: its queue is full");
    } catch (const zmq::error_t& error) {
      return unavailable(fmt::format("the coordinator is gone: {}", error.what()));
    }
    frames_.count_sent(message, buffer_.size());
    return {};
  }

 private:
  std::optional<Incoming> accept(zmq::message_t frame) override {
    if (drop_extra_parts(frame.more())) return std::nullopt;
    auto decoded = frames_.unpack(bytes_of(frame));
    if (!decoded) return std::nullopt;
    if (decoded->info.generation != server_) window_ = {};
    server_ = decoded->info.generation;
    if (!window_.accept(decoded->info.sequence_number)) {
      ++frames_.stats.duplicate_frames;
      return std::nullopt;
    }
    return frames_.deliver(kCoordinatorPeer, std::move(decoded->message), frame.size());
  }

  // As of the latest connection event. An event is two parts: u16 number and u32 value, then the address.
  bool connected() {
    for (zmq::message_t event, address; receive_now(monitor_, event);) {
      uint16_t number = 0;
      std::memcpy(&number, event.data(), std::min(sizeof number, event.size()));
      connected_ = number == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
      reached_ |= number == ZMQ_EVENT_CONNECTED;
      refused_ |= number == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH || number == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL;
      if (event.more()) receive_now(monitor_, address);
    }
    return connected_;
  }

  zmq::socket_t monitor_;
  const bool has_keys_;
  bool connected_ = false, refused_ = false;
  bool reached_ = false;  // a connection was made, whatever became of it
  Generation server_;
  ReplayWindow window_;
  std::vector<std::byte> buffer_;
};

}  // namespace

Result<std::unique_ptr<Transport>> make_zmq_client(const std::string& endpoint, const ZmqOptions& options) {
  RETURN_IF_ERROR(check_zmq_options(options, false));
  RETURN_IF_ERROR(check_port(endpoint, false));
  RETURN_IF_ERROR(check_room_for_zmq());
  ASSIGN_OR_RETURN(const std::string address, resolve_endpoint(endpoint, false));
  auto client = std::make_unique<ZmqClient>(options);
  try {
    client->connect(endpoint, address);
  } catch (const zmq::error_t& error) {
    return invalid_argument(
        fmt::format("endpoint {}: {}; use tcp://HOST:PORT or ipc://PATH", endpoint, error.what()));
  }
  RETURN_IF_ERROR(client->wait_until_connected(Clock::now() + options.connect_timeout));
  return std::unique_ptr<Transport>(std::move(client));
}

}  // namespace outrider
