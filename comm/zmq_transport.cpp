#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include <poll.h>
#include <unistd.h>
#include <zmq.hpp>

#include "comm/frame_end.h"

#if defined(__SANITIZE_THREAD__)
// libzmq is not instrumented: its lock-free queues look like races.
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libzmq.so\nrace:libzmq.so\ncalled_from_lib:libsodium.so\n";
}
#endif

namespace outrider {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxPeers = 1024;         // beyond it the one that was silent longest is forgotten
constexpr int kMaxDropsPastDeadline = 64;  // a flood of garbage cannot hold up receive()

// Every option whose default is unbounded, infinite or surprising, for both ends.
void set_options(zmq::socket_t& socket, const ZmqOptions& options) {
  namespace opt = zmq::sockopt;
  socket.set(opt::sndhwm, options.high_water_mark);
  socket.set(opt::rcvhwm, options.high_water_mark);
  socket.set(opt::sndtimeo, 0);
  socket.set(opt::rcvtimeo, 0);
  socket.set(opt::linger, static_cast<int>(options.linger.count()));  // default: close may hang for ever
  socket.set(opt::maxmsgsize, options.max_message_bytes);
  socket.set(opt::handshake_ivl, 3000);
  socket.set(opt::connect_timeout, 3000);
  socket.set(opt::reconnect_ivl, 100);
  socket.set(opt::reconnect_ivl_max, 5000);
  // ZeroMQ's own heartbeats stay off: in libzmq 4.3.4 they abort the process when the peer is gone while its
  // queue here is full. Roles send heartbeats from the thread that works, and TCP closes half-open
  // connections.
  socket.set(opt::heartbeat_ivl, 0);
  socket.set(opt::tcp_keepalive, 1);
  socket.set(opt::tcp_keepalive_idle, 5);   // seconds
  socket.set(opt::tcp_keepalive_intvl, 2);  // seconds
  socket.set(opt::tcp_keepalive_cnt, 3);
  socket.set(opt::tcp_maxrt, 15'000);  // and those where sent data is not acknowledged for so long
  socket.set(opt::backlog, 128);
  socket.set(opt::ipv6, false);
  // Not 1: a client would throw away what it received but did not yet read when its server closes, for
  // instance the Shutdown. ZmqClient itself refuses to send while nobody is connected.
  socket.set(opt::immediate, false);
  if (socket.get(opt::type) == ZMQ_ROUTER) {
    socket.set(opt::router_mandatory, true);  // a dead peer is an error, not silence
    socket.set(opt::router_handover, false);  // nobody takes over another's routing id
  }
}

Generation random_generation() {
  std::random_device device;
  return Generation(uint64_t{device()} << 32 | device());
}

WireLimits limits_of(const ZmqOptions& options) {
  return {.frame_bytes = static_cast<size_t>(options.max_message_bytes)};
}

Status check_bind_endpoint(const std::string& endpoint, bool safe) {
  if (endpoint.starts_with("ipc://")) return {};
  if (!endpoint.starts_with("tcp://"))
    return invalid_argument(fmt::format("endpoint {}: use tcp://HOST:PORT or ipc://PATH", endpoint));
  const std::string_view host = std::string_view(endpoint).substr(6, endpoint.rfind(':') - 6);
  if (safe || host.starts_with("127.") || host == "localhost") return {};
  return invalid_argument(fmt::format(
      "endpoint {}: other machines could reach it and nobody is authenticated; use keys (`outrider "
      "keygen`), bind 127.0.0.1, or allow remote binding explicitly on a trusted network",
      endpoint));
}

// Milliseconds for zmq_poll, rounded up; bounded so that "no deadline" fits.
milliseconds until(Clock::time_point deadline) {
  const auto now = Clock::now();
  if (deadline <= now) return milliseconds{0};
  constexpr auto kHour = std::chrono::hours{1};
  if (deadline - now > kHour) return kHour;
  return std::chrono::ceil<milliseconds>(deadline - now);
}

// False when interrupted by a signal or nothing came. Also waits for `fd`, unless it is -1.
bool poll_in(zmq::socket_ref socket, milliseconds timeout, int fd = -1) {
  zmq::pollitem_t items[] = {{socket.handle(), 0, ZMQ_POLLIN, 0}, {nullptr, fd, ZMQ_POLLIN, 0}};
  try {
    return zmq::poll(items, fd < 0 ? 1 : 2, timeout) > 0;
  } catch (const zmq::error_t& error) {
    if (error.num() != EINTR) throw;
    return false;
  }
}

// Returns when something is there or `fd` can be read, or some time before the deadline. zmq_poll counts in
// milliseconds: the last of them passes in short naps, or every deadline would be late by up to one.
void wait_in(zmq::socket_ref socket, Clock::time_point deadline, int fd) {
  constexpr std::chrono::microseconds kNap{50};
  const auto left = deadline - Clock::now();
  if (left > milliseconds{1})
    poll_in(socket, until(deadline) - milliseconds{1}, fd);
  else if (left.count() > 0)
    std::this_thread::sleep_for(std::min<Clock::duration>(left, kNap));
}

bool can_read(int fd) {  // -1: never
  pollfd item{fd, POLLIN, 0};
  return ::poll(&item, 1, 0) > 0;
}

// Empty when nothing is there.
bool receive_now(zmq::socket_t& socket, zmq::message_t& part) {
  try {
    return socket.recv(part, zmq::recv_flags::dontwait).has_value();
  } catch (const zmq::error_t& error) {
    if (error.num() != EINTR) throw;
    return false;
  }
}

// True when the socket took all of it.
bool send_now(zmq::socket_t& socket, std::string_view route, std::span<const std::byte> frame) {
  if (!route.empty() &&
      !socket.send(zmq::buffer(route), zmq::send_flags::sndmore | zmq::send_flags::dontwait))
    return false;
  return socket.send(zmq::buffer(frame.data(), frame.size()), zmq::send_flags::dontwait).has_value();
}

std::span<const std::byte> bytes_of(const zmq::message_t& part) {
  return {part.data<std::byte>(), part.size()};
}

// One end: a context with one I/O thread and one socket. Subclasses say who the peers are.
class ZmqEnd : public Transport {
 public:
  ZmqEnd(zmq::socket_type type, const ZmqOptions& options)
      : context_(1),
        socket_(context_, type),
        frames_(options.cluster, random_generation(), limits_of(options)),
        wake_fd_(options.wake_fd) {
    set_options(socket_, options);
  }

  std::optional<Incoming> receive(Clock::time_point deadline) override {
    for (int dropped = 0; dropped < kMaxDropsPastDeadline;) {
      update_stats();
      zmq::message_t first;
      if (receive_now(socket_, first)) {
        if (auto incoming = accept(std::move(first))) return incoming;
        dropped += Clock::now() >= deadline;
      } else {
        if (Clock::now() >= deadline) break;
        wait_in(socket_, deadline, wake_fd_);
        if (can_read(wake_fd_)) break;
      }
    }
    return std::nullopt;
  }

  const TransportStats& stats() const override { return frames_.stats; }
  std::string endpoint() const override { return endpoint_; }

 protected:
  virtual void update_stats() {}
  // Empty: not for the role (malformed, repeated).
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
  const int wake_fd_;
};

// Answers libzmq's question whether a client's key may enter (RFC 27/ZAP). Without an answer everybody would
// who knows the server's public key. A thread of its own, because a client must be able to connect while the
// server's owner computes, or waits for that client.
class Doorkeeper {
 public:
  Doorkeeper(zmq::context_t& context, const std::vector<std::string>& keys)
      : door_(context, zmq::socket_type::rep) {
    for (const std::string& key : keys) {
      std::string bytes(32, '\0');
      CHECK(zmq_z85_decode(reinterpret_cast<uint8_t*>(bytes.data()), key.c_str()),
            "a key that was not checked");
      allowed_.insert(std::move(bytes));
    }
    door_.set(zmq::sockopt::linger, 0);
    door_.bind("inproc://zeromq.zap.01");
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested())
        if (poll_in(door_, milliseconds{20})) answer();
    });
  }

  uint64_t refused() const { return refused_; }

 private:
  void answer() {
    zmq::message_t part;
    if (!receive_now(door_, part)) return;
    std::vector<std::string> question{part.to_string()};
    while (part.more() && receive_now(door_, part)) question.push_back(part.to_string());
    // version, request, domain, address, identity, mechanism, credentials
    const bool known = question.size() == 7 && question[5] == "CURVE" && allowed_.contains(question[6]);
    refused_ += !known;
    const std::array<std::string, 6> reply{"1.0",
                                           question.size() > 1 ? question[1] : "",
                                           known ? "200" : "400",
                                           known ? "OK" : "unknown key",
                                           "",
                                           ""};
    for (size_t i = 0; i < reply.size(); ++i)
      door_.send(zmq::buffer(reply[i]),
                 i + 1 < reply.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
  }

  zmq::socket_t door_;
  std::set<std::string> allowed_;  // 32 bytes each
  std::atomic<uint64_t> refused_ = 0;
  std::jthread thread_;  // joins before the socket closes
};

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

class ZmqClient final : public ZmqEnd {
 public:
  explicit ZmqClient(const ZmqOptions& options)
      : ZmqEnd(zmq::socket_type::dealer, options), monitor_(context_, zmq::socket_type::pair) {
    constexpr const char* kMonitor = "inproc://connection";
    if (zmq_socket_monitor(socket_.handle(), kMonitor,
                           ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED |
                               ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) != 0)
      throw zmq::error_t();
    monitor_.set(zmq::sockopt::linger, 0);
    monitor_.connect(kMonitor);
    if (!options.curve) return;
    socket_.set(zmq::sockopt::curve_serverkey, options.curve->server);
    socket_.set(zmq::sockopt::curve_publickey, options.curve->own.public_key);
    socket_.set(zmq::sockopt::curve_secretkey, options.curve->own.secret_key);
  }

  void connect(const std::string& endpoint) {
    socket_.connect(endpoint);
    endpoint_ = endpoint;
  }

  Status wait_until_connected(Clock::time_point deadline) {
    while (!connected() && !refused_ && Clock::now() < deadline) poll_in(monitor_, until(deadline));
    if (connected_) return {};
    if (refused_)
      return invalid_argument(
          fmt::format("endpoint {}: the coordinator there does not take our keys: it needs ours on its list, "
                      "and we need its "
                      "public key",
                      endpoint_));
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
      refused_ |= number == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH || number == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL;
      if (event.more()) receive_now(monitor_, address);
    }
    return connected_;
  }

  zmq::socket_t monitor_;
  bool connected_ = false, refused_ = false;
  Generation server_;
  ReplayWindow window_;
  std::vector<std::byte> buffer_;
};

Status check_options(const ZmqOptions& options, bool is_server) {
  if (options.max_message_bytes < static_cast<int64_t>(kFrameHeaderBytes) || options.high_water_mark <= 0 ||
      options.linger.count() < 0)
    return invalid_argument(
        "ZeroMQ options: max_message_bytes, high_water_mark and linger must bound something");
  if (!options.curve) return {};
  const CurveKeys& keys = *options.curve;
  const auto is_key = [](const std::string& key) { return is_curve_key(key); };
  if (!is_key(keys.own.public_key) || !is_key(keys.own.secret_key) ||
      !(is_server ? std::all_of(keys.allowed.begin(), keys.allowed.end(), is_key) : is_key(keys.server)))
    return invalid_argument(
        "a key of the connection is not 40 characters of Z85; make keys with `outrider keygen`");
  if (!zmq_has("curve")) return unsupported("this libzmq was built without CURVE; install one with it");
  return {};
}

}  // namespace

Result<std::unique_ptr<Transport>> make_zmq_server(const std::string& bind_endpoint,
                                                   const ZmqOptions& options) {
  RETURN_IF_ERROR(check_options(options, true));
  auto server = std::make_unique<ZmqServer>(options);
  RETURN_IF_ERROR(server->also_listen(bind_endpoint).status());
  return std::unique_ptr<Transport>(std::move(server));
}

Result<std::unique_ptr<Transport>> make_zmq_client(const std::string& endpoint, const ZmqOptions& options) {
  RETURN_IF_ERROR(check_options(options, false));
  auto client = std::make_unique<ZmqClient>(options);
  try {
    client->connect(endpoint);
  } catch (const zmq::error_t& error) {
    return invalid_argument(
        fmt::format("endpoint {}: {}; use tcp://HOST:PORT or ipc://PATH", endpoint, error.what()));
  }
  RETURN_IF_ERROR(client->wait_until_connected(Clock::now() + options.connect_timeout));
  return std::unique_ptr<Transport>(std::move(client));
}

}  // namespace outrider
