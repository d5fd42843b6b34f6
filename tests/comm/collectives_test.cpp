#include "comm/collectives.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "tests/comm/collectives_suite.h"

namespace outrider {
namespace {

namespace suite = collectives_suite;

using Case = std::function<void(Collectives&)>;

// One thread per rank. `size` 0 stands for the single-rank implementation.
void on_every_rank(int size, const Case& run, const CollectiveOptions& options = {}) {
  if (size == 0) return run(*make_single_collectives());
  const auto ranks = make_thread_collectives(size, options);
  std::vector<std::jthread> threads;
  for (const auto& rank : ranks) threads.emplace_back([&run, &rank] { run(*rank); });
}

class CollectivesTest : public testing::TestWithParam<int> {
 protected:
  void run(const Case& test, const CollectiveOptions& options = {}) {
    on_every_rank(GetParam(), test, options);
  }
  bool alone() const { return GetParam() <= 1; }
};

TEST_P(CollectivesTest, FloatSumsUseTheBalancedTree) { run(suite::float_sums_use_the_balanced_tree); }
TEST_P(CollectivesTest, IntegersReduce) { run(suite::integers_reduce); }
TEST_P(CollectivesTest, BytesMove) { run(suite::bytes_move); }
TEST_P(CollectivesTest, MessagesOfAnyLengthArrive) { run(suite::messages_of_any_length_arrive); }
TEST_P(CollectivesTest, BarriersWaitForTheLast) { run(suite::barriers_wait_for_the_last); }
TEST_P(CollectivesTest, AbortReachesEveryone) { run(suite::abort_reaches_everyone); }
TEST_P(CollectivesTest, WaitingForWorkHasNoDeadline) {
  run(suite::waiting_for_work_has_no_deadline, {.timeout = suite::kShortTimeout});
}
TEST_P(CollectivesTest, MeetingHasNoDeadline) {
  run(suite::meeting_has_no_deadline, {.timeout = suite::kShortTimeout});
}
TEST_P(CollectivesTest, AbortReachesAMeeting) { run(suite::abort_reaches_a_meeting); }
TEST_P(CollectivesTest, ALateRankFailsEveryone) {
  if (alone()) return;  // a group of one rank has no late peer
  run(suite::a_late_rank_fails_everyone, {.timeout = suite::kShortTimeout});
}
TEST_P(CollectivesTest, MessagesOverTheLimitFailEveryone) {
  if (GetParam() == 0) return;  // alone, its own mistake: a CHECK
  run(suite::messages_over_the_limit_fail_everyone);
}

INSTANTIATE_TEST_SUITE_P(Threads, CollectivesTest, testing::Values(0, 1, 2, 4, 8), [](const auto& size) {
  return size.param == 0 ? std::string("Single") : "Threads" + std::to_string(size.param);
});

TEST(ThreadCollectives, RanksThatDisagreeHearWhere) {
  on_every_rank(2, [](Collectives& group) {
    std::vector<uint64_t> values(static_cast<size_t>(group.rank()) + 1);
    try {
      group.all_reduce_max(values);
      ADD_FAILURE() << "sizes differ";
    } catch (const CollectiveError& error) {
      EXPECT_STREQ(error.what(),
                   "ranks disagree: 0 called all_reduce_max of 1 elements from 0, 1 called all_reduce_max of "
                   "2 elements "
                   "from 0");
    }
  });
}

TEST(ThreadCollectives, IntegersNeedNoPowerOfTwo) {
  on_every_rank(3, suite::integers_reduce);
  on_every_rank(5, suite::bytes_move);
}

}  // namespace
}  // namespace outrider
