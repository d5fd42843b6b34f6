#include "cluster/slice_endpoints.h"

#include <gtest/gtest.h>

#include <thread>

namespace outrider {
namespace {

using namespace std::chrono_literals;

std::vector<OpenSliceEndpoint> open_all(int ranks,
                                        const std::function<SliceEndpointOptions(int rank)>& options) {
  const auto group = make_thread_collectives(ranks);
  std::vector<OpenSliceEndpoint> endpoints(static_cast<size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      endpoints[static_cast<size_t>(r)] = open_slice_endpoints(*group[static_cast<size_t>(r)], options(r));
    });
  threads.clear();
  return endpoints;
}

SliceEndpointOptions over_tcp(int) {
  return {.host = "127.0.0.1", .encrypted = true, .max_message_bytes = 4096, .high_water_mark = 4};
}

TEST(SliceEndpoints, EveryRankKnowsAllAndOnlyKeyHoldersGetIn) {
  const auto endpoints = open_all(4, over_tcp);
  for (const OpenSliceEndpoint& endpoint : endpoints) {
    ASSERT_TRUE(endpoint.own);
    ASSERT_EQ(endpoint.all.of_rank.size(), 4u);
    EXPECT_EQ(endpoint.all.secret_key, endpoints[0].all.secret_key);
  }
  const SliceEndpoints& all = endpoints[0].all;
  for (size_t r = 0; r < endpoints.size(); ++r) {
    EXPECT_EQ(all.of_rank[r].endpoint, endpoints[r].own->endpoint());
    const CurveKeys keys{.own = {all.public_key, all.secret_key}, .server = all.server_key, .allowed = {}};
    const auto worker = make_zmq_client(all.of_rank[r].endpoint, {.cluster = all.cluster, .curve = keys});
    ASSERT_TRUE(worker.ok()) << worker.status().message();
    ASSERT_TRUE((*worker)->send(kCoordinatorPeer, QSlice{.sequence = SequenceId(r)}).ok());
    const auto slice = endpoints[r].own->receive(Clock::now() + 10s);
    ASSERT_TRUE(slice && std::holds_alternative<QSlice>(slice->message));
    const CurveKeys others{.own = make_curve_key_pair().value(), .server = all.server_key, .allowed = {}};
    EXPECT_FALSE(make_zmq_client(all.of_rank[r].endpoint, {.curve = others, .connect_timeout = 300ms}).ok());
  }
}

// A worker of another job that comes to an address used before.
TEST(SliceEndpoints, FramesOfAnotherGroupAreDropped) {
  const auto endpoints =
      open_all(1, [](int) { return SliceEndpointOptions{.max_message_bytes = 4096, .high_water_mark = 4}; });
  ASSERT_TRUE(endpoints[0].own);
  const SliceEndpoints& all = endpoints[0].all;
  const auto stray = make_zmq_client(all.of_rank[0].endpoint, {.cluster = all.cluster + 1}).value();
  const auto worker = make_zmq_client(all.of_rank[0].endpoint, {.cluster = all.cluster}).value();
  ASSERT_TRUE(stray->send(kCoordinatorPeer, QSlice{.sequence = SequenceId(1)}).ok());
  const auto end = Clock::now() + 10s;
  while (endpoints[0].own->stats().malformed_frames == 0 && Clock::now() < end)
    EXPECT_FALSE(endpoints[0].own->receive(Clock::now() + 10ms));
  ASSERT_TRUE(worker->send(kCoordinatorPeer, QSlice{.sequence = SequenceId(2)}).ok());
  const auto slice = endpoints[0].own->receive(Clock::now() + 10s);
  ASSERT_TRUE(slice);
  EXPECT_EQ(std::get<QSlice>(slice->message).sequence, SequenceId(2));
  EXPECT_EQ(endpoints[0].own->stats().malformed_frames, 1u);
}

TEST(SliceEndpoints, AllRanksOrNone) {
  const auto endpoints = open_all(2, [](int rank) {
    SliceEndpointOptions options = over_tcp(rank);
    if (rank == 1) options.host = "192.0.2.1";  // not of this machine
    return options;
  });
  for (const OpenSliceEndpoint& endpoint : endpoints) {
    EXPECT_FALSE(endpoint.own);
    EXPECT_TRUE(endpoint.all.of_rank.empty());
  }
}

// One rank cannot be reached: no rank waits for it, and its warning says what is lost.
TEST(SliceEndpoints, ARankThatCannotBeReachedNamesWhatThereIsNot) {
  ::testing::internal::CaptureStdout();  // where a program logs that has not begun a log
  const auto endpoints = open_all(2, [](int rank) {
    SliceEndpointOptions options = over_tcp(rank);
    options.purpose = "blocks of prompts";
    if (rank == 1) options.possible = unavailable("it has no address");
    return options;
  });
  const std::string told = ::testing::internal::GetCapturedStdout();
  for (const OpenSliceEndpoint& endpoint : endpoints) EXPECT_FALSE(endpoint.own);
  EXPECT_NE(told.find("no blocks of prompts: it has no address"), std::string::npos) << told;
  EXPECT_EQ(told.find("slices"), std::string::npos) << told;
}

}  // namespace
}  // namespace outrider
