// Peer groups with as many blocks as a device allows, and more groups than the device has room for. The tests
// set both limits of the emulation.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "comm/cuda/peer_kernels.h"
#include "comm/cuda/reduce.h"
#include "comm/device_group.h"
#include "tests/emulation/peer.h"

namespace outrider::cuda {
namespace {

class Changed {
 public:
  Changed(std::atomic<int>& value, int to) : value_(value), before_(value.exchange(to)) {}
  ~Changed() { value_ = before_; }

 private:
  std::atomic<int>& value_;
  const int before_;
};

void on_ranks(int size, const std::function<void(Collectives&)>& run) {
  const auto hosts = make_thread_collectives(size);
  std::vector<std::jthread> threads;
  for (const auto& host : hosts) threads.emplace_back([&] { run(*host); });
}

// Blocks that one operation has and the next one lacks take part in the one behind it, and sums of several
// rounds in a slot have all blocks again and again.
TEST(PeerBlocks, SixtyFourBlocksAddAsFewDo) {
  const Changed resident(emulation::resident_blocks, 1000), most(emulation::most_peer_blocks, kMaxPeerBlocks);
  constexpr int64_t kRoom = 40'000;
  for (const int ranks : {2, 4})
    on_ranks(ranks, [](Collectives& host) {
      const auto group = make_peer_group(host, {.slot_bytes = int64_t{64} << 10}).value();
      ASSERT_EQ(group->peer_view()->most_blocks, kMaxPeerBlocks);
      Stream stream;
      PinnedBuffer<float> values(kRoom);
      DeviceBuffer<float> memory(kRoom);
      host.barrier();
      const auto part_of = [](int rank, int64_t i) {
        return static_cast<float>(1 + i % 7) / static_cast<float>(3 + 4 * rank);
      };
      for (const int64_t count : {16'384, 1, 8000, 130, 16'384, 40'000, 129, 257}) {
        for (int64_t i = 0; i < kRoom; ++i) values.data()[i] = part_of(group->rank(), i);
        copy(memory.data(), values.data(), kRoom, stream);
        group->all_reduce(Reduction::kTreeSum, memory.data(), count, stream);
        copy(values.data(), memory.data(), kRoom, stream);
        group->wait(stream);
        for (int64_t i = 0; i < kRoom; ++i) {
          float parts[kMaxDeviceRanks] = {};
          for (int r = 0; r < group->size(); ++r) parts[r] = part_of(r, i);
          const float sum = combine_ranks<Reduction::kTreeSum>(parts, group->size());
          ASSERT_EQ(values.data()[i], i < count ? sum : part_of(group->rank(), i)) << i << " of " << count;
        }
      }
    });
}

// When one rank has no room for waiting blocks, every rank learns it, and the group adds through host memory.
TEST(PeerBlocks, AGroupThatFindsNoRoomAddsThroughHostMemory) {
  const Changed resident(emulation::resident_blocks, 4);  // three of which may wait
  on_ranks(2, [](Collectives& host) {
    const auto first = make_peer_group(host);
    ASSERT_TRUE(first.ok()) << first.status().message();
    EXPECT_EQ((*first)->peer_view()->most_blocks, 1);
    const auto refused = make_peer_group(host);
    ASSERT_FALSE(refused.ok());
    const std::string& why = refused.status().message();
    EXPECT_NE(why.find(host.rank() == 0 ? "2 ranks of other groups" : "1 of 2 ranks"), std::string::npos)
        << why;
    EXPECT_EQ(connect_devices(host)->name(), "host memory");
    host.barrier();
  });
  on_ranks(2, [](Collectives& host) { EXPECT_EQ(connect_devices(host)->name(), "peer memory"); });
}

// Streams that share one of a device's queues would wait for each other.
TEST(PeerBlocks, ADeviceHasQueuesForSoManyRanks) {
  const Changed resident(emulation::resident_blocks, 1000);
  on_ranks(8, [](Collectives& host) {
    const auto first = make_peer_group(host);
    ASSERT_TRUE(first.ok()) << first.status().message();
    EXPECT_FALSE(make_peer_group(host).ok()) << "16 ranks";
    host.barrier();
  });
}

}  // namespace
}  // namespace outrider::cuda
