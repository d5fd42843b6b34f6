#include "comm/transport.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <thread>
#include <zmq.hpp>

#include "comm/codec.h"
#include "comm/frame_end.h"
#include "tests/comm/random_messages.h"

namespace outrider {
namespace {

using namespace std::chrono_literals;

// ---- one suite over every transport
// --------------------------------------------------------------------------

// A coordinator's end and a way to make workers' ends.
struct Wire {
  std::unique_ptr<Transport> coordinator;
  std::function<std::unique_ptr<Transport>()> connect;
};

Wire make_inproc(int high_water_mark) {
  auto hub = make_inproc_hub({.high_water_mark = static_cast<size_t>(high_water_mark)});
  auto coordinator = hub->coordinator_end();
  return {std::move(coordinator), [hub] { return hub->connect(); }};
}

Wire make_zmq(const std::string& endpoint, int high_water_mark) {
  ZmqOptions options;
  options.high_water_mark = high_water_mark;
  options.cluster = 77;
  options.linger = 500ms;
  auto server = make_zmq_server(endpoint, options).value();
  const std::string bound = server->endpoint();
  return {std::move(server), [bound, options] { return make_zmq_client(bound, options).value(); }};
}

// Workers in this process and others, at one end; `local` says where those of the test are.
Wire make_joined(bool local, int high_water_mark) {
  auto hub = make_inproc_hub({.high_water_mark = static_cast<size_t>(high_water_mark)});
  ZmqOptions options;
  options.high_water_mark = high_water_mark;
  options.linger = 500ms;
  auto end = make_joined_end(*hub, "tcp://127.0.0.1:*", options).value();
  const std::string bound = end->endpoint();
  if (local) return {std::move(end), [hub] { return hub->connect(); }};
  return {std::move(end), [hub, bound, options] { return make_zmq_client(bound, options).value(); }};
}

// Private to this process; removed at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = std::filesystem::temp_directory_path() / "outrider-test-XXXXXX";
    CHECK(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

class TransportTest : public testing::TestWithParam<std::string> {
 protected:
  Wire make(int high_water_mark = 64) {
    if (GetParam() == "inproc") return make_inproc(high_water_mark);
    if (GetParam().starts_with("joined")) return make_joined(GetParam() == "joined_near", high_water_mark);
    if (GetParam() == "ipc")
      return make_zmq("ipc://" + (directory_.path / "control").string(), high_water_mark);
    return make_zmq("tcp://127.0.0.1:*", high_water_mark);
  }
  TemporaryDirectory directory_;
};

Clock::time_point soon() { return Clock::now() + 5s; }

// The next message, which must come and be a T.
template <class T>
T expect(Transport& end, PeerId* from = nullptr) {
  auto incoming = end.receive(soon());
  EXPECT_TRUE(incoming.has_value()) << "nothing arrived";
  if (!incoming) return {};
  if (from != nullptr) *from = incoming->peer;
  EXPECT_TRUE(std::holds_alternative<T>(incoming->message)) << kMessageNames[incoming->message.index()];
  return std::holds_alternative<T>(incoming->message) ? std::get<T>(incoming->message) : T{};
}

Message failure_of(size_t bytes) { return Failure{std::string(bytes, 'x')}; }

// A peer that is being disconnected may still take a few frames.
Status send_until_refused(Transport& from, PeerId to, const Message& message) {
  const auto deadline = soon();
  Status status;
  while (status.ok() && Clock::now() < deadline) {
    status = from.send(to, message);
    std::this_thread::sleep_for(1ms);
  }
  return status;
}

TEST_P(TransportTest, CarriesEveryMessageBothWays) {
  Wire wire = make();
  auto worker = wire.connect();
  RandomMessages random(1);
  PeerId peer;
  for (size_t type = 0; type < TransportStats::kKinds; ++type) {
    const Message message = random.of_type(type);
    const auto bytes = encode(message, {})->size();
    ASSERT_TRUE(worker->send(kCoordinatorPeer, message).ok());
    const auto at_coordinator = wire.coordinator->receive(soon());
    ASSERT_TRUE(at_coordinator);
    EXPECT_EQ(encode(at_coordinator->message, {}).value(), encode(message, {}).value());
    EXPECT_EQ(at_coordinator->bytes, bytes);
    ASSERT_TRUE(wire.coordinator->send(at_coordinator->peer, message).ok());
    const auto at_worker = worker->receive(soon());
    ASSERT_TRUE(at_worker);
    EXPECT_EQ(at_worker->peer, kCoordinatorPeer);
    EXPECT_EQ(encode(at_worker->message, {}).value(), encode(message, {}).value());
    for (const Transport* end : {wire.coordinator.get(), worker.get()}) {
      EXPECT_EQ(end->stats().sent_messages[type], 1u);
      EXPECT_EQ(end->stats().received_messages[type], 1u);
      EXPECT_EQ(end->stats().sent_bytes[type], bytes);
      EXPECT_EQ(end->stats().received_bytes[type], bytes);
    }
  }
  EXPECT_EQ(wire.coordinator->stats().malformed_frames, 0u);
}

TEST_P(TransportTest, TellsWorkersApartAndKeepsTheirOrder) {
  Wire wire = make();
  constexpr uint64_t kMessages = 50;
  std::vector<std::unique_ptr<Transport>> workers;
  for (int w = 0; w < 3; ++w) workers.push_back(wire.connect());
  for (uint64_t i = 0; i < kMessages; ++i)
    for (size_t w = 0; w < workers.size(); ++w)
      ASSERT_TRUE(workers[w]->send(kCoordinatorPeer, Heartbeat{Generation(w * 1000 + i)}).ok());
  std::map<PeerId, std::vector<uint64_t>> heard;
  for (uint64_t i = 0; i < kMessages * workers.size(); ++i) {
    PeerId peer;
    const auto heartbeat = expect<Heartbeat>(*wire.coordinator, &peer);
    heard[peer].push_back(heartbeat.generation.value());
  }
  ASSERT_EQ(heard.size(), workers.size());
  for (const auto& [peer, values] : heard) {
    EXPECT_NE(peer, kCoordinatorPeer);
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], values[0] + i);
    // The answer reaches the worker that asked.
    ASSERT_TRUE(wire.coordinator->send(peer, Heartbeat{Generation(values[0])}).ok());
    EXPECT_EQ(expect<Heartbeat>(*workers[values[0] / 1000]).generation.value(), values[0]);
  }
}

TEST_P(TransportTest, ReceiveKeepsItsDeadline) {
  Wire wire = make();
  auto worker = wire.connect();
  const auto start = Clock::now();
  EXPECT_FALSE(worker->receive(start));  // nothing there: at once
  EXPECT_LT(Clock::now() - start, 1s);
  EXPECT_FALSE(wire.coordinator->receive(start + 30ms));
  EXPECT_GE(Clock::now() - start, 30ms);
  // What is there already arrives even past the deadline.
  ASSERT_TRUE(worker->send(kCoordinatorPeer, Shutdown{}).ok());
  expect<Shutdown>(*wire.coordinator);
}

TEST_P(TransportTest, AMessageWakesAReceiver) {
  Wire wire = make();
  auto worker = wire.connect();
  std::jthread thread([&] {
    std::this_thread::sleep_for(20ms);
    EXPECT_TRUE(worker->send(kCoordinatorPeer, Shutdown{}).ok());
  });
  expect<Shutdown>(*wire.coordinator);
}

TEST_P(TransportTest, ASlowPeerIsAnError) {
  Wire wire = make(/*high_water_mark=*/4);
  auto worker = wire.connect();
  ASSERT_TRUE(worker->send(kCoordinatorPeer, Shutdown{}).ok());
  PeerId peer;
  expect<Shutdown>(*wire.coordinator, &peer);
  Propose propose;
  propose.committed.resize(100'000);  // fills the kernel's buffers too
  Status status;
  int sent = 0;
  for (; status.ok() && sent < 1000; ++sent) status = wire.coordinator->send(peer, propose);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.message();
  EXPECT_GT(sent, 1);
  // The other direction is not affected, and the queue drains.
  EXPECT_TRUE(worker->send(kCoordinatorPeer, Shutdown{}).ok());
  expect<Shutdown>(*wire.coordinator);
  expect<Propose>(*worker);
  status = {};
  for (sent = 0; status.ok() && sent < 1000; ++sent) status = worker->send(kCoordinatorPeer, propose);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.message();
}

// With libzmq 4.3.4 and its own heartbeats switched on, this aborts the process.
TEST_P(TransportTest, APeerMayDieWithItsQueueFull) {
  Wire wire = make(/*high_water_mark=*/4);
  auto worker = wire.connect();
  Propose propose;
  propose.committed.resize(100'000);
  for (int i = 0; i < 1000 && worker->send(kCoordinatorPeer, propose).ok(); ++i) continue;
  worker.reset();
  if (GetParam() != "inproc") std::this_thread::sleep_for(1200ms);  // longer than a heartbeat would be
  int arrived = 0;
  while (wire.coordinator->receive(Clock::now() + 20ms)) ++arrived;
  EXPECT_GE(arrived, 4);
  auto other = wire.connect();
  EXPECT_TRUE(other->send(kCoordinatorPeer, Shutdown{}).ok());
  expect<Shutdown>(*wire.coordinator);
}

TEST_P(TransportTest, AWorkerThatIsGoneIsNoticed) {
  Wire wire = make();
  auto worker = wire.connect();
  auto other = wire.connect();
  ASSERT_TRUE(other->send(kCoordinatorPeer, Shutdown{}).ok());
  PeerId peer, other_peer;
  expect<Shutdown>(*wire.coordinator, &other_peer);
  ASSERT_TRUE(worker->send(kCoordinatorPeer, Heartbeat{}).ok());
  expect<Heartbeat>(*wire.coordinator, &peer);
  worker.reset();
  EXPECT_EQ(send_until_refused(*wire.coordinator, peer, Shutdown{}).code(), StatusCode::kUnavailable);
  EXPECT_EQ(wire.coordinator->send(PeerId{12345}, Shutdown{}).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(wire.coordinator->send(other_peer, Shutdown{}).ok());
  expect<Shutdown>(*other);
}

TEST_P(TransportTest, ACoordinatorThatIsGoneIsNoticed) {
  Wire wire = make();
  auto worker = wire.connect();
  ASSERT_TRUE(worker->send(kCoordinatorPeer, Shutdown{}).ok());
  expect<Shutdown>(*wire.coordinator);
  wire.coordinator.reset();
  EXPECT_EQ(send_until_refused(*worker, kCoordinatorPeer, Shutdown{}).code(), StatusCode::kUnavailable);
  EXPECT_FALSE(worker->receive(Clock::now() + 10ms));
}

// What an end sent before it closed arrives, also when the other end reads it later.
TEST_P(TransportTest, LastWordsArrive) {
  for (int repeat = 0; repeat < 100; ++repeat) {
    Wire wire = make();
    auto worker = wire.connect();
    ASSERT_TRUE(worker->send(kCoordinatorPeer, Heartbeat{}).ok());
    PeerId peer;
    expect<Heartbeat>(*wire.coordinator, &peer);
    ASSERT_TRUE(wire.coordinator->send(peer, Shutdown{}).ok());
    wire.coordinator.reset();
    if (repeat % 10 == 0) std::this_thread::sleep_for(2ms);
    expect<Shutdown>(*worker);
  }
}

TEST_P(TransportTest, BadMessagesAreRefusedAtTheSender) {
  Wire wire = make();
  auto worker = wire.connect();
  EXPECT_EQ(worker->send(kCoordinatorPeer, failure_of(5000)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(worker->stats().sent_messages[Message(Failure{}).index()], 0u);
  EXPECT_TRUE(worker->send(kCoordinatorPeer, failure_of(10)).ok());
  expect<Failure>(*wire.coordinator);
}

INSTANTIATE_TEST_SUITE_P(Wires, TransportTest,
                         testing::Values("inproc", "ipc", "tcp", "joined_near", "joined_far"),
                         [](const auto& wire) { return wire.param; });

// ---- ZeroMQ and strangers
// ------------------------------------------------------------------------------------

constexpr uint64_t kCluster = 77;

struct Server {
  Server() : transport(make_zmq_server("tcp://127.0.0.1:*", {.cluster = kCluster}).value()) {}
  std::unique_ptr<Transport> transport;
};

// A DEALER that sends any bytes it likes.
class Stranger {
 public:
  explicit Stranger(const std::string& endpoint) : socket_(context_, zmq::socket_type::dealer) {
    socket_.set(zmq::sockopt::linger, 1000);
    socket_.connect(endpoint);
  }
  void send(const std::vector<std::byte>& bytes, bool more = false) {
    socket_.send(zmq::buffer(bytes), more ? zmq::send_flags::sndmore : zmq::send_flags::none);
  }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
};

std::vector<std::byte> heartbeat_frame(uint64_t generation, uint64_t number, uint64_t cluster = kCluster) {
  const FrameInfo info{.cluster = cluster, .generation = Generation(generation), .sequence_number = number};
  return encode(Heartbeat{Generation(number)}, info).value();
}

TEST(ZmqTransport, DropsAndCountsGarbage) {
  Server server;
  Stranger stranger(server.transport->endpoint());
  stranger.send({});
  stranger.send(std::vector<std::byte>(100));
  stranger.send(heartbeat_frame(1, 1, kCluster + 1));
  auto damaged = heartbeat_frame(1, 1);
  damaged.back() ^= std::byte{1};
  stranger.send(damaged);
  stranger.send(heartbeat_frame(1, 1), /*more=*/true);
  stranger.send(heartbeat_frame(1, 2), /*more=*/true);
  stranger.send(heartbeat_frame(1, 3));  // one message of three parts
  stranger.send(heartbeat_frame(1, 4));
  EXPECT_EQ(expect<Heartbeat>(*server.transport).generation.value(), 4u);
  EXPECT_EQ(server.transport->stats().malformed_frames, 5u);
  EXPECT_FALSE(server.transport->receive(Clock::now() + 10ms));
}

TEST(ZmqTransport, DropsAndCountsRepeats) {
  Server server;
  Stranger stranger(server.transport->endpoint());
  for (const uint64_t number : {1, 2, 2, 1, 5, 4, 5, 4, 100, 36, 35, 3, 101})
    stranger.send(heartbeat_frame(1, number));
  stranger.send(heartbeat_frame(2, 1));  // another sender's numbers are its own
  std::vector<uint64_t> heard;
  for (int i = 0; i < 8; ++i) heard.push_back(expect<Heartbeat>(*server.transport).generation.value());
  EXPECT_EQ(heard, (std::vector<uint64_t>{1, 2, 5, 4, 100, 36, 101, 1}));
  EXPECT_EQ(server.transport->stats().duplicate_frames, 6u);
}

TEST(ZmqTransport, APeerKeepsItsIdAcrossConnections) {
  Server server;
  PeerId first, second, third;
  {
    Stranger stranger(server.transport->endpoint());
    stranger.send(heartbeat_frame(1, 1));
    expect<Heartbeat>(*server.transport, &first);
  }
  Stranger stranger(server.transport->endpoint());
  stranger.send(heartbeat_frame(1, 2));
  expect<Heartbeat>(*server.transport, &second);
  stranger.send(heartbeat_frame(2, 1));
  expect<Heartbeat>(*server.transport, &third);
  EXPECT_EQ(first, second);
  EXPECT_NE(first, third);
  EXPECT_TRUE(server.transport->send(first, Shutdown{}).ok());
}

TEST(ZmqTransport, NobodyTakesOverAnIdentityThatIsThere) {
  Server server;
  PeerId peer;
  {
    Stranger first(server.transport->endpoint()), second(server.transport->endpoint());
    first.send(heartbeat_frame(1, 1));
    expect<Heartbeat>(*server.transport, &peer);
    second.send(heartbeat_frame(1, 2));
    EXPECT_FALSE(server.transport->receive(Clock::now() + 50ms));
    EXPECT_EQ(server.transport->stats().refused_peers, 1u);
    first.send(heartbeat_frame(1, 3));
    EXPECT_EQ(expect<Heartbeat>(*server.transport).generation.value(), 3u);
  }
  Stranger third(server.transport->endpoint());  // the first is gone
  third.send(heartbeat_frame(1, 4));
  EXPECT_EQ(expect<Heartbeat>(*server.transport).generation.value(), 4u);
}

// In the abstract namespace there is no file whose mode could keep others out.
TEST(ZmqTransport, ANamelessSocketIsForItsOwnUserOnly) {
  if (geteuid() != 0) GTEST_SKIP() << "NOT TESTED: only root can become another user";
  const std::string endpoint = fmt::format("ipc://@outrider-test-{}", getpid());
  // Before there are threads; this one comes as somebody else, once the server is there.
  const pid_t other = fork();
  if (other == 0) {
    std::this_thread::sleep_for(200ms);
    if (setuid(65534) != 0) _exit(2);
    _exit(make_zmq_client(endpoint, {.connect_timeout = 1s}).ok() ? 1 : 0);
  }
  const auto server = make_zmq_server(endpoint).value();
  EXPECT_TRUE(make_zmq_client(endpoint, {.connect_timeout = 1s}).ok());
  int status = 0;
  ASSERT_EQ(waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0) << "another user could connect";
}

TEST(ZmqTransport, AServerListensAtSeveralAddresses) {
  Server server;
  const std::string further = server.transport->also_listen("tcp://127.0.0.1:*").value();
  EXPECT_NE(further, server.transport->endpoint());
  for (const std::string& endpoint : {server.transport->endpoint(), further}) {
    auto worker = make_zmq_client(endpoint, {.cluster = kCluster}).value();
    EXPECT_TRUE(worker->send(kCoordinatorPeer, Shutdown{}).ok());
    expect<Shutdown>(*server.transport);
  }
  EXPECT_EQ(server.transport->also_listen("tcp://0.0.0.0:*").status().code(), StatusCode::kInvalidArgument);
}

TEST(ZmqTransport, RemembersABoundedNumberOfPeers) {
  Server server;
  Stranger stranger(server.transport->endpoint());
  constexpr uint64_t kSenders = 1100;  // more than the table's 1024
  PeerId first, last;
  for (uint64_t generation = 1; generation <= kSenders; ++generation) {
    stranger.send(heartbeat_frame(generation, 1));
    expect<Heartbeat>(*server.transport, generation == 1 ? &first : &last);
  }
  EXPECT_EQ(server.transport->send(first, Shutdown{}).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(server.transport->send(last, Shutdown{}).ok());
}

// Bytes that are not even ZeroMQ.
TEST(ZmqTransport, SurvivesForeignProtocols) {
  Server server;
  const std::string endpoint = server.transport->endpoint();
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
  ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const std::string request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  auto worker = make_zmq_client(endpoint, {.cluster = kCluster}).value();
  EXPECT_TRUE(worker->send(kCoordinatorPeer, Shutdown{}).ok());
  expect<Shutdown>(*server.transport);
  close(fd);
}

TEST(ZmqTransport, AnOverlongMessageNeverArrives) {
  auto server =
      make_zmq_server("tcp://127.0.0.1:*", {.max_message_bytes = 1000, .cluster = kCluster}).value();
  Stranger stranger(server->endpoint());
  stranger.send(heartbeat_frame(1, 1));
  expect<Heartbeat>(*server);
  stranger.send(std::vector<std::byte>(100'000));
  EXPECT_FALSE(server->receive(Clock::now() + 50ms));
}

TEST(ZmqTransport, BindsLoopbackUnlessToldOtherwise) {
  for (const char* endpoint : {"tcp://0.0.0.0:*", "tcp://*:*", "inproc://x", "nonsense"}) {
    const auto server = make_zmq_server(endpoint);
    EXPECT_EQ(server.status().code(), StatusCode::kInvalidArgument) << endpoint;
  }
  EXPECT_TRUE(make_zmq_server("tcp://0.0.0.0:*", {.allow_remote = true}).ok());
  const auto first = make_zmq_server("tcp://127.0.0.1:*").value();
  const auto second = make_zmq_server(first->endpoint());
  EXPECT_EQ(second.status().code(), StatusCode::kInvalidArgument);  // in use
}

TEST(ZmqTransport, AClientWithoutServerGivesUp) {
  const auto client = make_zmq_client("ipc:///nonexistent/outrider", {.connect_timeout = 50ms});
  EXPECT_EQ(client.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(make_zmq_client("nonsense").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace outrider
