// Whole runs over bad networks. Under a match rule the text is that of plain decoding, whatever the network
// does. Under a p/q rule it is that of a good network as long as no message is lost.
#include <gtest/gtest.h>

#include "tests/support/test_cluster.h"

namespace outrider::emulated_link_runs_test {
namespace {

using namespace std::chrono_literals;

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

// Counts of network faults in a run. The run uses them to prove that it met the faults.
struct Trouble {
  const Totals& totals;
  int64_t dropped = 0, malformed = 0;

  // Every draft that was used had travelled there and back.
  bool took(std::chrono::milliseconds there_and_back) const {
    return totals.drafts_used > 0 && totals.phases.draft_wait >= totals.drafts_used * there_and_back;
  }
};

struct Network {
  const char* name;
  const char* link;
  bool (*met)(const Trouble&);
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
      const int count = batch == 1 ? 1 : 4;  // single sequences are slow on some networks
      expect_same({expected.begin(), expected.begin() + 3 * count}, cluster.run(requests(kMatchRules, count)),
                  fmt::format("pipeline {}, batch {}", static_cast<int>(pipeline), batch));
      const Totals& totals = cluster.totals();
      EXPECT_GT(totals.proposals, 0);
      const Trouble trouble{.totals = totals,
                            .dropped = totals.drafts_received - totals.drafts_used,
                            .malformed = static_cast<int64_t>(cluster.transport_stats().malformed_frames)};
      EXPECT_TRUE(GetParam().met(trouble))
          << totals.drafts_received << " drafts, " << trouble.dropped << " dropped, " << trouble.malformed
          << " malformed, " << totals.proposals_repeated << " repeated, " << totals.draft_deadlines_missed
          << " missed, " << totals.resyncs << " resyncs";
      if (GetParam().draft_timeout > std::chrono::seconds(1)) {
        EXPECT_GT(totals.rounds.accepted, 0);
      }
    }
}

// A short deadline where messages are lost: every loss is waited for.
INSTANTIATE_TEST_SUITE_P(
    Networks, MatchRulesOver,
    ::testing::Values(
        Network{"Slow", "delay=1ms,rate=100mbit", [](const Trouble& it) { return it.took(2ms); }},
        Network{"EverythingSlow", "delay=1ms,rate=100mbit,links=all",
                [](const Trouble& it) { return it.took(2ms); }},
        Network{"Far", "delay=100ms,rate=2mbit", [](const Trouble& it) { return it.took(200ms); }},
        Network{"EveryMessageTwice", "duplicate=1", [](const Trouble& it) { return it.dropped > 0; }},
        Network{"Overtaking", "reorder=0.5",
                [](const Trouble& it) {
                  return it.totals.resyncs + it.dropped + it.totals.proposals_repeated > 0;
                }},
        Network{"Lossy", "loss=0.3",
                [](const Trouble& it) {
                  return it.totals.proposals_repeated + it.totals.draft_deadlines_missed > 0;
                },
                10ms},
        Network{"Corrupting", "corrupt=0.3", [](const Trouble& it) { return it.malformed > 0; }, 10ms},
        Network{"DelayedPastTheDeadline", "delay=20ms",
                [](const Trouble& it) { return it.totals.draft_deadlines_missed > 0; }, 5ms},
        Network{"AllAtOnce", "delay=1ms,loss=0.1,duplicate=0.3,corrupt=0.1,reorder=0.3",
                [](const Trouble& it) {
                  return it.malformed + it.dropped + it.totals.proposals_repeated +
                             it.totals.draft_deadlines_missed >
                         0;
                },
                10ms}),
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
}  // namespace outrider::emulated_link_runs_test
