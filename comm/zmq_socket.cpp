#include "comm/zmq_socket.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <random>

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>

#include "base/parse_number.h"
#include "comm/codec.h"
#include "comm/endpoint.h"

#if defined(__SANITIZE_THREAD__)
// libzmq is not instrumented: its lock-free queues look like races.
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libzmq.so\nrace:libzmq.so\ncalled_from_lib:libsodium.so\n";
}
#endif

namespace outrider {

using std::chrono::milliseconds;

Status check_zmq_options(const ZmqOptions& options, bool is_server) {
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

Status check_port(const std::string& endpoint, bool binds) {
  if (!endpoint.starts_with("tcp://")) return {};
  const auto colon = endpoint.rfind(':');
  const std::string_view port = std::string_view(endpoint).substr(colon + 1);
  if (binds && port == "*") return {};
  const auto number = parse_number<uint16_t>(port);
  if (colon >= std::string_view("tcp://").size() && number && (binds || *number > 0)) return {};
  return invalid_argument(fmt::format("endpoint {}: the port must be {} to 65535{}", endpoint, binds ? 0 : 1,
                                      binds ? ", or * for any that is free" : ""));
}

Status check_endpoint(const std::string& endpoint) {
  if (endpoint.starts_with("ipc://") && endpoint.size() > 6) return {};
  if (endpoint.starts_with("tcp://") && !endpoint.starts_with("tcp://:")) return check_port(endpoint, false);
  return invalid_argument(fmt::format("endpoint {}: use tcp://HOST:PORT or ipc://PATH", endpoint));
}

Status check_bind_endpoint(const std::string& endpoint, bool safe) {
  if (endpoint.starts_with("ipc://")) return {};
  if (!endpoint.starts_with("tcp://"))
    return invalid_argument(fmt::format("endpoint {}: use tcp://HOST:PORT or ipc://PATH", endpoint));
  RETURN_IF_ERROR(check_port(endpoint, true));
  const std::string_view host = std::string_view(endpoint).substr(6, endpoint.rfind(':') - 6);
  if (safe || host.starts_with("127.") || host == "localhost" || host == "[::1]") return {};
  return invalid_argument(fmt::format(
      "endpoint {}: other machines could reach it and nobody is authenticated; use keys (`outrider "
      "keygen`) or bind 127.0.0.1",
      endpoint));
}

Result<std::string> resolve_endpoint(const std::string& endpoint, bool binds) {
  constexpr std::string_view kTcp = "tcp://";
  if (!endpoint.starts_with(kTcp)) return endpoint;
  const size_t colon = endpoint.rfind(':');
  std::string host = endpoint.substr(kTcp.size(), colon - kTcp.size());
  const std::string port = endpoint.substr(colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host.find('%') != std::string::npos || (binds && host == "*")) return endpoint;  // scopes are libzmq's
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  if (inet_pton(AF_INET, host.c_str(), bytes.data()) == 1) return endpoint;
  if (inet_pton(AF_INET6, host.c_str(), bytes.data()) == 1) return fmt::format("tcp://[{}]{}", host, port);
  if (binds && if_nametoindex(host.c_str()) != 0) return endpoint;
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0)
    return unavailable(
        fmt::format("endpoint {}: the host name {} is not known: {}", endpoint, host, gai_strerror(error)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, freeaddrinfo);
  const addrinfo* chosen = found;  // IPv4 where there is any: hosts without IPv6 are the commoner ones
  for (const addrinfo* it = found; it != nullptr; it = it->ai_next)
    if (it->ai_family == AF_INET) {
      chosen = it;
      break;
    }
  std::array<char, NI_MAXHOST> text{};
  if (getnameinfo(chosen->ai_addr, chosen->ai_addrlen, text.data(), text.size(), nullptr, 0,
                  NI_NUMERICHOST) != 0)
    return endpoint;
  return chosen->ai_family == AF_INET6 ? fmt::format("tcp://[{}]{}", text.data(), port)
                                       : fmt::format("tcp://{}{}", text.data(), port);
}

void set_socket_options(zmq::socket_t& socket, const ZmqOptions& options) {
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
  // instance the Shutdown. ZmqClient itself refuses to send without a connection.
  socket.set(opt::immediate, false);
  if (socket.get(opt::type) == ZMQ_ROUTER) {
    socket.set(opt::router_mandatory, true);  // a dead peer is an error, not silence
    socket.set(opt::router_handover, false);  // a peer cannot take over another's routing id
  }
}

namespace {
constexpr std::chrono::hours kHour{1};
}  // namespace

milliseconds until(Clock::time_point deadline) {
  const auto now = Clock::now();
  if (deadline <= now) return milliseconds{0};
  if (deadline - now > kHour) return kHour;
  return std::chrono::ceil<milliseconds>(deadline - now);
}

bool poll_in(zmq::socket_ref socket, milliseconds timeout) {
  zmq::pollitem_t items[] = {{socket.handle(), 0, ZMQ_POLLIN, 0}};
  try {
    return zmq::poll(items, 1, timeout) > 0;
  } catch (const zmq::error_t& error) {
    if (error.num() != EINTR) throw;
    return false;
  }
}

// Not zmq_poll, which counts in milliseconds. A socket's descriptor is readable when its state may have
// changed since it was last found empty.
void wait_in(zmq::socket_ref socket, Clock::time_point deadline, std::array<int, 2> fds) {
  const auto left = std::clamp<Clock::duration>(deadline - Clock::now(), Clock::duration(0), kHour);
  const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
  const timespec timeout{.tv_sec = seconds.count(),
                         .tv_nsec = std::chrono::nanoseconds(left - seconds).count()};
  pollfd items[] = {{socket.get(zmq::sockopt::fd), POLLIN, 0}, {fds[0], POLLIN, 0}, {fds[1], POLLIN, 0}};
  ppoll(items, std::size(items), &timeout, nullptr);
}

bool can_be_read(int fd) {
  pollfd item{fd, POLLIN, 0};
  return fd >= 0 && poll(&item, 1, 0) > 0;
}

bool receive_now(zmq::socket_t& socket, zmq::message_t& part) {
  try {
    return socket.recv(part, zmq::recv_flags::dontwait).has_value();
  } catch (const zmq::error_t& error) {
    if (error.num() != EINTR) throw;
    return false;
  }
}

Generation random_generation() {
  std::random_device device;
  return Generation(uint64_t{device()} << 32 | device());
}

bool send_now(zmq::socket_t& socket, std::string_view route, std::span<const std::byte> frame) {
  if (!route.empty() &&
      !socket.send(zmq::buffer(route), zmq::send_flags::sndmore | zmq::send_flags::dontwait))
    return false;
  return socket.send(zmq::buffer(frame.data(), frame.size()), zmq::send_flags::dontwait).has_value();
}

}  // namespace outrider
