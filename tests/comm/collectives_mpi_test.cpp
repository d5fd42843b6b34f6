// The collectives suite with a process per rank: mpirun -n N collectives_mpi_test.
#include <gtest/gtest.h>

#include "comm/mpi_collectives.h"
#include "tests/comm/collectives_suite.h"
#include "tests/comm/mpi_main.h"

namespace outrider {
namespace {

namespace suite = collectives_suite;

// Runs with both kinds of waiting. Every test creates its own group, so an aborted group cannot affect
// another test.
class MpiCollectivesTest : public testing::TestWithParam<Waiting> {
 protected:
  template <class Case>
  void run(Case test, const CollectiveOptions& options = {.timeout = std::chrono::seconds{15}}) {
    const auto group = make_mpi_collectives(mpi_test_world().duplicate(), GetParam(), options);
    test(*group);
  }
};

TEST_P(MpiCollectivesTest, FloatSumsUseTheBalancedTree) { run(suite::float_sums_use_the_balanced_tree); }
TEST_P(MpiCollectivesTest, IntegersReduce) { run(suite::integers_reduce); }
TEST_P(MpiCollectivesTest, BytesMove) { run(suite::bytes_move); }
TEST_P(MpiCollectivesTest, MessagesOfAnyLengthArrive) { run(suite::messages_of_any_length_arrive); }
TEST_P(MpiCollectivesTest, BarriersWaitForTheLast) { run(suite::barriers_wait_for_the_last); }
TEST_P(MpiCollectivesTest, AbortReachesEveryone) { run(suite::abort_reaches_everyone); }
TEST_P(MpiCollectivesTest, WaitingForWorkHasNoDeadline) {
  run(suite::waiting_for_work_has_no_deadline, {.timeout = suite::kShortTimeout});
}
TEST_P(MpiCollectivesTest, MeetingHasNoDeadline) {
  run(suite::meeting_has_no_deadline, {.timeout = suite::kShortTimeout});
}
TEST_P(MpiCollectivesTest, AbortReachesAMeeting) { run(suite::abort_reaches_a_meeting); }
TEST_P(MpiCollectivesTest, ALateRankFailsEveryone) {
  run(suite::a_late_rank_fails_everyone, {.timeout = suite::kShortTimeout});
}
TEST_P(MpiCollectivesTest, MessagesOverTheLimitFailEveryone) {
  run(suite::messages_over_the_limit_fail_everyone);
}

INSTANTIATE_TEST_SUITE_P(Processes, MpiCollectivesTest, testing::Values(Waiting::kYield, Waiting::kSpin),
                         [](const auto& waiting) {
                           return waiting.param == Waiting::kSpin ? "Spin" : "Yield";
                         });

TEST(MpiCollectives, PartsOfTheWorldWorkOnTheirOwn) {
  const MpiComm& world = mpi_test_world();
  const auto part = make_mpi_collectives(world.split(world.rank() % 2), Waiting::kYield);
  EXPECT_EQ(part->size(), world.size() / 2);
  EXPECT_EQ(part->rank(), world.rank() / 2);
  suite::integers_reduce(*part);
}

TEST(MpiCollectives, SpinningNeedsACoreEach) {
  // Whatever the machine: as many ranks as cores is the border, and every rank of a host sees the same.
  const MpiComm& world = mpi_test_world();
  const auto group = make_mpi_collectives(world.duplicate(), Waiting::kYield);
  uint64_t spins = choose_waiting(world) == Waiting::kSpin ? 1 : 0;
  const uint64_t mine = spins;
  group->all_reduce_max(std::span(&spins, 1));
  EXPECT_EQ(spins, mine);
}

}  // namespace
}  // namespace outrider
