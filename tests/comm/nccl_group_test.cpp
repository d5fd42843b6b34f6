// The NCCL group over a fake library: start-up in the background, deadlines, errors, abort.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <latch>
#include <memory>
#include <thread>

#include "comm/cuda/nccl_api.h"
#include "tests/emulation/stream.h"

namespace outrider::cuda {
namespace {

using namespace std::chrono_literals;

// Scripted behaviour of the fake NCCL library, and a record of the calls it received.
struct Behaviour {
  std::atomic<int> polls_until_ready{0};  // of calls that go on in the background; < 0: for ever
  std::atomic<ncclResult_t> gather_result{ncclSuccess};
  std::atomic<int> aborted{0}, destroyed{0}, blocking{-1};
  std::atomic<int> in_graphs{0};  // operations that graphs hold
  std::atomic<int> stuck{0};      // aborts that waited in vain for these graphs
};
Behaviour& behaviour() {
  static Behaviour instance;
  return instance;
}

ncclResult_t pending() { return behaviour().polls_until_ready == 0 ? ncclSuccess : ncclInProgress; }

NcclApi made_up() {
  NcclApi api;
  api.get_version = [](int* version) { return *version = 22809, ncclSuccess; };
  api.get_unique_id = [](ncclUniqueId* id) { return std::memset(id, 7, sizeof *id), ncclSuccess; };
  api.init_rank = [](ncclComm_t* comm, int, ncclUniqueId id, int, ncclConfig_t* config) {
    EXPECT_EQ(id.internal[5], 7);
    behaviour().blocking = config->blocking;
    *comm = reinterpret_cast<ncclComm_t>(&behaviour());
    return pending();
  };
  api.async_error = [](ncclComm_t, ncclResult_t* result) {
    if (behaviour().polls_until_ready > 0) --behaviour().polls_until_ready;
    return *result = pending(), ncclSuccess;
  };
  api.finalize = [](ncclComm_t) { return pending(); };
  api.destroy = [](ncclComm_t) { return ++behaviour().destroyed, ncclSuccess; };
  // As the library does: it returns when no graph holds operations of the communicator any more.
  api.abort = [](ncclComm_t) {
    ++behaviour().aborted;
    const auto end = std::chrono::steady_clock::now() + 2s;
    while (behaviour().in_graphs > 0 && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(1ms);
    if (behaviour().in_graphs > 0) ++behaviour().stuck;
    return ncclSuccess;
  };
  api.error_string = [](ncclResult_t) { return "made-up error"; };
  // Every rank brings the same.
  api.all_gather = [](const void* mine, void* all, size_t bytes, ncclDataType_t, ncclComm_t,
                      cudaStream_t stream) {
    struct Held {
      Held() { ++behaviour().in_graphs; }
      ~Held() { --behaviour().in_graphs; }
    };
    emulation::enqueue(StreamView(reinterpret_cast<StreamHandle*>(stream)),
                       [=, held = std::make_shared<Held>()] {
                         for (size_t r = 0; r < 2; ++r)
                           std::memcpy(static_cast<char*>(all) + r * bytes, mine, bytes);
                       });
    return behaviour().gather_result.load();
  };
  return api;
}

class NcclGroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    behaviour().polls_until_ready = 0;
    behaviour().gather_result = ncclSuccess;
    behaviour().aborted = behaviour().destroyed = behaviour().stuck = 0;
  }
  // One of two ranks at a time is enough to look at: the other does the same.
  template <class Use>
  void on_two_ranks(Use use) {
    const auto hosts = make_thread_collectives(2);
    std::vector<std::jthread> threads;
    for (const auto& host : hosts)
      threads.emplace_back([&] {
        use(make_nccl_group(api_, *host,
                            {.start_timeout = start_timeout_, .timeout = timeout_, .slot_bytes = 64}));
      });
  }
  const NcclApi api_ = made_up();
  // Limits for what is to succeed, also on a busy machine.
  std::chrono::milliseconds start_timeout_{20'000}, timeout_{20'000};
};

TEST_F(NcclGroupTest, StartsInTheBackgroundAndSums) {
  behaviour().polls_until_ready = 5000;
  on_two_ranks([](auto group) {
    ASSERT_TRUE(group.ok()) << group.status().message();
    EXPECT_EQ(behaviour().blocking, 0);
    Stream stream;
    DeviceBuffer<float> values(100);  // several rounds through the slot
    std::vector<float> twice(100);
    for (int i = 0; i < 100; ++i) twice[static_cast<size_t>(i)] = 2.0f * static_cast<float>(i);
    for (int i = 0; i < 100; ++i) values.data()[i] = static_cast<float>(i);
    (*group)->all_reduce(Reduction::kTreeSum, values.data(), 100, stream);
    (*group)->wait(stream);
    EXPECT_TRUE(std::equal(twice.begin(), twice.end(), values.data()));
  });
  EXPECT_EQ(behaviour().destroyed, 2);
  EXPECT_EQ(behaviour().aborted, 0);
}

TEST_F(NcclGroupTest, AStartThatHangsIsAborted) {
  behaviour().polls_until_ready = -1;
  start_timeout_ = 200ms;
  on_two_ranks([](auto group) {
    ASSERT_FALSE(group.ok());
    EXPECT_EQ(group.status().code(), StatusCode::kDeadlineExceeded) << group.status().message();
  });
  EXPECT_EQ(behaviour().aborted, 2);
  EXPECT_EQ(behaviour().destroyed, 0);
}

// A short limit for operations is none for the start.
TEST_F(NcclGroupTest, TheStartHasALimitOfItsOwn) {
  behaviour().polls_until_ready = 5000;
  timeout_ = 1ms;
  on_two_ranks([](auto group) {
    ASSERT_TRUE(group.ok()) << group.status().message();
    behaviour().polls_until_ready = 0;  // closing is an operation
  });
}

TEST_F(NcclGroupTest, AnErrorAbortsAndFinishesTheGroup) {
  on_two_ranks([](auto group) {
    ASSERT_TRUE(group.ok());
    behaviour().gather_result = ncclRemoteError;
    Stream stream;
    DeviceBuffer<uint64_t> value(1);
    const auto reduce = [&] { (*group)->all_reduce(Reduction::kMax, value.data(), 1, stream); };
    EXPECT_THROW(reduce(), CollectiveError);
    EXPECT_THROW(reduce(), CollectiveError);
    EXPECT_THROW((*group)->wait(stream), CollectiveError);
  });
  EXPECT_EQ(behaviour().aborted, 2);
}

// The rank that aborts is the one that has the graphs.
TEST_F(NcclGroupTest, AnAbortDoesNotWaitForGraphsThatHoldOperations) {
  std::latch captured(2);
  on_two_ranks([&](auto group) {
    ASSERT_TRUE(group.ok());
    Stream stream;
    DeviceBuffer<uint64_t> value(1);
    const auto reduce = [&] { (*group)->all_reduce(Reduction::kMax, value.data(), 1, stream); };
    const Graph graph(stream, reduce);
    graph.launch(stream);
    (*group)->wait(stream);
    captured.arrive_and_wait();
    behaviour().gather_result = ncclRemoteError;
    EXPECT_THROW(reduce(), CollectiveError);
    EXPECT_THROW((*group)->wait(stream), CollectiveError);
  });
  EXPECT_EQ(behaviour().aborted, 2);
  EXPECT_EQ(behaviour().stuck, 0);
}

TEST_F(NcclGroupTest, ARankWithoutTheLibraryRefusesForAll) {
  NcclApi broken = made_up();
  broken.get_unique_id = [](ncclUniqueId*) { return ncclSystemError; };
  const auto hosts = make_thread_collectives(2);
  std::vector<std::jthread> threads;
  for (const auto& host : hosts)
    threads.emplace_back([&] {
      const auto group = make_nccl_group(host->rank() == 0 ? broken : api_, *host, {.timeout = 200ms});
      ASSERT_FALSE(group.ok());
      EXPECT_EQ(group.status().code(), StatusCode::kUnavailable);
    });
}

}  // namespace
}  // namespace outrider::cuda
