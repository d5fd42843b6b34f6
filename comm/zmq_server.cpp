// ZeroMQ's ROUTER: the coordinator's end.
#include <unistd.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "comm/zmq_authenticator.h"
#include "comm/zmq_end.h"
#include "comm/zmq_room.h"
#include "comm/zmq_watch.h"

namespace outrider {
namespace {

constexpr size_t kMaxPeers = 1024;  // on an inside endpoint

// A worker that was heard of. It is its generation that identifies it: a connection that broke and came back
// has a new routing id, but is the same peer. A connection has one peer.
struct Peer {
  PeerId id;
  std::string route;  // ROUTER's id of its latest connection
  std::string host;   // of that connection
  ConnectionWatch::Id connection;
  bool is_member = false;
  ReplayWindow window;
  Clock::time_point last_heard;
};

class ZmqServer final : public ZmqEnd {
 public:
  explicit ZmqServer(const ZmqOptions& options)
      : ZmqEnd(zmq::socket_type::router, options),
        safe_anywhere_(options.allow_remote || options.curve.has_value()),
        max_peers_(options.outside ? options.outside->peers : kMaxPeers),
        max_strangers_(options.outside ? options.outside->strangers : kMaxPeers) {
    if (options.outside) watch_.emplace(context_, socket_, *options.outside);
    // A Unix socket in the abstract namespace has no file whose mode says who may connect.
    const uid_t self = geteuid();
    zmq_setsockopt(socket_.handle(), ZMQ_IPC_FILTER_UID, &self, sizeof self);
    if (!options.curve) return;
    authenticator_.emplace(context_, *options.curve);
    socket_.set(zmq::sockopt::zap_domain, "outrider");
    socket_.set(zmq::sockopt::curve_server, true);
    socket_.set(zmq::sockopt::curve_secretkey, options.curve->own.secret_key);
  }

  Status listen(const std::string& bind_endpoint) {
    RETURN_IF_ERROR(check_bind_endpoint(bind_endpoint, safe_anywhere_));
    ASSIGN_OR_RETURN(const std::string address, resolve_endpoint(bind_endpoint, true));
    try {
      socket_.set(zmq::sockopt::ipv6, address.starts_with("tcp://["));
      socket_.bind(address);
    } catch (const zmq::error_t& error) {
      if (error.num() == EADDRINUSE)
        return unavailable(fmt::format(
            "endpoint {}: something else listens at this port; choose another one, or port * for any",
            bind_endpoint));
      return invalid_argument(fmt::format(
          "endpoint {}: cannot bind: {}; name an address or an interface of this host, or port * for any",
          bind_endpoint, error.num() == ENODEV ? "this host has no such address" : error.what()));
    }
    endpoint_ = socket_.get(zmq::sockopt::last_endpoint);
    return {};
  }

  Status send(PeerId to, const Message& message) override {
    const auto generation = generations_.find(to);
    if (generation == generations_.end()) return unavailable(fmt::format("no worker {}", to.value));
    Peer& peer = peers_.at(generation->second);
    ASSIGN_OR_RETURN(buffer_, frames_.pack(message, std::move(buffer_)));
    try {
      if (!send_now(socket_, peer.route, buffer_)) return resource_exhausted("it is slow: its queue is full");
    } catch (const zmq::error_t& error) {
      peer.is_member = false;
      return unavailable(fmt::format("its connection is closed ({})", error.what()));
    }
    if (const auto* welcome = std::get_if<Welcome>(&message)) set_member(peer, welcome->accepted);
    frames_.count_sent(message, buffer_.size());
    return {};
  }

  std::string host_of(PeerId peer) const override {
    const auto generation = generations_.find(peer);
    return generation == generations_.end() ? std::string() : peers_.at(generation->second).host;
  }

 private:
  std::optional<Incoming> accept(zmq::message_t route) override {
    zmq::message_t frame;
    const bool complete = route.more() && receive_now(socket_, frame);
    if (!complete) ++frames_.stats.malformed_frames;
    const std::string_view from(route.data<char>(), route.size());
    const auto speaks_for = routes_.find(from);
    ConnectionWatch::Id connection;
    if (watch_ && complete) {
      connection = speaks_for != routes_.end() ? peers_.at(speaks_for->second).connection
                                               : watch_->id_of(fd_of(frame));
      watch_->note_read(connection);
    }
    if (!complete || drop_extra_parts(frame.more())) return std::nullopt;
    auto decoded = frames_.unpack(bytes_of(frame));
    if (!decoded) return std::nullopt;
    const Generation generation = decoded->info.generation;
    if (speaks_for != routes_.end() && speaks_for->second != generation) {
      ++frames_.stats.refused_peers;
      return std::nullopt;
    }
    Peer& peer = peer_of(generation);
    if (speaks_for == routes_.end()) {
      if (is_connected(peer)) return refuse_impostor(from, decoded->message);
      move_to(peer, generation, from, connection);
      peer.host = host_of(frame);
    }
    if (!peer.window.accept(decoded->info.sequence_number)) {
      ++frames_.stats.duplicate_frames;
      return std::nullopt;
    }
    peer.last_heard = Clock::now();
    return frames_.deliver(peer.id, std::move(decoded->message), frame.size());
  }

  // -1: not known. ZeroMQ calls this deprecated, and offers nothing else that leads from a message to its
  // connection.
  static int fd_of(zmq::message_t& frame) { return zmq_msg_get(frame.handle(), ZMQ_SRCFD); }

  // ZeroMQ's text is an address for TCP, and ":uid:gid:pid" for a Unix socket, behind "localhost" where the
  // resolver gives the socket that name.
  static std::string host_of(zmq::message_t& frame) {
    const char* address = zmq_msg_gets(frame.handle(), "Peer-Address");
    if (!address) return {};
    const std::string_view text = address;
    return text.starts_with(':') || text.starts_with("localhost:") ? "this host" : address;
  }

  void move_to(Peer& peer, Generation generation, std::string_view route, ConnectionWatch::Id connection) {
    routes_.erase(peer.route);
    routes_.emplace(route, generation);
    peer.route = route;
    peer.connection = connection;
    if (watch_ && peer.is_member) watch_->note_member(connection, true);
  }

  void set_member(Peer& peer, bool is_member) {
    peer.is_member = is_member;
    if (watch_) watch_->note_member(peer.connection, is_member);
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
    if (authenticator_) frames_.stats.refused_keys = authenticator_->refused();
    if (watch_) frames_.stats.hung_up = watch_->closed();
  }

  Peer& peer_of(Generation generation) {
    if (const auto known = peers_.find(generation); known != peers_.end()) return known->second;
    make_room();
    const PeerId id{++last_peer_};
    generations_.emplace(id, generation);
    return peers_.emplace(generation, Peer{.id = id, .route = {}, .host = {}, .window = {}, .last_heard = {}})
        .first->second;
  }

  // Strangers only ever push out strangers, and those that are gone first. Members that take part are fewer
  // than `max_peers_`, and are heard.
  void make_room() {
    const auto strangers =
        std::count_if(peers_.begin(), peers_.end(), [](const auto& item) { return !item.second.is_member; });
    if (static_cast<size_t>(strangers) < max_strangers_ && peers_.size() < max_peers_) return;
    std::optional<std::tuple<bool, bool, Clock::time_point>> least;
    auto first = peers_.begin();
    for (auto at = peers_.begin(); at != peers_.end(); ++at) {
      const std::tuple worth(at->second.is_member, is_connected(at->second), at->second.last_heard);
      if (least && worth >= *least) continue;
      least = worth;
      first = at;
    }
    routes_.erase(first->second.route);
    generations_.erase(first->second.id);
    peers_.erase(first);
  }

  const bool safe_anywhere_;
  const size_t max_peers_, max_strangers_;
  std::optional<Authenticator> authenticator_;
  std::optional<ConnectionWatch> watch_;
  std::map<Generation, Peer> peers_;
  std::map<std::string, Generation, std::less<>> routes_;
  std::map<PeerId, Generation> generations_;
  uint64_t last_peer_ = 0;  // 0 is kCoordinatorPeer
  std::vector<std::byte> buffer_;
};

}  // namespace

Result<std::unique_ptr<ZmqEnd>> open_zmq_server(const std::string& bind_endpoint, const ZmqOptions& options) {
  RETURN_IF_ERROR(check_zmq_options(options, true));
  RETURN_IF_ERROR(check_room_for_zmq());
  auto server = std::make_unique<ZmqServer>(options);
  RETURN_IF_ERROR(server->listen(bind_endpoint));
  return std::unique_ptr<ZmqEnd>(std::move(server));
}

Result<std::unique_ptr<Transport>> make_zmq_server(const std::string& bind_endpoint,
                                                   const ZmqOptions& options) {
  ASSIGN_OR_RETURN(auto server, open_zmq_server(bind_endpoint, options));
  return std::unique_ptr<Transport>(std::move(server));
}

}  // namespace outrider
