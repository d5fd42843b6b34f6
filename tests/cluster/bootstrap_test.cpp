// Ranks find each other: mpirun -n 4 bootstrap_test. Coordinator, draft worker and two target ranks.
#include "cluster/bootstrap.h"

#include <gtest/gtest.h>

#include "cluster/host_address.h"
#include "comm/mpi_collectives.h"
#include "tests/comm/mpi_main.h"

namespace outrider {
namespace {

using namespace std::chrono_literals;

RendezvousOptions options_for_tests() {
  RendezvousOptions options;
  options.timeout = 20s;
  options.collectives.timeout = 20s;
  return options;
}

// Every worker that talks says hello and is welcomed by name.
void exchange_hellos(RankContext& context) {
  if (context.self.role == Role::kCoordinator) {
    const int expected = context.topology.count(Role::kDraft) + 1;
    for (int i = 0; i < expected; ++i) {
      const auto incoming = context.transport->receive(Clock::now() + 20s);
      ASSERT_TRUE(incoming) << "no hello";
      ASSERT_TRUE(std::holds_alternative<Hello>(incoming->message));
      const Hello& hello = std::get<Hello>(incoming->message);
      const Welcome welcome{.accepted = true, .reason = role_name(hello.role)};
      EXPECT_TRUE(context.transport->send(incoming->peer, welcome).ok());
    }
  } else if (context.transport != nullptr) {
    Hello hello;
    hello.role = context.self.role;
    ASSERT_TRUE(context.transport->send(kCoordinatorPeer, hello).ok());
    const auto incoming = context.transport->receive(Clock::now() + 20s);
    ASSERT_TRUE(incoming) << "no welcome";
    ASSERT_TRUE(std::holds_alternative<Welcome>(incoming->message));
    EXPECT_EQ(std::get<Welcome>(incoming->message).reason, role_name(context.self.role));
  }
}

void sum_in_target_group(RankContext& context) {
  EXPECT_EQ(context.collectives != nullptr, context.self.role == Role::kTarget);
  if (context.collectives == nullptr) return;
  EXPECT_EQ(context.collectives->rank(), context.self.tp_rank);
  EXPECT_EQ(context.collectives->size(), context.topology.tp_size());
  float value = static_cast<float>(context.self.tp_rank + 1);
  context.collectives->all_reduce_sum(std::span(&value, 1));
  EXPECT_EQ(value, static_cast<float>(context.topology.tp_size() * (context.topology.tp_size() + 1) / 2));
}

class BootstrapTest : public testing::Test {
 protected:
  static int rank() { return mpi_test_world().rank(); }
  void run(const RendezvousOptions& options, std::string* endpoint = nullptr) {
    auto context = bootstrap(mpi_test_world(), options);
    ASSERT_TRUE(context.ok()) << context.status().message();
    EXPECT_EQ(context->self.rank.value(), rank());
    if (endpoint != nullptr) *endpoint = context->endpoint;
    exchange_hellos(*context);
    sum_in_target_group(*context);
  }
};

TEST_F(BootstrapTest, DefaultLayoutOverUnixSockets) {
  std::string endpoint;
  run(options_for_tests(), &endpoint);
  EXPECT_TRUE(endpoint.starts_with("ipc://")) << endpoint;
}

TEST_F(BootstrapTest, AnyOrderOfRolesOverTcp) {
  auto options = options_for_tests();
  options.wire = RendezvousOptions::Wire::kTcp;
  options.layout = "target=2,draft=1,coordinator=1";
  std::string endpoint;
  run(options, &endpoint);
  EXPECT_TRUE(endpoint.starts_with("tcp://127.0.0.1:")) << endpoint;
}

TEST_F(BootstrapTest, SeveralDraftWorkers) {
  auto options = options_for_tests();
  options.layout = "draft=2,target=1";
  run(options);
}

TEST_F(BootstrapTest, RankZerosLayoutCounts) {
  auto options = options_for_tests();
  options.layout = rank() == 0 ? "coordinator=1,draft=1,target=2" : "nonsense";
  run(options);
}

TEST_F(BootstrapTest, ABadLayoutFailsEveryRankAlike) {
  auto options = options_for_tests();
  options.layout = "target=3";
  const auto context = bootstrap(mpi_test_world(), options);
  EXPECT_EQ(context.status().message(), "--layout target=3: target=3: a target group has 1, 2, 4 or 8 ranks");
}

TEST_F(BootstrapTest, AFailureOfOneRankIsEverybodys) {
  const auto world = make_mpi_collectives(mpi_test_world().duplicate(), Waiting::kYield, {.timeout = 20s});
  EXPECT_TRUE(agree(*world, {}).ok());
  const Status status = agree(*world, rank() >= 2 ? unsupported(fmt::format("I am {}", rank())) : Status());
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(), rank() < 2 ? "rank 2 could not start: I am 2" : fmt::format("I am {}", rank()));
}

TEST(Listening, OnANetworkNeedsToBeAllowed) {
  const auto addresses = host_addresses();
  if (addresses.empty()) GTEST_SKIP() << "NOT TESTED: this host has no network";
  const std::string endpoint = "tcp://" + to_string(addresses.front()) + ":*";
  ZmqOptions options;
  EXPECT_FALSE(make_zmq_server(endpoint, options).ok());
  options.allow_remote = true;
  EXPECT_TRUE(make_zmq_server(endpoint, options).ok());
}

}  // namespace
}  // namespace outrider
