// The preflight's refusals: of a rank without a link to the coordinator, of another version, and of ranks
// that never begin.
#include "start/preflight.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "start/preflight_watch.h"

namespace outrider::testing {
namespace {

using namespace std::chrono_literals;

// A link on which nothing arrives.
class DeafTransport final : public Transport {
 public:
  Status send(PeerId, const Message&) override { return {}; }
  std::optional<Incoming> receive(Clock::time_point deadline) override {
    std::this_thread::sleep_until(deadline);
    return std::nullopt;
  }
  const TransportStats& stats() const override { return stats_; }

 private:
  TransportStats stats_;
};

// A coordinator, a target of one rank and a draft worker, as threads. Returns what each rank was answered.
struct Job {
  bool draft_is_deaf = false;
  std::string version_of_target = "1, commit a";
};
std::vector<Status> check(const Job& job) {
  const Topology topology(parse_layout("coordinator=1,draft=1,target=1", 3).value(),
                          {{"head"}, {"node1"}, {"node2"}});
  const auto group = make_thread_collectives(3);
  ClusterSettings settings;
  std::vector<RankContext> ranks;
  const std::string address = "ipc://@outrider-preflight-test-" + std::to_string(getpid());
  auto server = make_zmq_server(address, {}).value();
  for (int rank = 0; rank < 3; ++rank) {
    RankContext context{.topology = topology, .self = topology.at(Rank(rank)), .endpoint = address};
    if (rank == 0)
      context.transport = std::move(server);
    else if (context.self.role == Role::kDraft && job.draft_is_deaf)
      context.transport = std::make_unique<DeafTransport>();
    else
      context.transport = make_zmq_client(address, {}).value();
    ranks.push_back(std::move(context));
  }
  std::vector<Status> said(3);
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      const bool is_target = ranks[rank].self.role == Role::kTarget;
      said[rank] = check_ranks(*group[rank], ranks[rank], settings, {},
                               {.patience = job.draft_is_deaf ? 300ms : 10'000ms,
                                .version = is_target ? job.version_of_target : "1, commit a"});
    });
  threads.clear();
  return said;
}

TEST(Preflight, RanksThatHearTheCoordinatorPass) {
  for (const Status& status : check({})) EXPECT_TRUE(status.ok()) << status.message();
}

TEST(Preflight, ASilentRankIsNamedToAll) {
  for (const Status& status : check({.draft_is_deaf = true})) {
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_NE(status.message().find("within 0.3 s at rank 1 on host node1"), std::string::npos)
        << status.message();
    EXPECT_NE(status.message().find("--bind-host"), std::string::npos) << status.message();
  }
}

TEST(Preflight, AnotherVersionIsNamedToAll) {
  for (const Status& status : check({.version_of_target = "2, commit b"})) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("rank 0 has version 1, commit a"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("rank 2 on host node2 has 2, commit b"), std::string::npos)
        << status.message();
  }
}

std::atomic<int> g_ended = 0;

TEST(PreflightWatch, EndsOnlyWhatDoesNotMeet) {
  const auto rank = [](int number) {
    return LaunchedRank{.job = "test-" + std::to_string(getpid()), .rank = number, .size = 3, .on_host = 3};
  };
  {
    PreflightWatch meets(rank(0), 10s, [] { ++g_ended; });
    meets.all_here();
  }
  EXPECT_EQ(g_ended, 0);
  ::testing::internal::CaptureStderr();
  {
    PreflightWatch first(rank(0), 50ms, [] { ++g_ended; }), second(rank(2), 50ms, [] { ++g_ended; });
    while (g_ended < 2) std::this_thread::sleep_for(10ms);
  }
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("rank 1 on host"), std::string::npos) << told;
  EXPECT_EQ(told.find("rank 1 on host"), told.rfind("rank 1 on host")) << "once: " << told;
}

}  // namespace
}  // namespace outrider::testing
