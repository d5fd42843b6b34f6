// Trees under the rules that need q, from raw logits to results: equal to whole-row rules in text-book
// doubles, on any number of ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/target_worker/verify_support.h"
#include "tests/target_worker/whole_tree_rows.h"

namespace outrider {
namespace {

struct TreeRound {
  std::vector<std::vector<float>> raw;  // of the committed text, then of each node
  SamplingParams params;
  std::vector<TokenId> prompt;
  DraftTree tree;
  QKind q_kind = QKind::kSparse;
  std::vector<QRow> q;  // as RowNumbers has them
  Round round;

  Position base() const { return Position(static_cast<int32_t>(prompt.size())); }
  size_t vocab_size() const { return raw.front().size(); }
  std::vector<TokenId> path(int32_t node) const {
    std::vector<int32_t> nodes;
    path_to(tree, node, nodes);
    std::vector<TokenId> tokens;
    for (const int32_t on_path : nodes) tokens.push_back(tree.ids[static_cast<size_t>(on_path)]);
    return tokens;
  }
};

SamplingParams random_params(std::mt19937_64& rng, Rule rule) {
  SamplingParams params{.rule = rule, .temperature = 1.1f, .seed = Seed{rng()}};
  if (rng() % 3 == 0) params.top_k = 12;
  if (rng() % 3 == 0) params.top_p = 0.9f;
  if (rng() % 3 == 0) params.presence_penalty = 0.7f;
  if (rng() % 4 == 0) params.repetition_penalty = 1.3f;
  if (rng() % 4 == 0) params.logit_bias = {{TokenId(2), 1.5f}};
  return params;
}

TreeRound random_tree_round(std::mt19937_64& rng, Rule rule, size_t vocab_size, size_t nodes) {
  TreeRound round;
  round.params = random_params(rng, rule);
  round.round = Round(static_cast<uint32_t>(rng() % 50));
  round.q_kind = rng() % 2 ? QKind::kDense : QKind::kSparse;
  for (size_t i = 0; i < 1 + rng() % 5; ++i)
    round.prompt.emplace_back(static_cast<int32_t>(rng() % vocab_size));
  std::vector<QRow> q;  // of every node, the root first
  const auto add_rows = [&] {
    round.raw.push_back(reference::random_logits(rng, vocab_size, 2, 1e6f));
    q.push_back(random_q(rng, round.raw.back(), round.q_kind, 20));
  };
  add_rows();
  for (size_t i = 0; i < nodes; ++i) {
    const auto parent = static_cast<int32_t>(rng() % (round.tree.size() + 1)) - 1;
    std::vector<int32_t> siblings;
    children_of(round.tree, parent, siblings);
    std::vector<TokenId> gone;
    if (draws_without_replacement(rule))
      for (const int32_t sibling : siblings) gone.push_back(round.tree.ids[static_cast<size_t>(sibling)]);
    const auto token = draw_token_without(q[static_cast<size_t>(parent + 1)], gone, rng());
    if (!token) continue;
    round.tree.ids.push_back(*token);
    round.tree.parents.push_back(parent);
    add_rows();
  }
  for (int32_t node = kTreeRoot; node < static_cast<int32_t>(round.tree.size()); ++node)
    if (has_children(round.tree, node)) round.q.push_back(q[static_cast<size_t>(node + 1)]);
  return round;
}

struct Expected {
  bool finite = true;
  std::vector<int32_t> path;
  TokenId next;
};

// Behind a row that is not finite nothing is tested; a text that ends in front of one ends there.
Expected expected_of(const TreeRound& round, const std::vector<bool>& is_bad) {
  if (is_bad[0]) return {.finite = false, .path = {}, .next = TokenId()};
  const RowNumbers numbers(round.tree);
  DraftTree tested;
  std::vector<int32_t> place(round.tree.size(), -2), node_of;
  std::vector<std::vector<double>> p, q;
  const auto add = [&](int32_t node) {
    p.emplace_back(round.vocab_size(), 0.0);
    q.emplace_back();
    const auto row = static_cast<size_t>(node + 1);
    if (is_bad[row]) return;
    const auto weights =
        reference::weights(reference::process(round.raw[row], round.params, round.prompt, round.path(node)));
    const auto total = static_cast<double>(reference::sum(weights));
    for (size_t v = 0; v < weights.size(); ++v) p.back()[v] = static_cast<double>(weights[v]) / total;
    for (size_t i = 0; i < round.tree.size(); ++i)
      if (round.tree.parents[i] == node) q.back() = q_of(round.q[numbers.of(i)], round.vocab_size());
  };
  add(kTreeRoot);
  for (size_t i = 0; i < round.tree.size(); ++i) {
    const int32_t parent = round.tree.parents[i];
    const int32_t above = parent == kTreeRoot ? kTreeRoot : place[static_cast<size_t>(parent)];
    if (above == -2 || is_bad[static_cast<size_t>(parent + 1)]) continue;
    place[i] = static_cast<int32_t>(node_of.size());
    node_of.push_back(static_cast<int32_t>(i));
    tested.ids.push_back(round.tree.ids[i]);
    tested.parents.push_back(above);
    add(static_cast<int32_t>(i));
  }
  CountedTreeRows rows(tested, {.seed = round.params.seed, .round = round.round, .base = round.base()},
                       std::move(p), std::move(q));
  const TreeOutcome outcome = decide_tree(round.params.rule, tested, rows);
  Expected expected{.finite = true, .path = {}, .next = outcome.next};
  for (const int32_t node : outcome.path) expected.path.push_back(node_of[static_cast<size_t>(node)]);
  if (!expected.path.empty() && is_bad[static_cast<size_t>(expected.path.back() + 1)]) {
    expected.next = round.tree.ids[static_cast<size_t>(expected.path.back())];
    expected.path.pop_back();
  }
  return expected;
}

VerifyResult verify_on_rank(const TreeRound& round, Collectives& group) {
  const auto vocab_size = static_cast<int64_t>(round.vocab_size());
  const IndexRange range = vocab_range(vocab_size, {group.rank(), group.size()});
  std::vector<float> shard;
  for (const auto& row : round.raw)
    shard.insert(shard.end(), row.begin() + range.begin, row.begin() + range.end);
  TokenCounts counts;
  counts.add_prompt(round.prompt);
  VerifyRequest request{.sampling = &round.params,
                        .round = round.round,
                        .base = round.base(),
                        .draft = round.tree.ids,
                        .parents = round.tree.parents,
                        .q_kind = round.q_kind,
                        .q = round.q,
                        .counts = &counts};
  std::vector<QRow> slices;
  std::vector<uint64_t> drafted;
  if (round.q_kind == QKind::kDense) {  // every rank has its own ids
    const RowNumbers numbers(round.tree);
    for (const QRow& row : round.q) {
      const auto size = static_cast<int64_t>(row.weights.size());
      slices.push_back({.weights = {row.weights.begin() + std::min(range.begin, size),
                                    row.weights.begin() + std::min(range.end, size)},
                        .sum = row.sum});
    }
    for (size_t i = 0; i < round.tree.size(); ++i)
      drafted.push_back(weight_in(round.q[numbers.of(i)], round.tree.ids[i]));
    request.q_kind = QKind::kSlices;
    request.q = slices;
    request.q_drafted = drafted;
  }
  const auto verifier = make_tree_verifier(std::make_unique<ShardedVerifier>(group), group);
  return verifier
      ->verify({&request, 1},
               LogitsShard{
                   TensorView<float, 2>(shard.data(), {static_cast<int64_t>(round.raw.size()), range.size()}),
                   range,
                   vocab_size,
                   {}})
      .front();
}

void expect_verdict(const TreeRound& round, const Expected& expected, int ranks, const std::string& what) {
  std::vector<VerifyResult> results(static_cast<size_t>(ranks));
  reference::run_ranks(ranks, [&](Collectives& group) {
    results[static_cast<size_t>(group.rank())] = verify_on_rank(round, group);
  });
  for (const VerifyResult& result : results) {
    ASSERT_EQ(result.status == VerdictStatus::kOk, expected.finite) << what;
    if (!expected.finite) continue;
    EXPECT_EQ(result.path, expected.path) << what;
    EXPECT_EQ(result.accepted_count, static_cast<int>(expected.path.size())) << what;
    EXPECT_EQ(result.next, expected.next) << what;
    const size_t wanted = round.params.logprobs < 0 ? 0 : expected.path.size() + 1;
    ASSERT_EQ(result.logprobs.size(), wanted) << what;
    for (size_t i = 0; i < wanted; ++i) {
      const auto row = round.raw[i == 0 ? 0 : static_cast<size_t>(expected.path[i - 1]) + 1];
      const TokenId token =
          i < expected.path.size() ? round.tree.ids[static_cast<size_t>(expected.path[i])] : expected.next;
      double sum = 0;
      for (const float logit : row) sum += std::exp(static_cast<double>(logit));
      EXPECT_EQ(result.logprobs[i].chosen.id, token);
      EXPECT_NEAR(result.logprobs[i].chosen.logprob, row[static_cast<size_t>(token.value())] - std::log(sum),
                  1e-3);
      EXPECT_EQ(result.logprobs[i].top.size(), static_cast<size_t>(round.params.logprobs));
    }
  }
}

TEST(SampledTrees, DecideAsWholeRowsDoOnAnyNumberOfRanks) {
  std::mt19937_64 rng(53);
  for (const Rule rule : kTreeRules) {
    size_t accepted = 0, deep = 0;
    for (int trial = 0; trial < 60; ++trial) {
      TreeRound round = random_tree_round(rng, rule, 30 + rng() % 200, 1 + rng() % 14);
      if (trial % 4 == 0) round.params.logprobs = 2;
      const Expected expected = expected_of(round, std::vector<bool>(round.raw.size()));
      for (const int ranks : {1, 2, 4, 8})
        expect_verdict(round, expected, ranks,
                       std::string(rule_name(rule)) + " trial " + std::to_string(trial) + " on " +
                           std::to_string(ranks));
      accepted += expected.path.size();
      deep += expected.path.size() > 1;
    }
    EXPECT_GT(accepted, 30u) << rule_name(rule);
    EXPECT_GT(deep, 5u) << rule_name(rule);
  }
}

TEST(SampledTrees, RowsThatAreNotFiniteMatterWhereTheTextComesToThem) {
  std::mt19937_64 rng(59);
  int cut = 0, failed = 0;
  for (const Rule rule : kTreeRules)
    for (int trial = 0; trial < 60; ++trial) {
      TreeRound round = random_tree_round(rng, rule, 60, 8);
      round.params.top_k = 0;
      std::vector<bool> is_bad(round.raw.size());
      for (size_t row = 0; row < is_bad.size(); ++row) {
        if (rng() % (row == 0 ? 20 : 3) > 0) continue;
        is_bad[row] = true;
        round.raw[row][rng() % 60] = rng() % 2 ? NAN : std::numeric_limits<float>::infinity();
      }
      const Expected expected = expected_of(round, is_bad);
      for (const int ranks : {1, 4}) expect_verdict(round, expected, ranks, std::to_string(trial));
      failed += !expected.finite;
      if (!expected.finite) continue;
      const int32_t next =
          child_with(round.tree, expected.path.empty() ? kTreeRoot : expected.path.back(), expected.next);
      cut += next != kTreeRoot && is_bad[static_cast<size_t>(next + 1)];
    }
  EXPECT_GT(cut, 10) << "texts that end in front of such a row";
  EXPECT_GT(failed, 3);
}

}  // namespace
}  // namespace outrider
