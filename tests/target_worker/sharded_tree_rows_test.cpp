// Tree rules on a vocabulary that is split over ranks: the outcomes of whole rows, on any number of ranks; of
// chains, those of the chain rules.
#include "target_worker/rules/sharded_tree_rows.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/target_worker/verify_support.h"
#include "tests/target_worker/whole_tree_rows.h"

namespace outrider {
namespace {

struct ShardedTree {
  std::vector<TokenId> ids;
  std::vector<int32_t> parents;
  std::vector<std::vector<float>> logits;  // of the root, and of each node
  std::vector<QRow> q;
  TreeDraws draws;
};

ShardedTree random_tree(std::mt19937_64& rng, Rule rule, size_t vocab_size, size_t nodes, bool chain) {
  ShardedTree round;
  round.draws = {Seed{rng()}, Round(static_cast<uint32_t>(rng() % 50)),
                 Position(static_cast<int32_t>(rng() % 100))};
  const auto add_rows = [&] {
    round.logits.push_back(reference::random_logits(rng, vocab_size, 2, 1e6f));
    round.q.push_back(random_q(rng, round.logits.back(), QKind::kDense, 0));
    if (rng() % 2 == 0) {
      QRow& q = round.q.back();
      for (size_t v = 0; v < q.weights.size(); ++v)
        if (q.weights[v] > 1000) q.ids.push_back(static_cast<uint32_t>(v));
      std::erase_if(q.weights, [](uint32_t w) { return w <= 1000; });
      q.sum = sum_of(q);
    }
  };
  add_rows();
  for (size_t i = 0; i < nodes; ++i) {
    const auto parent =
        chain ? static_cast<int32_t>(i) - 1 : static_cast<int32_t>(rng() % (round.ids.size() + 1)) - 1;
    std::vector<TokenId> siblings;
    for (size_t s = 0; s < round.ids.size(); ++s)
      if (round.parents[s] == parent) siblings.push_back(round.ids[s]);
    if (!draws_without_replacement(rule)) siblings.clear();
    round.parents.push_back(parent);
    const auto token = draw_token_without(round.q[static_cast<size_t>(parent + 1)], siblings, rng());
    if (!token) {  // nothing is left for a sibling
      round.parents.pop_back();
      continue;
    }
    round.ids.push_back(*token);
    add_rows();
  }
  return round;
}

TreeOutcome on_rank(Rule rule, const ShardedTree& round, Collectives& group) {
  const auto vocab_size = static_cast<int64_t>(round.logits.front().size());
  const IndexRange range = vocab_range(vocab_size, {group.rank(), group.size()});
  std::vector<RowWeights> rows;
  for (size_t i = 0; i < round.logits.size(); ++i) {
    const auto& logits = round.logits[i];
    const QRow& q = round.q[i];
    rows.push_back({.logits = std::span(logits).subspan(static_cast<size_t>(range.begin),
                                                        static_cast<size_t>(range.size())),
                    .range = range,
                    .max = *std::max_element(logits.begin(), logits.end()),
                    .q = {q.ids, q.weights, q.sum, 0, q.rest, q.id_end}});
  }
  std::vector<uint64_t> q_drafted;
  for (size_t i = 0; i < round.ids.size(); ++i)
    q_drafted.push_back(weight_in(round.q[static_cast<size_t>(round.parents[i] + 1)], round.ids[i]));
  WeightedSampler sampler(group);
  ShardedTreeRows tree_rows(group, sampler, {round.ids, round.parents}, rows, q_drafted, round.draws);
  return decide_tree(rule, {round.ids, round.parents}, tree_rows);
}

TreeOutcome on_ranks(Rule rule, const ShardedTree& round, int ranks) {
  std::vector<TreeOutcome> outcomes(static_cast<size_t>(ranks));
  reference::run_ranks(ranks, [&](Collectives& group) {
    outcomes[static_cast<size_t>(group.rank())] = on_rank(rule, round, group);
  });
  for (const TreeOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.path, outcomes[0].path);
    EXPECT_EQ(outcome.next, outcomes[0].next);
  }
  return outcomes[0];
}

TreeOutcome on_whole_rows(Rule rule, const ShardedTree& round) {
  std::vector<std::vector<double>> p, q;
  for (size_t i = 0; i < round.logits.size(); ++i) {
    const auto weights = reference::weights(round.logits[i]);
    const auto total = static_cast<double>(reference::sum(weights));
    p.emplace_back();
    for (uint64_t w : weights) p.back().push_back(static_cast<double>(w) / total);
    q.push_back(q_of(round.q[i], round.logits[i].size()));
  }
  CountedTreeRows rows({round.ids, round.parents}, round.draws, std::move(p), std::move(q));
  return decide_tree(rule, {round.ids, round.parents}, rows);
}

TEST(ShardedTreeRows, DecideAsWholeRowsDoOnAnyNumberOfRanks) {
  std::mt19937_64 rng(41);
  for (Rule rule : kTreeRules) {
    size_t accepted = 0;
    for (int trial = 0; trial < 60; ++trial) {
      const ShardedTree round = random_tree(rng, rule, 3 + rng() % 200, rng() % 12, false);
      const TreeOutcome expected = on_whole_rows(rule, round);
      for (int ranks : {1, 2, 3, 8}) {
        const TreeOutcome outcome = on_ranks(rule, round, ranks);
        EXPECT_EQ(outcome.path, expected.path) << rule_name(rule) << " trial " << trial << " on " << ranks;
        EXPECT_EQ(outcome.next, expected.next) << rule_name(rule) << " trial " << trial << " on " << ranks;
      }
      accepted += expected.path.size();
    }
    EXPECT_GT(accepted, 30u);
  }
}

TEST(ShardedTreeRows, OfAChainTheyDecideAsTheChainRulesDo) {
  std::mt19937_64 rng(43);
  for (Rule rule : kTreeRules)
    for (int trial = 0; trial < 40; ++trial) {
      const ShardedTree tree = random_tree(rng, rule, 3 + rng() % 200, 1 + rng() % 6, true);
      TestRound chain;
      chain.raw = tree.logits;
      chain.params.rule = rule == Rule::kTraversal ? Rule::kBlock : Rule::kToken;
      chain.params.temperature = 1;
      chain.params.seed = tree.draws.seed;
      chain.prompt.assign(static_cast<size_t>(tree.draws.base.value()), TokenId(0));
      chain.draft = tree.ids;
      chain.q = tree.q;
      chain.q.pop_back();
      // Kinds are a chain's, not a row's, and sparse rows may stand for all.
      chain.q_kind = QKind::kSparse;
      for (QRow& q : chain.q)
        if (q.ids.empty()) {
          for (size_t v = 0; v < q.weights.size(); ++v)
            if (q.weights[v] > 0) q.ids.push_back(static_cast<uint32_t>(v));
          std::erase(q.weights, 0u);
        }
      chain.round = tree.draws.round;
      const VerifyResult expected = verify_sharded({chain}, 2).front();
      const TreeOutcome outcome = on_ranks(rule, tree, 2);
      EXPECT_EQ(static_cast<int>(outcome.path.size()), expected.accepted_count) << rule_name(rule);
      EXPECT_EQ(outcome.next, expected.next) << rule_name(rule);
    }
}

}  // namespace
}  // namespace outrider
