#include "cluster/slice_doors.h"

#include <gtest/gtest.h>

#include <thread>

namespace outrider {
namespace {

using namespace std::chrono_literals;

std::vector<OpenSliceDoor> open_all(int ranks, const std::function<SliceDoorOptions(int rank)>& options) {
  const auto group = make_thread_collectives(ranks);
  std::vector<OpenSliceDoor> doors(static_cast<size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      doors[static_cast<size_t>(r)] = open_slice_doors(*group[static_cast<size_t>(r)], options(r));
    });
  threads.clear();
  return doors;
}

SliceDoorOptions over_tcp(int) {
  return {.host = "127.0.0.1", .encrypted = true, .max_message_bytes = 4096, .high_water_mark = 4};
}

TEST(SliceDoors, EveryRankKnowsAllAndOnlyKeyHoldersGetIn) {
  const auto doors = open_all(4, over_tcp);
  for (const OpenSliceDoor& door : doors) {
    ASSERT_TRUE(door.own);
    ASSERT_EQ(door.all.of_rank.size(), 4u);
    EXPECT_EQ(door.all.secret_key, doors[0].all.secret_key);
  }
  const SliceDoors& all = doors[0].all;
  for (size_t r = 0; r < doors.size(); ++r) {
    EXPECT_EQ(all.of_rank[r].endpoint, doors[r].own->endpoint());
    const CurveKeys keys{.own = {all.public_key, all.secret_key}, .server = all.server_key, .allowed = {}};
    const auto worker = make_zmq_client(all.of_rank[r].endpoint, {.cluster = all.cluster, .curve = keys});
    ASSERT_TRUE(worker.ok()) << worker.status().message();
    ASSERT_TRUE((*worker)->send(kCoordinatorPeer, QSlice{.sequence = SequenceId(r)}).ok());
    const auto slice = doors[r].own->receive(Clock::now() + 10s);
    ASSERT_TRUE(slice && std::holds_alternative<QSlice>(slice->message));
    const CurveKeys others{.own = make_curve_key_pair().value(), .server = all.server_key, .allowed = {}};
    EXPECT_FALSE(make_zmq_client(all.of_rank[r].endpoint, {.curve = others, .connect_timeout = 300ms}).ok());
  }
}

// A worker of another job that comes to an address used before.
TEST(SliceDoors, FramesOfAnotherGroupAreDropped) {
  const auto doors =
      open_all(1, [](int) { return SliceDoorOptions{.max_message_bytes = 4096, .high_water_mark = 4}; });
  ASSERT_TRUE(doors[0].own);
  const SliceDoors& all = doors[0].all;
  const auto stray = make_zmq_client(all.of_rank[0].endpoint, {.cluster = all.cluster + 1}).value();
  const auto worker = make_zmq_client(all.of_rank[0].endpoint, {.cluster = all.cluster}).value();
  ASSERT_TRUE(stray->send(kCoordinatorPeer, QSlice{.sequence = SequenceId(1)}).ok());
  const auto end = Clock::now() + 10s;
  while (doors[0].own->stats().malformed_frames == 0 && Clock::now() < end)
    EXPECT_FALSE(doors[0].own->receive(Clock::now() + 10ms));
  ASSERT_TRUE(worker->send(kCoordinatorPeer, QSlice{.sequence = SequenceId(2)}).ok());
  const auto slice = doors[0].own->receive(Clock::now() + 10s);
  ASSERT_TRUE(slice);
  EXPECT_EQ(std::get<QSlice>(slice->message).sequence, SequenceId(2));
  EXPECT_EQ(doors[0].own->stats().malformed_frames, 1u);
}

TEST(SliceDoors, AllRanksOrNone) {
  const auto doors = open_all(2, [](int rank) {
    SliceDoorOptions options = over_tcp(rank);
    if (rank == 1) options.host = "192.0.2.1";  // not of this machine
    return options;
  });
  for (const OpenSliceDoor& door : doors) {
    EXPECT_FALSE(door.own);
    EXPECT_TRUE(door.all.of_rank.empty());
  }
}

}  // namespace
}  // namespace outrider
