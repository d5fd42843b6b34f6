// A draft worker of two ranks, one of which cannot load its part.
#include "start/draft_ranks.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/support/source_dir.h"

namespace outrider {
namespace {

// Final messages of all ranks. Rank `fails` has no draft model at its path.
std::vector<std::string> load_with_failing_rank(int fails) {
  const auto pair = source_dir() / "launch/demo_pair";
  RoleSettings settings{.models = {}, .speculation = {}, .quiet = true};
  settings.models.model = (pair / "target").string();
  settings.models.draft_model = (pair / "draft").string();
  settings.models.draft_tensor_parallel_size = 2;
  const Preparation prepared = prepare(settings).value();
  RoleSettings failing = settings;
  failing.models.draft_model = (pair / "missing").string();

  const auto group = make_thread_collectives(2);
  std::vector<std::string> said(2);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      const RoleSettings& own = rank == fails ? failing : settings;
      Collectives& with = *group[static_cast<size_t>(rank)];
      std::string& text = said[static_cast<size_t>(rank)];
      if (rank == 1) {
        text = run_draft_follower(own, prepared, {}, with).message();
        return;
      }
      try {
        DraftRanks leader(own, prepared, {}, with);
        text = leader.load().status().message();
      } catch (const CollectiveError& error) {
        text = error.what();
      }
    });
  ranks.clear();
  return said;
}

TEST(DraftRanksLoading, ARankThatCannotLoadSaysWhyAndEndsTheOther) {
  for (const int fails : {0, 1}) {
    const auto said = load_with_failing_rank(fails);
    EXPECT_NE(said[static_cast<size_t>(fails)].find("missing"), std::string::npos)
        << said[static_cast<size_t>(fails)];
    EXPECT_NE(said[static_cast<size_t>(1 - fails)].find("aborted"), std::string::npos)
        << said[static_cast<size_t>(1 - fails)];
  }
}

}  // namespace
}  // namespace outrider
