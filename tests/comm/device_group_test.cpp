// Collectives on device memory: the conformance suite of comm/collectives.h for each implementation, and
// tests of their own features. Ranks are threads. They share one device unless there are enough devices for
// one each.
#include "comm/device_group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <latch>
#include <optional>
#include <thread>

#include "base/cuda_peer.h"
#include "comm/cuda/peer_kernels.h"
#include "comm/cuda/reduce.h"
#include "tests/comm/collectives_suite.h"
#include "tests/comm/device_collectives.h"

namespace outrider::cuda {
namespace {

namespace suite = collectives_suite;

enum class Kind { kStaged, kPeer, kNccl };

struct Ranks {
  Kind kind = Kind::kStaged;
  int size = 1;
};

std::string name_of(const Ranks& ranks) {
  const char* names[] = {"Staged", "Peer", "Nccl"};
  return names[static_cast<int>(ranks.kind)] + std::to_string(ranks.size);
}

using Case = std::function<void(DeviceGroup&, Collectives& host)>;

// Calls `run` on every rank of a group. Groups end together, as they must.
void on_every_rank(const Ranks& ranks, std::chrono::milliseconds timeout, const Case& run) {
  const auto hosts = make_thread_collectives(ranks.size);
  std::latch done(ranks.size);
  std::vector<std::jthread> threads;
  const int devices = count_devices().value();
  for (int r = 0; r < ranks.size; ++r)
    threads.emplace_back([&, r] {
      use_device(r % devices);
      Collectives& host = *hosts[static_cast<size_t>(r)];
      Result<std::unique_ptr<DeviceGroup>> group = Status(StatusCode::kUnsupported, "");
      if (ranks.kind == Kind::kStaged) group = make_staged_group(host);
      if (ranks.kind == Kind::kPeer) group = make_peer_group(host, {.timeout = timeout, .slot_bytes = 4096});
      if (ranks.kind == Kind::kNccl) group = make_nccl_group(host, {.timeout = timeout, .slot_bytes = 4096});
      EXPECT_TRUE(group.ok()) << group.status().message();
      if (group.ok()) run(**group, host);
      done.arrive_and_wait();
    });
}

class DeviceGroupTest : public ::testing::TestWithParam<Ranks> {
 protected:
  void SetUp() override {
    const auto devices = count_devices();
    if (!devices.ok()) GTEST_SKIP() << "no CUDA device: " << devices.status().message();
    if (GetParam().kind != Kind::kNccl) return;
    if (describe_nccl().find("NCCL 2.") != 0) GTEST_SKIP() << describe_nccl();
    if (version_text() == "emulation") GTEST_SKIP() << "NCCL needs a device";
    if (GetParam().size > *devices)
      GTEST_SKIP() << "NCCL wants a device per rank: " << GetParam().size << " ranks, " << *devices;
  }
  void run(void (*test)(Collectives&), std::chrono::milliseconds timeout = std::chrono::seconds(5)) {
    on_every_rank(GetParam(), timeout, [test](DeviceGroup& group, Collectives& host) {
      DeviceCollectives collectives(group, host);
      host.barrier();  // all allocations are done before a kernel waits for a peer
      test(collectives);
    });
  }
};

TEST_P(DeviceGroupTest, FloatSumsUseTheBalancedTree) { run(&suite::float_sums_use_the_balanced_tree); }
TEST_P(DeviceGroupTest, IntegersReduce) { run(&suite::integers_reduce); }
TEST_P(DeviceGroupTest, BytesMove) { run(&suite::bytes_move); }
TEST_P(DeviceGroupTest, MessagesOfAnyLengthArrive) { run(&suite::messages_of_any_length_arrive); }
TEST_P(DeviceGroupTest, BarriersWaitForTheLast) { run(&suite::barriers_wait_for_the_last); }
TEST_P(DeviceGroupTest, AbortReachesEveryone) { run(&suite::abort_reaches_everyone); }
TEST_P(DeviceGroupTest, ALateRankFailsEveryone) {
  if (GetParam().size == 1) return;              // a group of one rank has no late peer
  if (GetParam().kind == Kind::kStaged) return;  // the host's, tested there
  run(&suite::a_late_rank_fails_everyone, suite::kShortTimeout);
}

// One rank has the row, the others +0; bits survive, also those of -0 and of a NaN's payload.
TEST_P(DeviceGroupTest, WordsMerge) {
  on_every_rank(GetParam(), std::chrono::seconds(5), [](DeviceGroup& group, Collectives& host) {
    constexpr int64_t kCount = 2049;
    Stream stream;
    PinnedBuffer<uint32_t> words(kCount);
    DeviceBuffer<uint32_t> memory(kCount);
    host.barrier();
    const auto word = [](int64_t i) { return static_cast<uint32_t>(i * 2654435761u) | 0x80000000u; };
    for (int64_t i = 0; i < kCount; ++i) words.data()[i] = i % group.size() == group.rank() ? word(i) : 0;
    copy(memory.data(), words.data(), kCount, stream);
    group.all_reduce(Reduction::kMerge, memory.data(), kCount, stream);
    copy(words.data(), memory.data(), kCount, stream);
    group.wait(stream);
    for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(words.data()[i], word(i)) << i;
  });
}

// Many operations without the host in between, as a decode step queues them; then again as a graph.
TEST_P(DeviceGroupTest, OperationsQueueAndCapture) {
  on_every_rank(GetParam(), std::chrono::seconds(5), [](DeviceGroup& group, Collectives& host) {
    constexpr int64_t kCount = 1500;
    Stream stream;
    PinnedBuffer<uint64_t> values(kCount);
    DeviceBuffer<uint64_t> memory(kCount), gathered(kCount * group.size());
    host.barrier();
    const auto ranks = static_cast<uint64_t>(group.size());
    const auto queue = [&] {  // x -> ranks * x, then every rank sees the same
      group.all_reduce(Reduction::kSum, memory.data(), kCount, stream);
      group.all_gather(memory.data(), gathered.data(), 8 * kCount, stream);
      copy(memory.data(), gathered.data() + kCount * (group.size() - 1), kCount, stream);
    };
    for (int64_t i = 0; i < kCount; ++i) values.data()[i] = static_cast<uint64_t>(i);
    copy(memory.data(), values.data(), kCount, stream);
    uint64_t factor = 1;
    for (int i = 0; i < 5; ++i, factor *= ranks) queue();
    group.wait(stream);
    if (group.is_capturable()) {
      Graph graph(stream, queue);
      host.barrier();
      for (int i = 0; i < 5; ++i, factor *= ranks) graph.launch(stream);
      copy(values.data(), memory.data(), kCount, stream);
      group.wait(stream);
    } else {
      copy(values.data(), memory.data(), kCount, stream);
      group.wait(stream);
    }
    for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(values.data()[i], static_cast<uint64_t>(i) * factor);
  });
}

// Operations of few and of many blocks take turns, from anywhere in memory:
// every element has the bits of the tree.
TEST_P(DeviceGroupTest, SizesMayChangeFromOperationToOperation) {
  on_every_rank(GetParam(), std::chrono::seconds(5), [](DeviceGroup& group, Collectives& host) {
    constexpr int64_t kRoom = 1200;
    Stream stream;
    PinnedBuffer<float> values(kRoom);
    DeviceBuffer<float> memory(kRoom);
    host.barrier();
    const auto part_of = [](int rank, int64_t i) {
      return static_cast<float>(1 + i % 7) / static_cast<float>(3 + 4 * rank);
    };
    for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 3}, {0, 1024}, {1, 5}, {4, 700}, {2, 1023}, {0, 1}, {3, 131}, {0, kRoom}, {8, 4}}) {
      for (int64_t i = 0; i < kRoom; ++i) values.data()[i] = part_of(group.rank(), i);
      copy(memory.data(), values.data(), kRoom, stream);
      group.all_reduce(Reduction::kTreeSum, memory.data() + first, count, stream);
      copy(values.data(), memory.data(), kRoom, stream);
      group.wait(stream);
      for (int64_t i = 0; i < kRoom; ++i) {
        float parts[kMaxDeviceRanks] = {};
        for (int r = 0; r < group.size(); ++r) parts[r] = part_of(r, i);
        const bool is_summed = i >= first && i < first + count;
        const float expected =
            is_summed ? combine_ranks<Reduction::kTreeSum>(parts, group.size()) : part_of(group.rank(), i);
        ASSERT_EQ(values.data()[i], expected) << i << " of [" << first << ", " << first + count << ")";
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceGroupTest,
                         ::testing::Values(Ranks{Kind::kStaged, 1}, Ranks{Kind::kStaged, 2},
                                           Ranks{Kind::kStaged, 4}, Ranks{Kind::kPeer, 1},
                                           Ranks{Kind::kPeer, 2}, Ranks{Kind::kPeer, 4},
                                           Ranks{Kind::kPeer, 8}, Ranks{Kind::kNccl, 1},
                                           Ranks{Kind::kNccl, 2}, Ranks{Kind::kNccl, 4}),
                         [](const auto& ranks) { return name_of(ranks.param); });

// All blocks of all ranks of a device are resident at once, whichever groups they are of, and leave a quarter
// of it to others.
TEST(PeerGroup, RanksOfADeviceHaveRoomForEachOther) {
  EXPECT_EQ(most_peer_blocks(132, 1), kMaxPeerBlocks);
  EXPECT_EQ(most_peer_blocks(132, 2), 33);
  for (const int resident : {1, 2, 7, 16, 78, 108, 132, 144})
    for (int ranks = 1; ranks <= kMaxDeviceRanks; ++ranks) {
      int held = 0, groups = 0;
      for (; groups < 100; ++groups) {
        const int blocks = most_peer_blocks(resident, ranks, held);
        if (blocks == 0) break;
        held += ranks * blocks;
        ASSERT_LE(held, resident * 3 / 4) << groups << " groups of " << ranks << " on " << resident;
        EXPECT_TRUE(groups > 0 || blocks == 1 || 2 * held <= resident) << "a first group leaves half";
      }
      EXPECT_GT(held + ranks, resident * 3 / 4) << "who is refused would have had room";
      EXPECT_GE(groups, resident >= 132 && ranks <= 2 ? 4 : 0);
    }
}

// Four groups wait on one device at the same time, and who comes when they are gone has all of it.
TEST(PeerGroup, GroupsThatShareADeviceHaveRoomForEachOther) {
  if (const auto devices = count_devices(); !devices.ok())
    GTEST_SKIP() << "no CUDA device: " << devices.status().message();
  constexpr int kGroups = 4, kRanks = 2;
  std::latch are_there(kGroups * kRanks), are_done(kGroups * kRanks);
  std::atomic<int> blocks{0};  // of the first device
  const auto sum = [&](DeviceGroup& group, Collectives& host) {
    uint64_t least = static_cast<uint64_t>(group.peer_view()->most_blocks), most = least;
    host.all_reduce_min(std::span(&least, 1));
    host.all_reduce_max(std::span(&most, 1));
    EXPECT_EQ(least, most) << "of one group";
    EXPECT_GT(least, 0u);
    if (group.device() == 0) blocks += group.peer_view()->most_blocks;
    Stream stream;
    DeviceBuffer<float> values(1024);
    are_there.arrive_and_wait();  // all allocations are done after this
    EXPECT_LE(blocks, resident_blocks(0) * 3 / 4);
    group.begin_pass();
    for (int i = 0; i < 50; ++i) group.all_reduce(Reduction::kTreeSum, values.data(), values.size(), stream);
    EXPECT_NO_THROW(group.wait(stream));
    are_done.arrive_and_wait();
  };
  {
    std::vector<std::jthread> groups;
    for (int g = 0; g < kGroups; ++g)
      groups.emplace_back([&] { on_every_rank({Kind::kPeer, kRanks}, std::chrono::seconds(5), sum); });
  }
  const int sharing = count_devices().value() == 1 ? kRanks : 1;
  on_every_rank({Kind::kPeer, kRanks}, std::chrono::seconds(5), [&](DeviceGroup& group, Collectives&) {
    EXPECT_EQ(group.peer_view()->most_blocks, most_peer_blocks(resident_blocks(0), sharing));
  });
}

// Threads of a block publish and wait in any order, a different one on every rank: three ranks that wait
// before they have told everyone can wait in a circle.
TEST(PeerGroup, NoOrderOfThreadsWaitsInACircle) {
  if (const auto devices = count_devices(); !devices.ok())
    GTEST_SKIP() << "no CUDA device: " << devices.status().message();
  on_every_rank({Kind::kPeer, 4}, std::chrono::seconds(5), [](DeviceGroup& group, Collectives& host) {
    DeviceBuffer<uint64_t> value(1), other(1);
    Stream stream;
    host.barrier();
    for (int i = 0; i < 50; ++i) {
      // The emulation shuffles threads anew in every kernel: other work takes the ranks out of step.
      for (int k = 0; k < (group.rank() * 7 + i) % 5; ++k)
        reduce_gathered(stream, Reduction::kSum, 1, other.data(), other.data(), 1);
      group.all_reduce(Reduction::kMax, value.data(), 1, stream);
    }
    EXPECT_NO_THROW(group.wait(stream));
  });
}

// As a draft model that is loaded while ranks compute: where memory is given only by a device that is idle,
// and no kernel starts meanwhile (the emulation is such a device), a kernel would wait for a peer's in vain.
TEST(PeerGroup, OthersTakeMemoryBetweenThePassesOfRanksThatShareADevice) {
  if (const auto devices = count_devices(); !devices.ok())
    GTEST_SKIP() << "no CUDA device: " << devices.status().message();
  std::atomic<int> taken{0};
  std::atomic<uint32_t> over{0};
  std::jthread other([&] {
    use_device(0);
    for (; over == 0; ++taken) {
      const DeviceBuffer<uint64_t> memory(64);
      const PinnedBuffer<uint64_t> pinned(64);
    }
  });
  on_every_rank({Kind::kPeer, 2}, std::chrono::seconds(5), [&](DeviceGroup& group, Collectives& host) {
    DeviceBuffer<uint64_t> value(1);
    Stream stream;
    host.barrier();
    for (int pass = 0; pass < 200; ++pass) {
      group.begin_pass();
      for (int i = 0; i < 5; ++i) group.all_reduce(Reduction::kMax, value.data(), 1, stream);
      ASSERT_NO_THROW(group.wait(stream)) << "pass " << pass;
    }
  });
  over = 1;
  other.join();
  EXPECT_GT(taken, 0);  // an H100 had 5 turns within all passes
}

class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value, 1);
  }
  ~Setting() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

// The driver would wait for the device with the first launch of each kernel, or put two ranks into one queue.
TEST(PeerGroup, RefusesADeviceWhoseSettingsLetRanksWaitForEver) {
  if (const auto devices = count_devices(); !devices.ok())
    GTEST_SKIP() << "no CUDA device: " << devices.status().message();
  for (const auto& [name, value] :
       {std::pair("CUDA_MODULE_LOADING", "LAZY"), {"CUDA_DEVICE_MAX_CONNECTIONS", "1"}}) {
    const Setting setting(name, value);
    const auto hosts = make_thread_collectives(2);
    std::vector<std::jthread> threads;
    for (const auto& host : hosts)
      threads.emplace_back([&, wanted = std::string(name) + "=" + value] {
        use_device(0);
        const auto group = make_peer_group(*host);
        ASSERT_FALSE(group.ok());
        EXPECT_NE(group.status().message().find(wanted), std::string::npos) << group.status().message();
        EXPECT_NE(group.status().message().find("unset it"), std::string::npos);
      });
  }
}

TEST(PeerGroup, SaysWhoIsMissing) {
  if (const auto devices = count_devices(); !devices.ok())
    GTEST_SKIP() << "no CUDA device: " << devices.status().message();
  on_every_rank({Kind::kPeer, 2}, suite::kShortTimeout, [](DeviceGroup& group, Collectives&) {
    if (group.rank() == 1) return;
    DeviceBuffer<uint64_t> value(1);
    Stream stream;
    group.all_reduce(Reduction::kMax, value.data(), 1, stream);
    try {
      group.wait(stream);
      ADD_FAILURE() << "rank 1 never came";
    } catch (const CollectiveError& error) {
      EXPECT_STREQ(error.what(), "rank 1 did not arrive within 200 ms");
    }
  });
}

}  // namespace
}  // namespace outrider::cuda
