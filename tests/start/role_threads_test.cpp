// The number of compute threads of a role, from the bytes of its weights, for every way of starting the role.
#include "start/role_threads.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "start/draft_child.h"

namespace outrider {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kSmall = 17'000'000, kTiny = 1'300'000, kLarge = 2200 * kMiB;

// Automatic number of threads: tiny weights get one thread whatever the number of cores, large weights get
// all cores.
TEST(RoleThreads, FollowTheBytesWhereNobodySaidHowMany) {
  for (const int cores : {1, 2, 8, 64}) {
    const LocalThreads alone = local_threads(0, 0, 1, cores);
    for (const RoleThreads& role : {alone.target, alone.draft,       // generate, serve, bench
                                    role_threads(0, cores),          // a rank of mpirun
                                    worker_threads(0, cores, 64),    // the child of a draft rank
                                    worker_threads(0, 0, cores)}) {  // a worker that joins
      EXPECT_EQ(role.of(kTiny), 1) << cores;
      EXPECT_EQ(role.of(kSmall), std::min(2, cores)) << cores;
      EXPECT_EQ(role.of(3 * 8 * kMiB), std::min(3, cores)) << cores;
      EXPECT_EQ(role.of(kLarge), cores) << cores;
    }
  }
}

TEST(RoleThreads, RanksOfOneProcessShareItsCores) {
  const LocalThreads four = local_threads(0, 0, 4, 8);
  EXPECT_EQ(four.target.of(kLarge / 4), 2);
  EXPECT_EQ(four.target.of(kSmall / 4), 1);
  EXPECT_EQ(four.draft.of(kLarge), 8) << "in turns, so it may have them all";
  EXPECT_FALSE(local_threads(0, 0, 4, 2).target.spin) << "more ranks than cores";
  EXPECT_EQ(local_threads(0, 0, 4, 2).target.of(kLarge), 1);
}

// An explicit number of threads is used unchanged.
TEST(RoleThreads, ExplicitNumbersStay) {
  EXPECT_EQ(role_threads(2, 8).of(kSmall), 2);
  EXPECT_EQ(local_threads(2, 0, 1, 8).target.of(kSmall), 2);
  EXPECT_EQ(worker_threads(2, 0, 8).of(kSmall), 2);
  EXPECT_EQ(role_threads(16, 2).of(kLarge), 16);
  EXPECT_FALSE(role_threads(16, 2).spin);
  EXPECT_TRUE(role_threads(2, 2).spin);

  const LocalThreads apart = local_threads(4, 1, 1, 4);
  EXPECT_EQ(apart.target.of(kLarge), 3);
  EXPECT_EQ(apart.draft.of(kLarge), 1);
  const LocalThreads automatic_target = local_threads(0, 2, 1, 8);
  EXPECT_EQ(automatic_target.target.of(kLarge), 6);
  EXPECT_EQ(automatic_target.target.of(kSmall), 2);
  EXPECT_EQ(automatic_target.draft.of(kSmall), 2);
  EXPECT_EQ(local_threads(0, 0, 1, 8, 4).draft.of(kLarge), 2) << "of each of four draft ranks";
  EXPECT_EQ(local_threads(0, 2, 1, 8, 4).draft.of(kLarge), 1);
}

// A draft rank passes its child the number of cores that the child may use. --threads stays 0 (automatic)
// unless the user set it.
TEST(RoleThreads, AChildDecidesByItsOwnWeights) {
  const auto value = [](const DraftChildOptions& child, const std::string& flag) {
    RoleSettings settings;
    settings.models.drafter = "ngram";
    const auto arguments = draft_child_arguments(settings, child);
    const auto at = std::find(arguments.begin(), arguments.end(), flag);
    return at == arguments.end() ? "none" : *(at + 1);
  };
  EXPECT_EQ(value({.threads = 0, .cores = 3}, "--threads"), "0");
  EXPECT_EQ(value({.threads = 0, .cores = 3}, "--cores"), "3");
  EXPECT_EQ(value({.threads = 2, .cores = 3}, "--threads"), "2");
}

}  // namespace
}  // namespace outrider
