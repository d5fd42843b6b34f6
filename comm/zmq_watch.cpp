#include "comm/zmq_watch.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include "base/threads.h"
#include "comm/zmq_socket.h"

namespace outrider {
namespace {

// A local sender can exceed the limits by what it sends between two looks: tens of megabytes.
constexpr std::chrono::milliseconds kLook{10};
// A client that lost its connection tries again at least every five seconds.
constexpr std::chrono::seconds kReturn{30};
constexpr const char* kMonitor = "inproc://connections";

// Empty: not a TCP connection.
std::optional<uint64_t> bytes_received(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  return info.tcpi_bytes_received;
}

}  // namespace

ConnectionWatch::ConnectionWatch(zmq::context_t& context, zmq::socket_t& socket, const OutsideLimits& limits)
    : limits_(limits), socket_(socket), monitor_(context, zmq::socket_type::pair) {
  if (zmq_socket_monitor(socket_.handle(), kMonitor, ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED) != 0)
    throw zmq::error_t();
  monitor_.set(zmq::sockopt::linger, 0);
  monitor_.connect(kMonitor);
  thread_ = start_thread([this, events_fd = monitor_.get(zmq::sockopt::fd)](const std::stop_token& stop) {
    look_until(stop, events_fd);
  });
}

ConnectionWatch::~ConnectionWatch() {
  thread_.request_stop();
  thread_.join();
  zmq_socket_monitor(socket_.handle(), nullptr, 0);
  for (const auto& [fd, connection] : connections_) close(connection.copy);
}

// ZeroMQ tells of a connection before it gives its first message.
ConnectionWatch::Id ConnectionWatch::id_of(int fd) {
  const std::lock_guard lock(mutex_);
  take_events();
  const auto at = connections_.find(fd);
  return at == connections_.end() ? Id{} : Id{.fd = fd, .order = at->second.order};
}

void ConnectionWatch::note_read(Id id) {
  const std::lock_guard lock(mutex_);
  if (Connection* connection = find(id)) connection->was_read = true;
}

void ConnectionWatch::note_member(Id id, bool is_member) {
  const std::lock_guard lock(mutex_);
  if (Connection* connection = find(id)) connection->is_member = is_member;
}

ConnectionWatch::Connection* ConnectionWatch::find(Id id) {
  const auto at = connections_.find(id.fd);
  return at != connections_.end() && at->second.order == id.order ? &at->second : nullptr;
}

void ConnectionWatch::look_until(const std::stop_token& stop, int events_fd) {
  auto next_look = Clock::now();
  pollfd events{events_fd, POLLIN, 0};  // only who has the mutex may touch the socket itself
  while (!stop.stop_requested()) {
    poll(&events, 1, static_cast<int>(until(next_look).count()));
    const std::lock_guard lock(mutex_);
    take_events();
    if (Clock::now() < next_look) continue;
    next_look = Clock::now() + kLook;
    measure();
    // One that comes back is a stranger until its first message was read, which may be a long one.
    const bool may_return = Clock::now() < may_return_until_;
    keep_below(/*members=*/false,
               static_cast<uint64_t>(limits_.stranger_bytes + (may_return ? limits_.member_bytes : 0)));
    keep_below(/*members=*/true, static_cast<uint64_t>(limits_.member_bytes));
  }
}

// An event is two parts: u16 number and u32 descriptor, then the address.
void ConnectionWatch::take_events() {
  for (zmq::message_t event, address; receive_now(monitor_, event);) {
    uint16_t number = 0;
    uint32_t fd = 0;
    if (event.size() == sizeof number + sizeof fd) {
      std::memcpy(&number, event.data(), sizeof number);
      std::memcpy(&fd, event.data<char>() + sizeof number, sizeof fd);
    }
    (void)receive_now(monitor_, address);
    forget(static_cast<int>(fd));
    if (number == ZMQ_EVENT_ACCEPTED) admit(static_cast<int>(fd));
  }
}

// Where descriptors are short, strangers give way as where they are too many.
void ConnectionWatch::admit(int fd) {
  int copy = -1;
  while ((copy = fcntl(fd, F_DUPFD_CLOEXEC, 0)) < 0 && (errno == EMFILE || errno == ENFILE)) {
    const auto oldest = least();
    if (oldest == connections_.end() || oldest->second.is_member) {
      shutdown(fd, SHUT_RDWR);  // an unwatched connection is refused
      ++closed_;
      return;
    }
    hang_up(oldest);
  }
  if (copy < 0) return;  // it has gone already
  connections_[fd] = {.copy = copy, .order = ++last_order_};
  keep_few();
}

void ConnectionWatch::forget(int fd) {
  const auto at = connections_.find(fd);
  if (at == connections_.end()) return;
  if (at->second.is_member) may_return_until_ = Clock::now() + kReturn;
  close(at->second.copy);
  connections_.erase(at);
}

// The oldest stranger, or the oldest of all where there is none.
ConnectionWatch::Connections::iterator ConnectionWatch::least() {
  return std::min_element(connections_.begin(), connections_.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second.is_member, a.second.order) < std::pair(b.second.is_member, b.second.order);
  });
}

void ConnectionWatch::keep_few() {
  const auto strangers = std::count_if(connections_.begin(), connections_.end(),
                                       [](const auto& item) { return !item.second.is_member; });
  if (static_cast<size_t>(strangers) > limits_.strangers || connections_.size() > limits_.peers)
    hang_up(least());
}

void ConnectionWatch::measure() {
  for (auto& [fd, connection] : connections_) {
    const uint64_t received = bytes_received(connection.copy).value_or(0);
    if (std::exchange(connection.was_read, false)) connection.read_until = received;
    connection.unread = received - connection.read_until;
  }
}

void ConnectionWatch::keep_below(bool members, uint64_t bytes) {
  std::vector<Connections::iterator> kept;
  uint64_t sum = 0;
  for (auto at = connections_.begin(); at != connections_.end(); ++at) {
    if (at->second.is_member != members) continue;
    kept.push_back(at);
    sum += at->second.unread;
  }
  const auto less = [](const auto& a, const auto& b) { return a->second.unread < b->second.unread; };
  while (sum > bytes) {
    const auto most = std::max_element(kept.begin(), kept.end(), less);
    sum -= (*most)->second.unread;
    hang_up(*most);
    kept.erase(most);
  }
}

// ZeroMQ finds its connection ended, and frees what it kept of it.
void ConnectionWatch::hang_up(Connections::iterator connection) {
  shutdown(connection->second.copy, SHUT_RDWR);
  close(connection->second.copy);
  connections_.erase(connection);
  ++closed_;
}

}  // namespace outrider
