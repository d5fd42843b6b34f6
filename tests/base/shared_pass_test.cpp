// Allocating memory waits for the forward passes of other ranks in the same group.
#include "base/shared_pass.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <latch>

namespace outrider::cuda {
namespace {

constexpr std::chrono::milliseconds kMoment{50};

// A rank of `group` that has run a forward pass. It allocates memory on request.
class Rank {
 public:
  explicit Rank(uint64_t group)
      : took_(std::async(std::launch::async, [this, group] {
          SharedPass pass;
          pass.join(group);
          pass.begin();
          pass.end();
          has_passed_.count_down();
          may_take_.wait();
          const MemoryTurn turn;
        })) {
    has_passed_.wait();
  }
  void take_memory() { may_take_.count_down(); }
  bool has_taken(std::chrono::milliseconds within) const {
    return took_.wait_for(within) == std::future_status::ready;
  }

 private:
  std::latch has_passed_{1}, may_take_{1};
  std::future<void> took_;
};

TEST(SharedPass, ARankWaitsForPassesOfOtherGroupsAlone) {
  Rank peer(1), stranger(2);
  SharedPass pass;
  pass.join(1);
  pass.begin();
  peer.take_memory();
  EXPECT_TRUE(peer.has_taken(std::chrono::seconds(5))) << "this rank's pass may be waiting for it";
  stranger.take_memory();
  EXPECT_FALSE(stranger.has_taken(kMoment)) << "nothing of this pass waits for it";
  pass.end();
  EXPECT_TRUE(stranger.has_taken(std::chrono::seconds(5)));
}

TEST(SharedPass, WhoIsNoRankWaitsForAllPasses) {
  SharedPass pass;
  pass.begin();
  auto taken = std::async(std::launch::async, [] { const MemoryTurn turn; });
  EXPECT_EQ(taken.wait_for(kMoment), std::future_status::timeout);
  pass.end();
  EXPECT_EQ(taken.wait_for(std::chrono::seconds(5)), std::future_status::ready);
}

}  // namespace
}  // namespace outrider::cuda
