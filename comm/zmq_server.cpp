// ZeroMQ's ROUTER: the coordinator's end.
#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "comm/zmq_doorkeeper.h"
#include "comm/zmq_end.h"

namespace outrider {
namespace {

constexpr size_t kMaxPeers = 1024;  // beyond it the one that was silent longest is forgotten

// A worker that was heard of. It is its generation that identifies it: a connection that broke and came back
// has a new routing id, but is the same peer.
struct Peer {
  PeerId id;
  std::string route;  // ROUTER's id of its latest connection
  ReplayWindow window;
  Clock::time_point last_heard;
};

class ZmqServer final : public ZmqEnd {
 public:
  explicit ZmqServer(const ZmqOptions& options)
      : ZmqEnd(zmq::socket_type::router, options),
        safe_anywhere_(options.allow_remote || options.curve.has_value()) {
    // A Unix socket in the abstract namespace has no file whose mode says who may connect.
    const uid_t self = geteuid();
    zmq_setsockopt(socket_.handle(), ZMQ_IPC_FILTER_UID, &self, sizeof self);
    if (!options.curve) return;
    doorkeeper_.emplace(context_, options.curve->allowed);
    socket_.set(zmq::sockopt::zap_domain, "outrider");
    socket_.set(zmq::sockopt::curve_server, true);
    socket_.set(zmq::sockopt::curve_secretkey, options.curve->own.secret_key);
  }

  Result<std::string> also_listen(const std::string& bind_endpoint) override {
    RETURN_IF_ERROR(check_bind_endpoint(bind_endpoint, safe_anywhere_));
    try {
      socket_.bind(bind_endpoint);
    } catch (const zmq::error_t& error) {
      return invalid_argument(
          fmt::format("endpoint {}: cannot bind: {}; choose another address, or port * for any",
                      bind_endpoint, error.what()));
    }
    const std::string bound = socket_.get(zmq::sockopt::last_endpoint);
    if (endpoint_.empty()) endpoint_ = bound;
    return bound;
  }

  Status send(PeerId to, const Message& message) override {
    const auto generation = generations_.find(to);
    if (generation == generations_.end()) return unavailable(fmt::format("no worker {}", to.value));
    ASSIGN_OR_RETURN(buffer_, frames_.pack(message, std::move(buffer_)));
    try {
      if (!send_now(socket_, peers_.at(generation->second).route, buffer_))
        return resource_exhausted(fmt::format("worker {} is slow: its queue is full", to.value));
    } catch (const zmq::error_t& error) {
      return unavailable(fmt::format("worker {} is gone: {}", to.value, error.what()));
    }
    frames_.count_sent(message, buffer_.size());
    return {};
  }

 private:
  std::optional<Incoming> accept(zmq::message_t route) override {
    zmq::message_t frame;
    const bool complete = route.more() && receive_now(socket_, frame);
    if (!complete) ++frames_.stats.malformed_frames;
    if (!complete || drop_extra_parts(frame.more())) return std::nullopt;
    auto decoded = frames_.unpack(bytes_of(frame));
    if (!decoded) return std::nullopt;
    Peer& peer = peer_of(decoded->info.generation);
    const std::string_view from(route.data<char>(), route.size());
    if (peer.route != from && is_connected(peer)) return refuse_impostor(from, decoded->message);
    if (!peer.window.accept(decoded->info.sequence_number)) {
      ++frames_.stats.duplicate_frames;
      return std::nullopt;
    }
    peer.route = from;
    peer.last_heard = Clock::now();
    return frames_.deliver(peer.id, std::move(decoded->message), frame.size());
  }

  // Two connections with one identity: is the first still there? ROUTER knows, and tells whoever sends.
  bool is_connected(const Peer& peer) { return !peer.route.empty() && try_send(peer.route, Heartbeat{}); }

  std::optional<Incoming> refuse_impostor(std::string_view route, const Message& message) {
    ++frames_.stats.refused_peers;
    if (!std::holds_alternative<Hello>(message)) return std::nullopt;
    try_send(route, Welcome{.accepted = false,
                            .reason = "another worker with this identity is connected",
                            .target = {},
                            .eos_ids = {}});
    return std::nullopt;
  }

  bool try_send(std::string_view route, const Message& message) {
    auto frame = frames_.pack(message);
    CHECK(frame.ok(), "{}", frame.status().message());
    try {
      send_now(socket_, route, *frame);
      return true;
    } catch (const zmq::error_t&) {
      return false;
    }
  }

  void update_stats() override {
    if (doorkeeper_) frames_.stats.refused_keys = doorkeeper_->refused();
  }

  Peer& peer_of(Generation generation) {
    if (const auto known = peers_.find(generation); known != peers_.end()) return known->second;
    if (peers_.size() >= kMaxPeers) forget_most_silent();
    const PeerId id{++last_peer_};
    generations_.emplace(id, generation);
    return peers_.emplace(generation, Peer{.id = id, .route = {}, .window = {}, .last_heard = {}})
        .first->second;
  }

  void forget_most_silent() {
    const auto silent = std::min_element(peers_.begin(), peers_.end(), [](const auto& a, const auto& b) {
      return a.second.last_heard < b.second.last_heard;
    });
    generations_.erase(silent->second.id);
    peers_.erase(silent);
  }

  const bool safe_anywhere_;
  std::optional<Doorkeeper> doorkeeper_;
  std::map<Generation, Peer> peers_;
  std::map<PeerId, Generation> generations_;
  uint64_t last_peer_ = 0;  // 0 is kCoordinatorPeer
  std::vector<std::byte> buffer_;
};

}  // namespace

Result<std::unique_ptr<Transport>> make_zmq_server(const std::string& bind_endpoint,
                                                   const ZmqOptions& options) {
  RETURN_IF_ERROR(check_zmq_options(options, true));
  auto server = std::make_unique<ZmqServer>(options);
  RETURN_IF_ERROR(server->also_listen(bind_endpoint).status());
  return std::unique_ptr<Transport>(std::move(server));
}

}  // namespace outrider
