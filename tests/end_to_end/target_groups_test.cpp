// Several target groups under one coordinator. Texts equal those of one group, whichever group runs them.
// Requests of a group that dies continue in another group with the same bits.
#include <gtest/gtest.h>

#include "tests/end_to_end/request_grid.h"
#include "tests/support/dying_wire.h"

namespace outrider::target_groups_test {
namespace {

using namespace grid;  // NOLINT: the grid's names
using testing::DrafterKind;

const std::vector<Finished>& plainly() {
  static const std::vector<Finished> finished = [] {
    TestCluster plain({.target = kTarget});
    return plain.run(more_requests(kMatchRules, ""));
  }();
  return finished;
}

// Every request began in some group, and several groups had some. How many depends on the time that each
// gets.
void expect_shared_out(const TestCluster& cluster, const std::string& what) {
  int64_t sum = 0;
  int busy = 0;
  for (const GroupTotals& group : cluster.totals().groups) {
    sum += group.requests;
    busy += group.requests > 1;
  }
  EXPECT_EQ(sum, cluster.totals().submitted) << what;
  EXPECT_GE(busy, 2) << what;
}

class GroupsOfRanks : public ::testing::TestWithParam<int> {};  // ranks of a group

TEST_P(GroupsOfRanks, TextsAreThoseOfOneGroup) {
  for (const int batch : {1, 4})
    for (const DrafterKind drafter : {DrafterKind::kNone, DrafterKind::kModel, DrafterKind::kNgram}) {
      if (GetParam() > 1 && drafter == DrafterKind::kNgram) continue;
      TestCluster cluster({.target = kTarget,
                           .draft = draft_model(),
                           .drafter = drafter,
                           .tp_size = GetParam(),
                           .groups = drafter == DrafterKind::kNone ? 3 : 2,
                           .max_num_seqs = batch});
      const auto what =
          fmt::format("{} ranks, batch {}, drafter {}", GetParam(), batch, static_cast<int>(drafter));
      expect_same(
          plainly(),
          cluster.run(more_requests(kMatchRules, drafter == DrafterKind::kNone ? "" : "fixed:gamma=4")),
          what);
      expect_shared_out(cluster, what);
      EXPECT_GT(cluster.totals().rounds.accepted, drafter == DrafterKind::kNone ? -1 : kEnough) << what;
    }
}

INSTANTIATE_TEST_SUITE_P(TensorParallel, GroupsOfRanks, ::testing::Values(1, 2));

TEST(SeveralGroups, TreesAndPipelinesGiveTheSameTexts) {
  ClusterOptions options{.target = kTarget,
                         .draft = draft_model(),
                         .drafter = DrafterKind::kModel,
                         .groups = 2,
                         .max_num_seqs = 3,
                         .pipeline = Pipeline::kFanout,
                         .drafters = 2};
  {
    TestCluster cluster(options);
    expect_same(plainly(), cluster.run(more_requests(kMatchRules, "fixed:gamma=4")), "pipeline");
    EXPECT_GT(cluster.totals().preparation.hits, 0);  // how many are ready in time hangs on the machine
  }
  options.tree = {.widths = {3, 2, 1}};
  TestCluster cluster(options);
  expect_same(plainly(), cluster.run(more_requests(kMatchRules, "fixed:gamma=3")), "trees");
  EXPECT_GT(cluster.totals().trees.rounds, kEnough);
}

// A draft and its test depend on the text, the round and the request alone.
TEST(SeveralGroups, TokenAndBlockRulesGiveTheTextOfOneGroup) {
  for (const QKind q_kind : {QKind::kSparse, QKind::kDense}) {
    ClusterOptions options{.target = kTarget,
                           .draft = draft_model(),
                           .drafter = DrafterKind::kModel,
                           .max_num_seqs = 3,
                           .q_kind = q_kind,
                           .row_bytes = q_kind == QKind::kSparse ? 256 : 0};
    TestCluster one(options);
    options.groups = 2;
    TestCluster two(options);
    expect_same(one.run(more_requests(kPqRules, "fixed:gamma=3")),
                two.run(more_requests(kPqRules, "fixed:gamma=3")), "p/q rules");
    expect_shared_out(two, "p/q rules");
  }
}

// ---- groups that die ------------------------------------------------------------------------------------

// Group g dies with its result number results[g]; those behind them live.
std::function<std::unique_ptr<Transport>(int, std::unique_ptr<Transport>)> dying(std::vector<int> results) {
  return [results](int group, std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    const auto g = static_cast<size_t>(group);
    if (g >= results.size()) return inner;
    return std::make_unique<testing::DyingWire<StepResult>>(std::move(inner), results[g]);
  };
}

TEST(GroupsThatDie, TextsGoOnInAnotherGroupWithTheirBits) {
  for (const int tp_size : {1, 2})
    for (const DrafterKind drafter : {DrafterKind::kNone, DrafterKind::kModel}) {
      TestCluster cluster({.target = kTarget,
                           .draft = draft_model(),
                           .drafter = drafter,
                           .tp_size = tp_size,
                           .groups = 3,
                           .max_num_seqs = 4,
                           .target_wire = dying({5, 23})});
      const auto what = fmt::format("{} ranks, drafter {}", tp_size, static_cast<int>(drafter));
      expect_same(
          plainly(),
          cluster.run(more_requests(kMatchRules, drafter == DrafterKind::kNone ? "" : "fixed:gamma=4")),
          what);
      const Totals& totals = cluster.totals();
      int64_t lost = 0, passes = 0;  // in the groups that died
      for (const GroupTotals& group : totals.groups) {
        lost += group.lost;
        passes += group.lost > 0 ? group.passes : 0;
      }
      EXPECT_EQ(lost, 2) << what;
      EXPECT_GT(totals.failovers, 4) << what;
      EXPECT_LE(passes, 6 + 24) << what;
    }
}

// Drafts under verification in the dead group are verified again in another, with the same q and the same
// draws.
TEST(GroupsThatDie, TokenAndBlockRulesLoseNoDraftEither) {
  for (const QKind q_kind : {QKind::kSparse, QKind::kDense}) {
    ClusterOptions options{.target = kTarget,
                           .draft = draft_model(),
                           .drafter = DrafterKind::kModel,
                           .max_num_seqs = 4,
                           .q_kind = q_kind,
                           .row_bytes = q_kind == QKind::kSparse ? 256 : 0};
    TestCluster one(options);
    options.groups = 3;
    options.target_wire = dying({0, 31});
    TestCluster dying_ones(options);
    expect_same(one.run(more_requests(kPqRules, "fixed:gamma=3")),
                dying_ones.run(more_requests(kPqRules, "fixed:gamma=3")), "p/q rules");
    EXPECT_GT(dying_ones.totals().failovers, 2);
    const Totals& totals = dying_ones.totals();
    int64_t dropped = 0;
    for (const int64_t count : totals.drafts_dropped) dropped += count;
    EXPECT_EQ(totals.drafts_received, totals.drafts_used + dropped);
  }
}

// The children of a node are drawn once, and the group that takes over verifies the same children.
TEST(GroupsThatDie, NorDoSampledTrees) {
  ClusterOptions options{.target = kTarget,
                         .draft = draft_model(),
                         .drafter = DrafterKind::kModel,
                         .max_num_seqs = 4,
                         .q_kind = QKind::kSparse,
                         .row_bytes = 256,
                         .tree = {.widths = {3, 2, 1}}};
  const std::vector<Rule> rules{Rule::kSpecInfer, Rule::kTraversal};
  TestCluster one(options);
  options.groups = 2;
  options.target_wire = dying({9});
  TestCluster two(options);
  expect_same(one.run(more_requests(rules, "fixed:gamma=3")), two.run(more_requests(rules, "fixed:gamma=3")),
              "sampled trees");
  EXPECT_GT(two.totals().failovers, 0);
  EXPECT_GT(two.totals().trees.rounds, kEnough);
}

TEST(GroupsThatDie, HeadsBesideTheTargetReadTheTextAgain) {
  const std::string pair = (source_dir() / "launch/demo_pair").string();
  ClusterOptions options{.target = pair + "/target", .head = pair + "/eagle3", .max_num_seqs = 3};
  for (const auto& rules : {kMatchRules, kPqRules}) {
    options.groups = 1;
    options.target_wire = {};
    TestCluster one(options);
    options.groups = 2;
    options.target_wire = dying({20});
    TestCluster two(options);
    expect_same(one.run(more_requests(rules, "fixed:gamma=4")),
                two.run(more_requests(rules, "fixed:gamma=4")), "a head");
    EXPECT_GT(two.totals().failovers, 0);
    EXPECT_GT(two.totals().rounds.accepted, kEnough);
  }
}

// A worker that holds a head gets the rows that it lacks from the group where the text goes on.
TEST(GroupsThatDie, HeadsAtDraftWorkersGetTheirStatesElsewhere) {
  const std::string pair = (source_dir() / "launch/demo_pair").string();
  ClusterOptions options{.target = pair + "/target", .max_num_seqs = 3};
  TestCluster plain(options);
  options.head = pair + "/eagle3";
  options.head_at_worker = true;
  options.groups = 2;
  options.target_wire = dying({20});
  TestCluster two(options);
  expect_same(plain.run(more_requests(kMatchRules, "")), two.run(more_requests(kMatchRules, "fixed:gamma=4")),
              "a head at a worker");
  EXPECT_GT(two.totals().failovers, 0);
  EXPECT_GT(two.totals().rounds.accepted, kEnough);
}

// Log-probabilities of a prompt are reported once, although the prompt was prefilled twice.
TEST(GroupsThatDie, PromptScoresAreToldOnce) {
  std::vector<Request> requests;
  for (const auto& prompt : prompts())
    for (int i = 0; i < 3; ++i) {
      Request request{.prompt = prompt, .max_tokens = 4, .prompt_logprobs = 1};
      request.sampling.seed = Seed{static_cast<uint64_t>(i)};
      requests.push_back(std::move(request));
    }
  TestCluster plain({.target = kTarget});
  const auto expected = plain.run(requests);
  for (const int results : {0, 1, 2, 3}) {
    TestCluster cluster({.target = kTarget, .groups = 2, .max_num_seqs = 2, .target_wire = dying({results})});
    const auto finished = cluster.run(requests);
    expect_same(expected, finished, "prompt_logprobs");
    for (size_t i = 0; i < finished.size(); ++i) {
      ASSERT_EQ(finished[i].prompt_logprobs.size(), expected[i].prompt_logprobs.size());
      for (size_t t = 0; t < finished[i].prompt_logprobs.size(); ++t)
        EXPECT_EQ(finished[i].prompt_logprobs[t].chosen.logprob,
                  expected[i].prompt_logprobs[t].chosen.logprob);
    }
    EXPECT_GT(cluster.totals().failovers, 0);
  }
}

// ---- where a request runs -------------------------------------------------------------------------------

// A text that goes on with an earlier one runs where that was read.
TEST(SeveralGroups, ATextRunsWhereItsBeginningWasRead) {
  TestCluster cluster({.target = kTarget, .groups = 2, .max_num_seqs = 4});
  std::mt19937 random(23);
  std::vector<std::vector<TokenId>> beginnings;
  for (int i = 0; i < 4; ++i) {
    auto& ids = beginnings.emplace_back();
    for (int n = 0; n < 64; ++n) ids.emplace_back(static_cast<int32_t>(random() % 200));
  }
  const auto all = [&](int more) {
    std::vector<Request> requests;
    for (const auto& beginning : beginnings) {
      Request request{.prompt = beginning, .max_tokens = 3, .ignore_eos = true};
      for (int n = 0; n < more; ++n) request.prompt.emplace_back(static_cast<int32_t>(random() % 200));
      requests.push_back(std::move(request));
    }
    return requests;
  };
  (void)cluster.run(all(0));
  for (const GroupTotals& group : cluster.totals().groups) EXPECT_EQ(group.requests, 2);
  for (const Finished& finished : cluster.run(all(9))) EXPECT_EQ(finished.metrics.cached_tokens, 64);
  // All go on with one text: the group that has read it takes some more than the other, and then no more.
  std::swap(beginnings[0], beginnings[3]);
  for (auto& beginning : beginnings) beginning = beginnings[0];
  const auto before = cluster.totals().groups;
  auto many = all(5), more = all(6);
  many.insert(many.end(), more.begin(), more.end());
  (void)cluster.run(many);
  const auto& after = cluster.totals().groups;
  const int64_t first = after[0].requests - before[0].requests,
                second = after[1].requests - before[1].requests;
  EXPECT_EQ(first + second, 8);
  EXPECT_GT(std::min(first, second), 0);
}

}  // namespace
}  // namespace outrider::target_groups_test
