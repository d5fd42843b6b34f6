// Whole runs over bad networks: the text of a match rule is that of plain decoding whatever the network does,
// and a p/q rule's is that of a good network as long as nothing is lost.
#include <gtest/gtest.h>

#include "tests/support/test_cluster.h"

namespace outrider {
namespace {

using testing::ClusterOptions;
using testing::DrafterKind;
using testing::Finished;
using testing::TestCluster;
using testing::Wire;

constexpr const char* kTarget = "qwen3";

std::vector<Request> requests(const std::vector<Rule>& rules, int count) {
  std::vector<Request> all;
  for (int i = 0; i < count; ++i)
    for (const Rule rule : rules) {
      Request request{.prompt = {TokenId(10 + i), TokenId(12), TokenId(11)}, .max_tokens = 16};
      request.sampling.rule = rule;
      request.sampling.temperature = rule == Rule::kGreedy ? 0.0f : 1.5f;
      request.sampling.seed = Seed{static_cast<uint64_t>(i)};
      all.push_back(std::move(request));
    }
  return all;
}

const std::vector<Rule> kMatchRules{Rule::kGreedy, Rule::kInvariant, Rule::kNaive};

ClusterOptions with_draft() {
  static const testing::PerturbedModel draft(kTarget, 0.2f);
  return {.target = kTarget, .draft = draft.path(), .drafter = DrafterKind::kModel};
}

void expect_same(const std::vector<Finished>& expected, const std::vector<Finished>& actual,
                 const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(actual[i].error.ok()) << what << ": " << actual[i].error.message();
    EXPECT_EQ(expected[i].ids, actual[i].ids) << what << ", request " << i;
  }
}

struct Network {
  const char* name;
  const char* link;
  // A round gives up on its draft after this, or three average rounds.
  std::chrono::milliseconds draft_timeout{60'000};
};

class MatchRulesOver : public ::testing::TestWithParam<Network> {};

TEST_P(MatchRulesOver, TextIsThatOfPlainDecoding) {
  TestCluster plain({.target = kTarget});
  const auto expected = plain.run(requests(kMatchRules, 4));
  for (const Pipeline pipeline : {Pipeline::kLockstep, Pipeline::kFanout})
    for (const auto& [batch, drafters] : {std::pair{1, 1}, {8, 2}}) {
      ClusterOptions options = with_draft();
      options.pipeline = pipeline;
      options.max_num_seqs = batch;
      options.drafters = drafters;
      options.link = GetParam().link;
      options.draft_timeout = GetParam().draft_timeout;
      TestCluster cluster(options);
      const int count = batch == 1 ? 1 : 4;  // one after the other is slow on some of these networks
      expect_same({expected.begin(), expected.begin() + 3 * count}, cluster.run(requests(kMatchRules, count)),
                  fmt::format("pipeline {}, batch {}", static_cast<int>(pipeline), batch));
      const Totals& totals = cluster.totals();
      EXPECT_GT(totals.proposals, 0);
      if (GetParam().draft_timeout > std::chrono::seconds(1)) {
        EXPECT_GT(totals.rounds.accepted, 0);
      }
    }
}

// A short deadline where messages are lost: every loss is waited for.
INSTANTIATE_TEST_SUITE_P(
    Networks, MatchRulesOver,
    ::testing::Values(Network{"Slow", "delay=1ms,rate=100mbit"},
                      Network{"EverythingSlow", "delay=1ms,rate=100mbit,links=all"},
                      Network{"Far", "delay=100ms,rate=2mbit"}, Network{"EveryMessageTwice", "duplicate=1"},
                      Network{"Overtaking", "reorder=0.5"},
                      Network{"Lossy", "loss=0.3", std::chrono::milliseconds(10)},
                      Network{"Corrupting", "corrupt=0.3", std::chrono::milliseconds(10)},
                      Network{"DelayedPastTheDeadline", "delay=20ms", std::chrono::milliseconds(5)},
                      Network{"AllAtOnce", "delay=1ms,loss=0.1,duplicate=0.3,corrupt=0.1,reorder=0.3",
                              std::chrono::milliseconds(10)}),
    [](const auto& test) { return std::string(test.param.name); });

// Nothing is lost here, so the same rounds draft the same tokens, only later.
TEST(PqRulesOver, ASlowNetworkChangesNoByte) {
  const std::vector<Rule> rules{Rule::kToken, Rule::kBlock};
  ClusterOptions options = with_draft();
  options.max_num_seqs = 4;
  TestCluster near(options);
  const auto expected = near.run(requests(rules, 4));
  for (const char* link : {"delay=2ms,rate=20mbit", "delay=1ms,duplicate=1", "delay=1ms,links=all"})
    for (const Pipeline pipeline : {Pipeline::kLockstep, Pipeline::kFanout}) {
      options.link = link;
      options.pipeline = pipeline;
      TestCluster far(options);
      expect_same(expected, far.run(requests(rules, 4)), link);
      EXPECT_EQ(far.totals().liveness_timeouts, 0);
    }
}

// The emulated deadlines and the sockets' own waiting together.
TEST(AnyRuleOver, SocketsWithDelayGiveTheSameText) {
  ClusterOptions options = with_draft();
  options.max_num_seqs = 4;
  TestCluster near(options);
  const auto expected = near.run(requests(kMatchRules, 2));
  options.wire = Wire::kZmqIpc;
  options.link = "delay=500us,rate=1gbit,reorder=0.1";
  TestCluster far(options);
  expect_same(expected, far.run(requests(kMatchRules, 2)), "ipc");
}

}  // namespace
}  // namespace outrider
