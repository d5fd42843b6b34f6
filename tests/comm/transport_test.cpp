// One suite over every transport: sends and receives, slow peers and peers that are gone.
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "comm/codec.h"
#include "tests/comm/expect_message.h"
#include "tests/comm/random_messages.h"
#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

using namespace std::chrono_literals;

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

class TransportTest : public testing::TestWithParam<std::string> {
 protected:
  Wire make(int high_water_mark = 64) {
    if (GetParam() == "inproc") return make_inproc(high_water_mark);
    if (GetParam().starts_with("joined")) return make_joined(GetParam() == "joined_near", high_water_mark);
    if (GetParam() == "ipc") return make_zmq("ipc://" + (directory_ / "control").string(), high_water_mark);
    return make_zmq("tcp://127.0.0.1:*", high_water_mark);
  }
  TemporaryDirectory directory_;
};

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

// The waits would take an hour.
TEST_P(TransportTest, AWakerEndsAWait) {
  Wire wire = make();
  const auto wake = wire.coordinator->waker();
  for (int i = 0; i < 50; ++i) {
    const std::jthread other(wake);
    EXPECT_FALSE(wire.coordinator->receive(Clock::now() + 1h));
  }
  wake();
  wake();
  EXPECT_FALSE(wire.coordinator->receive(Clock::now() + 1h)) << "it comes before the wait";

  const auto worker = wire.connect();
  ASSERT_TRUE(worker->send(kCoordinatorPeer, Heartbeat{}).ok());
  wake();
  auto incoming = wire.coordinator->receive(soon());
  if (!incoming) incoming = wire.coordinator->receive(soon());
  EXPECT_TRUE(incoming) << "and takes no message's place";
  wire.coordinator.reset();
  wake();
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
  EXPECT_LT(Clock::now() - start, 10s);
  EXPECT_FALSE(wire.coordinator->receive(start + 30ms));
  EXPECT_GE(Clock::now() - start, 30ms);
  // Messages that were already received are delivered even after the deadline.
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
  for (int arrived = 0; arrived < 4; ++arrived) expect<Propose>(*wire.coordinator);
  auto other = wire.connect();
  EXPECT_TRUE(other->send(kCoordinatorPeer, Shutdown{}).ok());
  auto incoming = wire.coordinator->receive(soon());
  while (incoming && std::holds_alternative<Propose>(incoming->message))
    incoming = wire.coordinator->receive(soon());
  EXPECT_TRUE(incoming && std::holds_alternative<Shutdown>(incoming->message));
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
  EXPECT_EQ(send_until_refused(*worker, kCoordinatorPeer, Heartbeat{}).code(), StatusCode::kUnavailable);
  const bool in_process = GetParam() == "inproc" || GetParam() == "joined_near";
  if (in_process) expect<Shutdown>(*worker);  // so who waits for a word need not send one
  EXPECT_FALSE(worker->receive(Clock::now() + 10ms));
}

// Messages that an end sent before it closed still arrive, even when the other end receives them later.
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

}  // namespace
}  // namespace outrider
