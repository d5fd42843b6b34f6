#include "hostile_peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include <zmq.hpp>

#include "base/hash.h"
#include "comm/codec.h"
#include "comm/transport.h"

namespace outrider::testing {
namespace {

using namespace std::chrono_literals;

std::vector<char> random_bytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<char> bytes(count);
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

int open_connection(const std::string& endpoint) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    throw std::runtime_error("cannot connect to " + endpoint);
  return fd;
}

// A ZeroMQ client whose frames are its own affair.
class RawClient {
 public:
  explicit RawClient(const std::string& endpoint, const std::optional<CurveKeys>& keys = {})
      : socket_(context_, zmq::socket_type::dealer) {
    if (keys) {
      socket_.set(zmq::sockopt::curve_serverkey, keys->server);
      socket_.set(zmq::sockopt::curve_publickey, keys->own.public_key);
      socket_.set(zmq::sockopt::curve_secretkey, keys->own.secret_key);
    }
    socket_.set(zmq::sockopt::linger, 1000);
    socket_.set(zmq::sockopt::rcvtimeo, 10'000);
    socket_.connect(endpoint);
  }
  void send(const void* data, size_t size) { socket_.send(zmq::buffer(data, size), zmq::send_flags::none); }
  void send(const Message& message, uint64_t generation) {
    const auto frame = encode(message, {.generation = Generation(generation), .sequence_number = ++number_});
    send(frame.value().data(), frame.value().size());
  }
  // Empty after ten seconds.
  std::optional<Message> receive() {
    zmq::message_t part;
    if (!socket_.recv(part)) return std::nullopt;
    auto decoded = decode({part.data<std::byte>(), part.size()}, 0);
    if (!decoded.ok()) throw std::runtime_error(decoded.status().message());
    return std::move(decoded.value().message);
  }
  std::string refusal() {
    while (const auto message = receive()) {
      const auto* welcome = std::get_if<Welcome>(&*message);
      if (welcome) return welcome->accepted ? "accepted" : welcome->reason;
    }
    return "no answer";
  }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
  uint64_t number_ = 0;
};

// Accepted anywhere, and never given a sequence: every text is longer than it can read.
Hello harmless_hello() {
  Hello hello;
  hello.generation = Generation(77);
  hello.model.name = "harmless";
  hello.model.max_context = 1;
  hello.max_sequences = 1;
  return hello;
}

}  // namespace

void send_random_bytes(const std::string& endpoint, size_t bytes) {
  const int fd = open_connection(endpoint);
  const auto data = random_bytes(bytes, 1);
  for (size_t sent = 0; sent < data.size();) {
    const ssize_t n = ::send(fd, data.data() + sent, data.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) break;  // it hung up, as it should
    sent += static_cast<size_t>(n);
  }
  close(fd);
}

void send_random_frames(const std::string& endpoint, int frames) {
  RawClient client(endpoint);
  for (int i = 0; i < frames; ++i) {
    const auto data = random_bytes(static_cast<size_t>(i) * 7, static_cast<uint64_t>(i));
    client.send(data.data(), data.size());
  }
}

std::string answer_to_version(const std::string& endpoint, uint32_t version) {
  RawClient client(endpoint);
  Hello hello = harmless_hello();
  hello.protocol_version = version;
  client.send(hello, 1001);
  return client.refusal();
}

std::string answer_to_target(const std::string& endpoint, const std::optional<CurveKeys>& keys) {
  static uint64_t identity = 10'000;  // a new one each time
  RawClient client(endpoint, keys);
  Hello hello = harmless_hello();
  hello.role = Role::kTarget;
  hello.model.vocab_size = 512;
  hello.model.max_context = 4096;
  client.send(hello, ++identity);
  return client.refusal();
}

std::string answer_to_second_with_one_identity(const std::string& endpoint) {
  constexpr uint64_t kIdentity = 1002;
  RawClient first(endpoint), second(endpoint);
  first.send(harmless_hello(), kIdentity);
  if (const std::string answer = first.refusal(); answer != "accepted") return "first: " + answer;
  second.send(harmless_hello(), kIdentity);
  return second.refusal();
}

void beat_as_many(const std::string& endpoint, int identities, int connections) {
  RawClient client(endpoint);
  for (int i = 0; i < identities; ++i) client.send(Heartbeat{}, 2000 + static_cast<uint64_t>(i));
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < connections; ++i) {
    clients.push_back(std::make_unique<RawClient>(endpoint));
    clients.back()->send(Heartbeat{}, 1'000'000 + static_cast<uint64_t>(i));
  }
}

void say_large_hellos(const std::string& endpoint, int hellos) {
  Hello hello = harmless_hello();
  hello.model.vocabulary_fingerprint = 1;  // of no model: refused once there is a target
  hello.slices.of_rank.assign(64, {.endpoint = std::string(4000, 'e'), .gpu = std::string(2000, 'g')});
  for (int i = 0; i < hellos; ++i) RawClient(endpoint).send(hello, 3'000'000 + static_cast<uint64_t>(i));
}

size_t send_endless_message(const std::string& endpoint, size_t part_bytes, size_t limit) {
  const int fd = open_connection(endpoint);
  const timeval patience{.tv_sec = 2, .tv_usec = 0};  // for a listener that has stopped reading
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  // ZMTP 3.0 without encryption: greeting, READY, and then parts that say that more will come.
  std::string greeting = std::string("\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL", 16);
  greeting.resize(64);
  const std::string ready(
      "\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06"
      "DEALER",
      30);
  constexpr size_t kLongFrom = 256;
  const int size_bits = part_bytes < kLongFrom ? 8 : 64;
  std::string part(1, part_bytes < kLongFrom ? '\x01' : '\x03');
  for (int shift = size_bits - 8; shift >= 0; shift -= 8)
    part += static_cast<char>(part_bytes >> shift & 0xff);
  part.resize(part.size() + part_bytes, 'x');
  std::string parts;
  while (parts.size() < size_t{1} << 16) parts += part;
  char answer[64];
  const bool meets = ::send(fd, greeting.data(), greeting.size(), MSG_NOSIGNAL) > 0 &&
                     recv(fd, answer, sizeof answer, MSG_WAITALL) == sizeof answer &&
                     ::send(fd, ready.data(), ready.size(), MSG_NOSIGNAL) > 0 &&
                     recv(fd, answer, sizeof answer, 0) > 0;
  if (!meets) throw std::runtime_error("no ZeroMQ at " + endpoint);
  size_t sent = 0;
  while (sent < limit) {
    const size_t done = sent % parts.size();
    const ssize_t n = ::send(fd, parts.data() + done, parts.size() - done, MSG_NOSIGNAL);
    if (n <= 0) break;  // it hung up
    sent += static_cast<size_t>(n);
  }
  close(fd);
  return sent;
}

bool connection_ends_after(const std::string& endpoint, size_t bytes) {
  zmq::context_t context;
  zmq::socket_t socket(context, zmq::socket_type::dealer), monitor(context, zmq::socket_type::pair);
  socket.set(zmq::sockopt::linger, 0);
  if (zmq_socket_monitor(socket.handle(), "inproc://end", ZMQ_EVENT_DISCONNECTED) != 0) return false;
  monitor.set(zmq::sockopt::rcvtimeo, 10'000);
  monitor.connect("inproc://end");
  socket.connect(endpoint);
  const std::vector<char> large(bytes);
  socket.send(zmq::buffer(large), zmq::send_flags::none);
  zmq::message_t event;
  return monitor.recv(event).has_value();
}

namespace {

Hello liars_hello(int32_t max_sequences) {
  Hello hello = harmless_hello();
  hello.model.name = "liar";
  hello.model.fingerprint = 5;
  hello.model.max_context = 100'000;
  hello.max_sequences = max_sequences;
  return hello;
}

// Sends what `lie` makes of a Draft that would be in order, `copies` times, until `proposes` were answered or
// the job ends.
template <class Lie>
LiarCounts draft(RawClient& client, uint64_t identity, int proposes, int copies, const Lie& lie) {
  LiarCounts counts;
  std::map<SequenceId, std::vector<TokenId>> texts;
  while (counts.proposed < proposes) {
    const auto message = client.receive();
    if (!message || std::holds_alternative<Shutdown>(*message)) break;
    if (const auto* open = std::get_if<Open>(&*message)) texts[open->sequence] = open->ids;
    const auto* propose = std::get_if<Propose>(&*message);
    if (!propose) continue;
    auto& text = texts[propose->sequence];
    text.insert(text.end(), propose->committed.begin(), propose->committed.end());
    if (propose->gamma == 0) continue;
    Draft draft;
    draft.sequence = propose->sequence;
    draft.epoch = propose->epoch;
    draft.round = propose->round;
    draft.base = propose->base;
    draft.prefix_hash = prefix_hash(text);
    draft.ids.assign(static_cast<size_t>(propose->gamma), TokenId(5));
    lie(draft, counts.proposed++);
    for (int i = 0; i < copies; ++i, ++counts.sent) client.send(draft, identity);
  }
  return counts;
}

}  // namespace

LiarCounts draft_nonsense(const std::string& endpoint, int proposes) {
  constexpr uint64_t kIdentity = 1003;
  RawClient client(endpoint);
  client.send(liars_hello(4), kIdentity);
  const LiarCounts counts = draft(client, kIdentity, proposes, 2, [](Draft& draft, int count) {
    if (count % 3 == 1) draft.ids.assign(draft.ids.size(), TokenId(-7));
    if (count % 3 == 2) ++draft.prefix_hash;
  });
  client.send(Shutdown{}, kIdentity);
  return counts;
}

LiarCounts draft_wrong_tokens(const std::string& endpoint) {
  constexpr uint64_t kIdentity = 1004;
  RawClient client(endpoint);
  client.send(liars_hello(64), kIdentity);
  return draft(client, kIdentity, INT_MAX, 1, [](Draft&, int) {});
}

}  // namespace outrider::testing
