#include "target_worker/sharded_verifier.h"

#include <gtest/gtest.h>

#include "tests/target_worker/verify_support.h"

namespace outrider {
namespace {

constexpr int kRanks[] = {1, 2, 3, 4, 8};

void expect_oracle(const std::vector<TestRound>& rounds, const std::string& what) {
  std::vector<RuleOutcome> expected;
  for (const TestRound& round : rounds) expected.push_back(oracle(round));
  for (int ranks : kRanks) {
    const auto results = verify_sharded(rounds, ranks);
    for (size_t i = 0; i < rounds.size(); ++i) {
      const auto text = what + ": request " + std::to_string(i) + " of rule " +
                        std::string(rule_name(rounds[i].params.rule)) + " on " + std::to_string(ranks) +
                        " ranks";
      ASSERT_EQ(results[i].status, VerdictStatus::kOk) << text;
      ASSERT_EQ(results[i].accepted_count, expected[i].accepted_count) << text;
      ASSERT_EQ(results[i].next, expected[i].next) << text;
    }
  }
}

class OneRule : public testing::TestWithParam<Rule> {};

TEST_P(OneRule, EqualsTheWholeRowRuleOnAnyNumberOfRanks) {
  std::mt19937_64 rng(100 + static_cast<uint64_t>(GetParam()));
  for (int i = 0; i < 150; ++i) {
    const size_t vocab_size = std::vector<size_t>{5, 37, 256, 1031}[static_cast<size_t>(i) % 4];
    const int gamma = static_cast<int>(rng() % 6);
    expect_oracle({random_round(rng, GetParam(), vocab_size, gamma)}, "pass " + std::to_string(i));
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, OneRule,
                         testing::Values(Rule::kGreedy, Rule::kInvariant, Rule::kNaive, Rule::kToken,
                                         Rule::kBlock),
                         [](const auto& rule) { return std::string(rule_name(rule.param)); });

// Rules, parameters and draft lengths mixed in one pass: no request sees another.
TEST(ShardedVerifier, MixedBatches) {
  std::mt19937_64 rng(7);
  for (int i = 0; i < 40; ++i) {
    std::vector<TestRound> rounds;
    for (int n = static_cast<int>(1 + rng() % 9); n > 0; --n)
      rounds.push_back(random_round(rng, static_cast<Rule>(rng() % 5), 300, static_cast<int>(rng() % 5)));
    expect_oracle(rounds, "batch " + std::to_string(i));
    if (HasFatalFailure()) return;
  }
}

// A q of the best m tokens, with or without a weight of all others, and the same numbers as a dense row are
// the same distribution.
TEST(ShardedVerifier, SparseEqualsDenseOfTheSameQ) {
  std::mt19937_64 rng(8);
  for (int i = 0; i < 60; ++i) {
    TestRound sparse = random_round(rng, i % 2 ? Rule::kToken : Rule::kBlock, 400, 4);
    sparse.q_kind = QKind::kSparse;
    for (size_t r = 0; r < sparse.q.size(); ++r) {
      sparse.q[r] = random_q(rng, sparse.raw[r], QKind::kSparse, 1 + rng() % 64);
      sparse.draft[r] = draw_token(sparse.q[r], rng());
    }
    TestRound dense = sparse;
    dense.q_kind = QKind::kDense;
    for (QRow& row : dense.q) {
      std::vector<uint32_t> weights(400, 0);
      std::fill_n(weights.begin(), row.id_end, row.rest);
      for (size_t k = 0; k < row.ids.size(); ++k) weights[row.ids[k]] = row.weights[k];
      row = {.ids = {}, .weights = weights, .sum = row.sum};
    }
    for (int ranks : {1, 4}) {
      const auto a = verify_sharded({sparse}, ranks), b = verify_sharded({dense}, ranks);
      ASSERT_EQ(a[0].accepted_count, b[0].accepted_count);
      ASSERT_EQ(a[0].next, b[0].next);
    }
  }
}

TEST(ShardedVerifier, ARowWithoutADistributionMattersOnlyWhereTheTextComesToIt) {
  expect_damage_contained(9, 300, {1, 2, 4}, [](const std::vector<TestRound>& rounds, int ranks) {
    return verify_sharded(rounds, ranks);
  });
}

TEST(ShardedVerifier, LogprobsOfTheRawModel) {
  std::mt19937_64 rng(10);
  for (int i = 0; i < 30; ++i) {
    std::vector<TestRound> rounds;
    for (int rule = 0; rule < 5; ++rule) rounds.push_back(random_round(rng, static_cast<Rule>(rule), 130, 3));
    for (size_t r = 0; r < 4; ++r)
      rounds[r].params.logprobs = static_cast<int32_t>(r * 2);  // the last has none
    std::vector<VerifyResult> first;
    for (int ranks : {1, 2, 8}) {
      const auto results = verify_sharded(rounds, ranks);
      if (ranks == 1) first = results;
      EXPECT_TRUE(results[4].logprobs.empty());
      for (size_t r = 0; r < 4; ++r) {
        ASSERT_EQ(results[r].logprobs.size(), static_cast<size_t>(results[r].accepted_count) + 1);
        for (size_t n = 0; n < results[r].logprobs.size(); ++n) {
          const auto& raw = rounds[r].raw[n];
          const auto& position = results[r].logprobs[n];
          const bool last = n + 1 == results[r].logprobs.size();
          const TokenId emitted = last ? results[r].next : rounds[r].draft[n];
          double z = 0;
          for (float logit : raw) z += std::exp(static_cast<double>(logit));
          EXPECT_EQ(position.chosen.id, emitted);
          EXPECT_FLOAT_EQ(position.chosen.logprob,
                          static_cast<float>(raw[static_cast<size_t>(emitted.value())] - std::log(z)));
          EXPECT_EQ(position.chosen.logprob, first[r].logprobs[n].chosen.logprob);
          ASSERT_EQ(position.top.size(), r * 2);
          const auto order = reference::order(raw);
          for (size_t k = 0; k < position.top.size(); ++k) {
            EXPECT_EQ(position.top[k].id.value(), static_cast<int>(order[k]));
            EXPECT_EQ(position.top[k].logprob, first[r].logprobs[n].top[k].logprob);
          }
        }
      }
    }
  }
}

TEST(ShardedVerifier, CountsResidualsWithoutMass) {
  TestRound round;
  round.params = {.rule = Rule::kToken, .temperature = 1};
  round.prompt = {TokenId(1)};
  round.draft = {TokenId(3)};
  round.q_kind = QKind::kSparse;
  round.q = {{.ids = {2, 3}, .weights = {1, 1}, .sum = 2}};
  // p is token 2 alone and q lies on tokens 2 and 3: token 3 is rejected, its residual is token 2's other
  // half.
  round.raw.assign(2, std::vector<float>(8, reference::kMasked));
  round.raw[0][2] = round.raw[1][5] = 1;
  VerifierStats stats;
  auto result = verify_sharded({round}, 2, &stats);
  EXPECT_EQ(result[0].accepted_count, 0);
  EXPECT_EQ(result[0].next, TokenId(2));
  EXPECT_EQ(stats.residual_fallbacks, 0u);
  EXPECT_EQ(stats.q_zero_draws, 0u);
  // Now q says token 3 was impossible, p agrees, and nothing is left of p after subtracting q: fall back to
  // p.
  round.q = {{.ids = {2}, .weights = {1}, .sum = 1}};
  result = verify_sharded({round}, 2, &stats);
  EXPECT_EQ(result[0].accepted_count, 0);
  EXPECT_EQ(result[0].next, TokenId(2));
  EXPECT_EQ(stats.residual_fallbacks, 1u);
  EXPECT_EQ(stats.q_zero_draws, 1u);
}

// One verifier for many passes of different shapes: nothing is left over from the pass before.
TEST(ShardedVerifier, ReuseLeavesNothingBehind) {
  std::mt19937_64 rng(12);
  const auto group = make_single_collectives();
  ShardedVerifier verifier(*group);
  for (int i = 0; i < 100; ++i) {
    const size_t vocab_size = 20 + rng() % 200;
    const TestRound round =
        random_round(rng, static_cast<Rule>(rng() % 5), vocab_size, static_cast<int>(rng() % 6));
    std::vector<float> shard;
    for (const auto& row : round.raw) shard.insert(shard.end(), row.begin(), row.end());
    const TokenCounts counts = counts_of(round);
    const VerifyRequest request{.sampling = &round.params,
                                .round = round.round,
                                .base = round.base(),
                                .draft = round.draft,
                                .q_kind = round.q_kind,
                                .q = round.q,
                                .counts = &counts};
    const auto width = static_cast<int64_t>(vocab_size);
    const LogitsShard logits{
        TensorView<float, 2>(shard.data(), {static_cast<int64_t>(round.raw.size()), width}),
        {0, width},
        width};
    const auto& results = verifier.verify(std::span(&request, 1), logits);
    const RuleOutcome expected = oracle(round);
    ASSERT_EQ(results[0].accepted_count, expected.accepted_count);
    ASSERT_EQ(results[0].next, expected.next);
  }
  EXPECT_TRUE(verifier.verify({}, LogitsShard{TensorView<float, 2>(nullptr, {0, 5}), {0, 5}, 5}).empty());
}

TEST(ShardedVerifier, LogitsOfADeviceAreRefused) {
  auto group = make_single_collectives();
  ShardedVerifier verifier(*group);
  EXPECT_DEATH(verifier.verify({}, DeviceLogits{}), "the logits are in device memory");
}

}  // namespace
}  // namespace outrider
