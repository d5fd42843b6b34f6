// The connection of a sender to a rank's endpoint, over ZeroMQ.
#include "draft_worker/wire/slice_sender.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace outrider::slice_sender_test {
namespace {

using namespace std::chrono_literals;

std::unique_ptr<Transport> bind(int high_water_mark, const char* name) {
  return make_zmq_server(fmt::format("ipc://@outrider-test-{}-{}", name, getpid()),
                         {.high_water_mark = high_water_mark})
      .value();
}

SliceEndpoints of(const Transport& endpoint) {
  return {.of_rank = {{.endpoint = endpoint.endpoint(), .gpu = ""}}};
}

KvBlocks message(uint64_t transfer) {
  return {.transfer = transfer, .count = 1, .bytes = std::vector<uint8_t>(1 << 20)};
}

// The receiver reads nothing, so only the sender's queue has room.
TEST(SliceSender, AQueueHoldsAsManyMessagesAsItsUserSays) {
  const auto endpoint = bind(1, "queue");
  const auto sender = connect_to_endpoint(of(*endpoint), 0, 5000ms, {.high_water_mark = 100}).value();
  for (uint64_t i = 0; i < 100; ++i)
    ASSERT_TRUE(sender->send(kCoordinatorPeer, message(i)).ok()) << "message " << i;
  Status status;
  for (uint64_t i = 100; i < 200 && status.ok(); ++i) status = sender->send(kCoordinatorPeer, message(i));
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  for (uint64_t i = 0; i < 100; ++i) {
    const auto incoming = endpoint->receive(Clock::now() + 30s);
    ASSERT_TRUE(incoming);
    EXPECT_EQ(std::get<KvBlocks>(incoming->message).transfer, i);
  }
}

TEST(SliceSender, AClosingEndDeliversWhatItHasIfItsUserSaysSo) {
  const auto endpoint = bind(200, "linger");
  auto sender =
      connect_to_endpoint(of(*endpoint), 0, 5000ms, {.high_water_mark = 200, .linger = 30'000ms}).value();
  for (uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(sender->send(kCoordinatorPeer, message(i)).ok());
  sender.reset();
  for (uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(endpoint->receive(Clock::now() + 30s)) << "message " << i;
}

}  // namespace
}  // namespace outrider::slice_sender_test
