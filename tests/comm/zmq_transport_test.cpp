// ZeroMQ ends and strangers: the role receives well-formed messages of known peers only.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>
#include <zmq.hpp>

#include "comm/codec.h"
#include "comm/zmq_watch.h"
#include "tests/comm/expect_message.h"
#include "tests/launch/hostile_peer.h"
#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

using namespace std::chrono_literals;

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

void connect_to(int fd, const std::string& endpoint) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
  ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
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

TEST(ZmqTransport, NamesAndIPv6AddressesAreAddresses) {
  for (const char* endpoint : {"tcp://localhost:*", "tcp://[::1]:*"}) {
    auto server = make_zmq_server(endpoint, {.cluster = kCluster});
    if (!server.ok() && server.status().message().find("no such address") != std::string::npos) continue;
    ASSERT_TRUE(server.ok()) << server.status().message();
    std::string at = (*server)->endpoint();
    if (at.starts_with("tcp://127.0.0.1:")) at.replace(6, 9, "localhost");
    const auto client = make_zmq_client(at, {.cluster = kCluster});
    ASSERT_TRUE(client.ok()) << at << ": " << client.status().message();
    ASSERT_TRUE((*client)->send(kCoordinatorPeer, Heartbeat{Generation(7)}).ok());
    EXPECT_EQ(expect<Heartbeat>(**server).generation.value(), 7u);
  }
}

TEST(ZmqTransport, WhatKeepsAConnectionAwayIsNamed) {
  const auto unknown = make_zmq_client("tcp://no-such-host.invalid:7000", {.connect_timeout = 5000ms});
  EXPECT_EQ(unknown.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(unknown.status().message().find("host name no-such-host.invalid is not known"), std::string::npos)
      << unknown.status().message();
  Server server;
  const auto taken = make_zmq_server(server.transport->endpoint());
  EXPECT_EQ(taken.status().code(), StatusCode::kUnavailable) << taken.status().message();
  EXPECT_NE(taken.status().message().find("something else listens at this port"), std::string::npos);
}

TEST(ZmqTransport, AWrongServerKeyDoesNotLookLikeAnAbsentServer) {
  const CurveKeyPair own = make_curve_key_pair().value(), mine = make_curve_key_pair().value();
  CurveKeys server_keys;
  server_keys.own = own;
  server_keys.allowed = {mine.public_key};
  const auto server = make_zmq_server("tcp://127.0.0.1:*", {.cluster = kCluster, .curve = server_keys});
  ASSERT_TRUE(server.ok()) << server.status().message();
  CurveKeys client_keys;
  client_keys.own = mine;
  client_keys.server = make_curve_key_pair().value().public_key;
  const auto wrong = make_zmq_client((*server)->endpoint(),
                                     {.cluster = kCluster, .curve = client_keys, .connect_timeout = 300ms});
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.status().message().find("--server-key"), std::string::npos) << wrong.status().message();
  const auto plain = make_zmq_client((*server)->endpoint(), {.cluster = kCluster, .connect_timeout = 300ms});
  ASSERT_FALSE(plain.ok());
  EXPECT_NE(plain.status().message().find("--server-key here, too"), std::string::npos)
      << plain.status().message();
}

TEST(ZmqTransport, DropsAndCountsRepeats) {
  Server server;
  Stranger stranger(server.transport->endpoint());
  for (const uint64_t number : {1, 2, 2, 1, 5, 4, 5, 4, 100, 36, 35, 3, 101})
    stranger.send(heartbeat_frame(1, number));
  Stranger other(server.transport->endpoint());
  other.send(heartbeat_frame(2, 1));  // another sender's numbers are its own
  std::vector<uint64_t> heard;
  for (int i = 0; i < 8; ++i) heard.push_back(expect<Heartbeat>(*server.transport).generation.value());
  std::sort(heard.begin(), heard.end());  // of two connections
  EXPECT_EQ(heard, (std::vector<uint64_t>{1, 1, 2, 4, 5, 36, 100, 101}));
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
  Stranger other(server.transport->endpoint());
  other.send(heartbeat_frame(2, 1));
  expect<Heartbeat>(*server.transport, &third);
  EXPECT_EQ(first, second);
  EXPECT_NE(first, third);
  EXPECT_TRUE(server.transport->send(first, Shutdown{}).ok());
}

TEST(ZmqTransport, APeerIsNamedByItsHost) {
  const auto host_at = [](const std::string& endpoint) {
    const auto server = make_zmq_server(endpoint, {.cluster = kCluster}).value();
    Stranger stranger(server->endpoint());
    stranger.send(heartbeat_frame(1, 1));
    PeerId peer;
    expect<Heartbeat>(*server, &peer);
    return server->host_of(peer);
  };
  TemporaryDirectory dir;
  EXPECT_EQ(host_at("tcp://127.0.0.1:*"), "127.0.0.1");
  EXPECT_EQ(host_at("ipc://" + (dir / "socket").string()), "this host");
  EXPECT_EQ(host_at(fmt::format("ipc://@outrider-host-{}", getpid())), "this host");
}

TEST(ZmqTransport, NobodyTakesOverAnIdentityThatIsThere) {
  Server server;
  PeerId peer;
  {
    Stranger first(server.transport->endpoint()), second(server.transport->endpoint());
    first.send(heartbeat_frame(1, 1));
    expect<Heartbeat>(*server.transport, &peer);
    second.send(heartbeat_frame(1, 2));
    const auto deadline = soon();
    while (server.transport->stats().refused_peers == 0 && Clock::now() < deadline)
      EXPECT_FALSE(server.transport->receive(Clock::now() + 10ms));
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
  int server_is_there[2];
  ASSERT_EQ(pipe(server_is_there), 0);
  // Forks before there are threads. The child connects under another identity once the server runs.
  const pid_t other = fork();
  if (other == 0) {
    char said = 0;
    if (read(server_is_there[0], &said, 1) != 1 || setuid(65534) != 0) _exit(2);
    _exit(make_zmq_client(endpoint, {.connect_timeout = 1s}).ok() ? 1 : 0);
  }
  const auto server = make_zmq_server(endpoint).value();
  EXPECT_TRUE(make_zmq_client(endpoint).ok());
  EXPECT_EQ(write(server_is_there[1], "!", 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0) << "another user could connect";
}

// One end with two servers: each peer is identified by the endpoint it connected to, whatever its messages
// claim. A message at either endpoint wakes the receiver.
TEST(ZmqTransport, ADoorOutsideIsNotTheOneInside) {
  Server server;
  const std::string inside = server.transport->endpoint();
  const auto end =
      make_joined_end(std::move(server.transport), "tcp://127.0.0.1:*", {.cluster = kCluster}).value();
  ASSERT_NE(end->endpoint(), inside);
  for (const TrustZone zone : {TrustZone::kInside, TrustZone::kOutside, TrustZone::kInside}) {
    auto worker =
        make_zmq_client(zone == TrustZone::kInside ? inside : end->endpoint(), {.cluster = kCluster}).value();
    std::jthread late([&] {
      std::this_thread::sleep_for(50ms);
      EXPECT_TRUE(worker->send(kCoordinatorPeer, Hello{.role = Role::kTarget}).ok());
    });
    const auto incoming = end->receive(soon());
    ASSERT_TRUE(incoming);
    EXPECT_EQ(incoming->zone, zone);
    EXPECT_TRUE(end->send(incoming->peer, Shutdown{}).ok());
    expect<Shutdown>(*worker);
  }
  auto taken = make_zmq_server("tcp://127.0.0.1:*").value();
  EXPECT_EQ(make_joined_end(std::move(taken), "tcp://0.0.0.0:*").status().code(),
            StatusCode::kInvalidArgument);
}

TEST(ZmqTransport, OneThatKeepsLookingKeepsItsDeadlines) {
  Server server;
  server.transport->keep_looking(1h);
  Stranger stranger(server.transport->endpoint());
  stranger.send(heartbeat_frame(1, 1));
  EXPECT_EQ(expect<Heartbeat>(*server.transport).generation.value(), 1u);
  const auto deadline = Clock::now() + 20ms;
  EXPECT_FALSE(server.transport->receive(deadline));
  EXPECT_GE(Clock::now(), deadline);
}

TEST(ZmqTransport, AConnectionSpeaksForOnePeer) {
  Server server;
  Stranger stranger(server.transport->endpoint());
  PeerId first, again;
  stranger.send(heartbeat_frame(1, 1));
  expect<Heartbeat>(*server.transport, &first);
  constexpr uint64_t kIdentities = 2000;
  for (uint64_t generation = 2; generation <= kIdentities; ++generation)
    stranger.send(heartbeat_frame(generation, 1));
  stranger.send(heartbeat_frame(1, 2));
  EXPECT_EQ(expect<Heartbeat>(*server.transport, &again).generation.value(), 2u);
  EXPECT_EQ(first, again);
  EXPECT_EQ(server.transport->stats().refused_peers, kIdentities - 1);
}

TEST(ZmqTransport, RemembersABoundedNumberOfPeers) {
  Server server;
  constexpr uint64_t kSenders = 1100;  // more than the table's 1024
  PeerId first, last;
  for (uint64_t generation = 1; generation <= kSenders; ++generation) {
    Stranger stranger(server.transport->endpoint());
    stranger.send(heartbeat_frame(generation, 1));
    expect<Heartbeat>(*server.transport, generation == 1 ? &first : &last);
  }
  EXPECT_EQ(server.transport->send(first, Shutdown{}).message(), fmt::format("no worker {}", first.value));
  EXPECT_NE(server.transport->send(last, Shutdown{}).message(), fmt::format("no worker {}", last.value));
}

TEST(ZmqTransport, StrangersNeverPushOutAMember) {
  constexpr OutsideLimits kFew{.strangers = 4, .peers = 8};
  const auto server = make_zmq_server("tcp://127.0.0.1:*", {.cluster = kCluster, .outside = kFew}).value();
  Stranger member(server->endpoint());
  PeerId peer, later;
  member.send(heartbeat_frame(1, 1));
  expect<Heartbeat>(*server, &peer);
  ASSERT_TRUE(server->send(peer, Welcome{.accepted = true}).ok());
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (uint64_t generation = 2; generation <= 60; ++generation) {
    strangers.push_back(std::make_unique<Stranger>(server->endpoint()));
    strangers.back()->send(heartbeat_frame(generation, 1));
    expect<Heartbeat>(*server);
  }
  member.send(heartbeat_frame(1, 2));
  while (expect<Heartbeat>(*server, &later).generation.value() != 2) continue;  // some come again
  EXPECT_EQ(later, peer);
  EXPECT_TRUE(server->send(peer, Heartbeat{}).ok());
  EXPECT_GE(server->stats().hung_up, strangers.size() - kFew.strangers);
}

// ZeroMQ limits the size of a part but delivers a message only with its last part. The sender of an endless
// message must be disconnected all the same.
TEST(ZmqTransport, AMessageThatNeverEndsIsCutOff) {
  const auto server =
      make_zmq_server("tcp://127.0.0.1:*", {.cluster = kCluster, .outside = OutsideLimits{}}).value();
  Stranger honest(server->endpoint());
  honest.send(heartbeat_frame(1, 1));
  expect<Heartbeat>(*server);
  constexpr size_t kLimit = size_t{8} << 30;
  uint64_t number = 1;
  for (const size_t part_bytes : {size_t{1} << 20, size_t{200}, size_t{0}}) {
    EXPECT_LT(testing::send_endless_message(server->endpoint(), part_bytes, kLimit), kLimit) << part_bytes;
    honest.send(heartbeat_frame(1, ++number));
    expect<Heartbeat>(*server);
  }
  EXPECT_EQ(server->stats().hung_up, 3u);
}

// It is a stranger again until its first message was read.
TEST(ZmqTransport, AMemberComesBackWithALongMessage) {
  const auto server =
      make_zmq_server("tcp://127.0.0.1:*", {.cluster = kCluster, .outside = OutsideLimits{}}).value();
  PeerId peer, again;
  {
    Stranger member(server->endpoint());
    member.send(heartbeat_frame(1, 1));
    expect<Heartbeat>(*server, &peer);
    ASSERT_TRUE(server->send(peer, Welcome{.accepted = true}).ok());
  }
  Stranger member(server->endpoint());
  member.send(std::vector<std::byte>(size_t{8} << 20));
  member.send(heartbeat_frame(1, 2));
  std::this_thread::sleep_for(200ms);  // its owner is busy
  EXPECT_EQ(expect<Heartbeat>(*server, &again).generation.value(), 2u);
  EXPECT_EQ(again, peer);
  EXPECT_EQ(server->stats().hung_up, 0u);
}

TEST(ZmqTransport, AFloodOfGarbageDoesNotKeepAnyoneFromWakingIt) {
  Server server;
  Stranger stranger(server.transport->endpoint());
  stranger.send(heartbeat_frame(1, 1));
  expect<Heartbeat>(*server.transport);
  for (int i = 0; i < 60; ++i) stranger.send({});  // fewer than a queue holds
  std::this_thread::sleep_for(100ms);
  server.transport->waker()();
  EXPECT_FALSE(server.transport->receive(soon()));
  EXPECT_LE(server.transport->stats().malformed_frames, 16u);
}

struct Watched {
  explicit Watched(const OutsideLimits& limits) : watch(context, socket, limits) {
    socket.set(zmq::sockopt::linger, 0);
    socket.bind("tcp://127.0.0.1:*");
    endpoint = socket.get(zmq::sockopt::last_endpoint);
  }
  // ZeroMQ's descriptor of the connection whose message comes next.
  int read_one() {
    zmq::message_t route, frame;
    EXPECT_TRUE(socket.recv(route) && socket.recv(frame));
    return zmq_msg_get(frame.handle(), ZMQ_SRCFD);
  }
  zmq::context_t context;
  zmq::socket_t socket{context, zmq::socket_type::router};
  ConnectionWatch watch;
  std::string endpoint;
};

// However late the watch's own thread looks, for instance because it has just begun.
TEST(ConnectionWatch, KnowsAConnectionByItsFirstMessage) {
  std::atomic<bool> done = false;
  std::vector<std::jthread> busy;
  for (unsigned i = 0; i < std::thread::hardware_concurrency(); ++i)
    busy.emplace_back([&] {
      while (!done) continue;
    });
  for (int i = 0; i < 50; ++i) {
    Watched server(OutsideLimits{});
    Stranger stranger(server.endpoint);
    stranger.send({});
    EXPECT_GT(server.watch.id_of(server.read_one()).order, 0u) << i;
  }
  done = true;
}

TEST(ConnectionWatch, ADescriptorsNextConnectionIsAnother) {
  Watched server({.strangers = 1, .peers = 8});
  const auto come = [&](std::optional<Stranger>& stranger) {
    stranger.emplace(server.endpoint);
    stranger->send({});
    return server.watch.id_of(server.read_one());
  };
  std::optional<Stranger> stranger, other;
  const auto first = come(stranger);
  auto second = first;
  for (int i = 0; i < 1000 && (second.fd != first.fd || second.order == first.order); ++i) {
    stranger.reset();
    second = come(stranger);
  }
  ASSERT_EQ(second.fd, first.fd);
  const uint64_t before = server.watch.closed();
  server.watch.note_member(first, true);
  come(other);
  EXPECT_GT(server.watch.closed(), before) << "a stranger has become a member";
}

// Every connection is watched. When descriptors are short, a stranger is disconnected to make room, and a
// member is not.
TEST(ConnectionWatch, StrangersGiveWayWhereDescriptorsAreShort) {
  Watched server(OutsideLimits{});
  Stranger member(server.endpoint);
  member.send({});
  server.watch.note_member(server.watch.id_of(server.read_one()), true);
  std::array<int, 3> strangers{};
  for (int& stranger : strangers) stranger = socket(AF_INET, SOCK_STREAM, 0);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{.rlim_cur = 128, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<int> taken;
  for (int fd = -1; (fd = fcntl(strangers[0], F_DUPFD_CLOEXEC, 0)) >= 0;) taken.push_back(fd);
  const auto leave = [&](int free) {
    for (; free > 0; --free) {
      close(taken.back());
      taken.pop_back();
    }
  };
  const auto wait_for_closed = [&](uint64_t count) {
    for (const auto deadline = soon(); server.watch.closed() < count && Clock::now() < deadline;)
      std::this_thread::sleep_for(1ms);
    EXPECT_EQ(server.watch.closed(), count);
  };
  leave(1);  // ZeroMQ takes it, and none is left for the copy
  connect_to(strangers[0], server.endpoint);
  wait_for_closed(1);
  leave(2);  // ZeroMQ's and its copy, and ZeroMQ's next
  connect_to(strangers[1], server.endpoint);
  connect_to(strangers[2], server.endpoint);
  wait_for_closed(2);
  for (const int fd : taken) close(fd);
  setrlimit(RLIMIT_NOFILE, &before);
  for (const int fd : strangers) close(fd);
  member.send({});
  EXPECT_GT(server.watch.id_of(server.read_one()).order, 0u) << "the member went";
}

// Bytes that are not even ZeroMQ.
TEST(ZmqTransport, SurvivesForeignProtocols) {
  Server server;
  const std::string endpoint = server.transport->endpoint();
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  connect_to(fd, endpoint);
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
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);  // in use
}

TEST(ZmqTransport, AClientWithoutServerGivesUp) {
  const auto client = make_zmq_client("ipc:///nonexistent/outrider", {.connect_timeout = 50ms});
  EXPECT_EQ(client.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(make_zmq_client("nonsense").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace outrider
