// One verification round as data, its verdict by the whole-row rules with the engine's fixed-point draws (the
// oracle), and the sharded verdict on any number of ranks.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "comm/messages/draft_forms.h"
#include "comm/messages/verifying.h"
#include "comm/q_rows.h"
#include "kernels/sampling/draft_sampler.h"
#include "target_worker/acceptance_rule.h"
#include "target_worker/sharded_verifier.h"
#include "tests/kernels/sampling/reference.h"

namespace outrider {

struct TestRound {                      // everything one request brings to one pass
  std::vector<std::vector<float>> raw;  // gamma + 1 rows
  SamplingParams params;
  std::vector<TokenId> prompt, output;  // committed; base is their length
  std::vector<TokenId> draft;
  QKind q_kind = QKind::kNone;
  std::vector<QRow> q;
  Round round{0};
  std::vector<TokenMask> masks = {};  // of rows

  Position base() const { return Position(static_cast<int32_t>(prompt.size() + output.size())); }
  size_t vocab_size() const { return raw.front().size(); }
};

inline std::vector<double> q_of(const QRow& row, size_t vocab_size) {
  std::vector<double> q(vocab_size, 0);
  std::fill_n(q.begin(), row.id_end, static_cast<double>(row.rest) / static_cast<double>(row.sum));
  for (size_t i = 0; i < row.weights.size(); ++i)
    q[row.ids.empty() ? i : row.ids[i]] = static_cast<double>(row.weights[i]) / static_cast<double>(row.sum);
  return q;
}

// The draws of the counter streams, sums and samples in fixed point.
class FixedPointDraws final : public RuleDraws {
 public:
  FixedPointDraws(const TestRound& round, std::vector<std::vector<uint64_t>> weights)
      : round_(round), weights_(std::move(weights)) {}

  double accept_uniform(int i) override {
    return draw_uniform(seed(), Purpose::kAccept, round_.base() + i, round_.round);
  }
  float noise(int row, TokenId token) override {
    return static_cast<float>(draw_gumbel(seed(), round_.base() + row, token));
  }
  double mass(std::span<const double> weights) override {
    return static_cast<double>(reference::sum(quantised(weights))) * 0x1p-60;
  }
  TokenId draw_target(int row) override {
    return reference::inverse_cdf(weights_[static_cast<size_t>(row)], bits(row));
  }
  TokenId draw_residual(int row, std::span<const double> weights) override {
    return reference::inverse_cdf(quantised(weights), bits(row));
  }

 private:
  Seed seed() const { return round_.params.seed; }
  uint64_t bits(int row) const {
    const bool plain = round_.params.rule == Rule::kNaive || round_.draft.empty();
    return draw_u64(seed(), plain ? Purpose::kPlain : Purpose::kResidual, round_.base() + row,
                    plain ? Round(0) : round_.round);
  }
  static std::vector<uint64_t> quantised(std::span<const double> weights) {
    std::vector<uint64_t> result;
    for (double w : weights) result.push_back(static_cast<uint64_t>(std::llrint(w * 0x1p60)));
    return result;
  }

  const TestRound& round_;
  std::vector<std::vector<uint64_t>> weights_;
};

inline RuleOutcome oracle(const TestRound& round) {
  std::vector<std::vector<float>> logits;
  std::vector<std::vector<uint64_t>> weights;
  std::vector<std::vector<double>> p, q;
  std::vector<TokenId> output = round.output;
  for (size_t i = 0; i < round.raw.size(); ++i) {
    logits.push_back(reference::process(round.raw[i], round.params, round.prompt, output));
    weights.push_back(reference::weights(logits.back()));
    const auto total = static_cast<double>(reference::sum(weights.back()));
    p.emplace_back();
    for (uint64_t w : weights.back()) p.back().push_back(static_cast<double>(w) / total);
    if (i < round.draft.size()) output.push_back(round.draft[i]);
  }
  for (const QRow& row : round.q) q.push_back(q_of(row, round.vocab_size()));
  FixedPointDraws draws(round, weights);
  Rule rule = round.params.temperature < kGreedyTemperature ? Rule::kGreedy : round.params.rule;
  if (needs_q(rule) && round.draft.empty()) rule = Rule::kNaive;  // plain decoding of one token
  return acceptance_rule(rule).decide({.draft = round.draft, .logits = logits, .p = p, .q = q}, draws);
}

// The outcome of a round in which row `bad` has no distribution. The tokens before that row are verified, and
// their outcome stands. If every token before it is accepted, the last one becomes the next token, and row
// `bad` is computed again as the first row of the next round. Empty if row `bad` is the first row of this
// round.
// this round.
inline std::optional<RuleOutcome> oracle_before(const TestRound& round, size_t bad) {
  if (bad == 0) return std::nullopt;
  TestRound finite = round;
  finite.raw[bad] = finite.raw[bad - 1];  // what stands there must not matter
  finite.raw.resize(bad + 1);
  finite.draft.resize(bad);
  if (!finite.q.empty()) finite.q.resize(bad);
  RuleOutcome outcome = oracle(finite);
  if (outcome.accepted_count == static_cast<int>(bad))
    outcome = {outcome.accepted_count - 1, round.draft[bad - 1]};
  return outcome;
}

inline TokenCounts counts_of(const TestRound& round) {
  TokenCounts counts;
  counts.add_prompt(round.prompt);
  counts.add_output(round.output);
  return counts;
}

// Requests for one pass over all rounds. Row order in the pass is reversed against the requests, so that
// first_row matters. They view rounds and counts.
inline std::vector<VerifyRequest> requests_of(const std::vector<TestRound>& rounds,
                                              std::vector<TokenCounts>& counts) {
  std::vector<VerifyRequest> requests(rounds.size());
  counts.clear();
  for (const TestRound& round : rounds) counts.push_back(counts_of(round));
  int64_t rows = 0;
  for (size_t i = rounds.size(); i-- > 0;) {
    const TestRound& round = rounds[i];
    requests[i] = {.sampling = &round.params,
                   .round = round.round,
                   .base = round.base(),
                   .draft = round.draft,
                   .q_kind = round.q_kind,
                   .q = round.q,
                   .first_row = rows,
                   .counts = &counts[i],
                   .masks = round.masks};
    rows += static_cast<int64_t>(round.raw.size());
  }
  return requests;
}

// The raw logits of one rank, [rows, range.size()].
inline std::vector<float> shard_of(const std::vector<TestRound>& rounds,
                                   const std::vector<VerifyRequest>& requests, int64_t rows,
                                   IndexRange range) {
  std::vector<float> shard(static_cast<size_t>(rows * range.size()));
  for (size_t i = 0; i < rounds.size(); ++i)
    for (size_t r = 0; r < rounds[i].raw.size(); ++r)
      std::copy(rounds[i].raw[r].begin() + range.begin, rounds[i].raw[r].begin() + range.end,
                shard.begin() + (requests[i].first_row + static_cast<int64_t>(r)) * range.size());
  return shard;
}

// One rank's inputs of a forward pass.
struct RankPass {
  Collectives& group;
  const std::vector<VerifyRequest>& requests;
  std::vector<float> shard;  // [rows, range.size()]: raw logits, to be overwritten
  int64_t rows = 0;
  IndexRange range;
  int64_t vocab_size = 0;

  LogitsShard logits() {
    return {TensorView<float, 2>(shard.data(), {rows, range.size()}), range, vocab_size, {}};
  }
};

// One rank's part of dense rows that arrived in slices.
struct SlicedRows {
  std::vector<QRow> rows;
  std::vector<uint64_t> drafted;
};
inline SlicedRows slice_of(const TestRound& round, IndexRange range) {
  SlicedRows sliced;
  for (size_t i = 0; i < round.q.size(); ++i) {
    const auto& weights = round.q[i].weights;
    const auto size = static_cast<int64_t>(weights.size());
    sliced.rows.push_back({.ids = {},
                           .weights = {weights.begin() + std::min(range.begin, size),
                                       weights.begin() + std::min(range.end, size)},
                           .sum = round.q[i].sum});
    sliced.drafted.push_back(QView{{}, weights, 0}.weight(round.draft[i]));
  }
  return sliced;
}

// One pass over all rounds with the vocabulary split over `ranks`, each of which calls `verify(pass, stats)`
// for its results; expects every rank to say the same. Every other round with dense q brings it in slices.
template <class Verify>
std::vector<VerifyResult> verify_on_ranks(const std::vector<TestRound>& rounds, int ranks,
                                          VerifierStats* stats, Verify verify) {
  const auto vocab_size = static_cast<int64_t>(rounds.front().vocab_size());
  std::vector<TokenCounts> counts;
  const auto requests = requests_of(rounds, counts);
  int64_t rows = 0;
  for (const TestRound& round : rounds) rows += static_cast<int64_t>(round.raw.size());
  std::vector<std::vector<VerifyResult>> results(static_cast<size_t>(ranks));
  std::vector<VerifierStats> all_stats(static_cast<size_t>(ranks));
  reference::run_ranks(ranks, [&](Collectives& group) {
    const auto rank = static_cast<size_t>(group.rank());
    const IndexRange range = vocab_range(vocab_size, {group.rank(), group.size()});
    std::vector<VerifyRequest> own = requests;
    std::vector<SlicedRows> sliced(rounds.size());
    for (size_t i = 0; i < rounds.size(); i += 2) {
      if (rounds[i].q_kind != QKind::kDense) continue;
      sliced[i] = slice_of(rounds[i], range);
      own[i].q_kind = QKind::kSlices;
      own[i].q = sliced[i].rows;
      own[i].q_drafted = sliced[i].drafted;
    }
    RankPass pass{group, own, shard_of(rounds, requests, rows, range), rows, range, vocab_size};
    results[rank] = verify(pass, all_stats[rank]);
  });
  for (const auto& other : results)
    for (size_t i = 0; i < rounds.size(); ++i) {
      EXPECT_EQ(other[i].status, results[0][i].status);
      EXPECT_EQ(other[i].accepted_count, results[0][i].accepted_count);
      EXPECT_EQ(other[i].next, results[0][i].next);
    }
  if (stats != nullptr) *stats = all_stats.front();
  return results.front();
}

// By the host's verifier.
inline std::vector<VerifyResult> verify_sharded(const std::vector<TestRound>& rounds, int ranks,
                                                VerifierStats* stats = nullptr) {
  return verify_on_ranks(rounds, ranks, stats, [](RankPass& pass, VerifierStats& own_stats) {
    ShardedVerifier verifier(pass.group);
    const auto results = verifier.verify(pass.requests, pass.logits());
    own_stats = verifier.stats();
    return results;
  });
}

// q from logits that resemble the target's, in the draft worker's form: integer weights, dense or sparse.
// Sparse rows have the best m tokens, and the remaining tokens share one equal weight or have none.
inline QRow random_q(std::mt19937_64& rng, const std::vector<float>& near, QKind kind, size_t m) {
  std::vector<float> row = near;
  std::normal_distribution<float> noise(0, 0.5f);
  for (float& logit : row) logit += noise(rng);
  std::vector<uint32_t> weights(row.size());
  fill_draft_weights(row, *std::max_element(row.begin(), row.end()), weights);
  QRow q;
  if (kind == QKind::kDense) {
    q.weights = weights;
  } else {
    std::vector<uint32_t> ids;
    for (size_t v : reference::order(row)) ids.push_back(static_cast<uint32_t>(v));
    ids.resize(std::min(m, ids.size()));
    std::erase_if(ids, [&](uint32_t id) { return weights[id] == 0; });
    std::sort(ids.begin(), ids.end());
    for (uint32_t id : ids) q.weights.push_back(weights[id]);
    q.ids = ids;
    if (rng() % 2 == 0) {
      q.rest = 1 + *std::min_element(q.weights.begin(), q.weights.end()) / 50;
      q.id_end = static_cast<uint32_t>(row.size() - rng() % (row.size() - ids.back()));
    }
  }
  q.sum = sum_of(q);
  return q;
}

// A round with everything random: the rule's parameters, filters, penalties, a draft that is often good.
inline TestRound random_round(std::mt19937_64& rng, Rule rule, size_t vocab_size, int gamma) {
  const auto chance = [&](int one_in) { return rng() % static_cast<uint64_t>(one_in) == 0; };
  const auto any_token = [&] { return TokenId(static_cast<int32_t>(rng() % vocab_size)); };
  const auto pick = [&](std::vector<float> values) { return values[rng() % values.size()]; };
  TestRound round;
  round.params.rule = rule;
  round.params.seed = Seed{rng()};
  round.params.temperature = rule == Rule::kGreedy ? 0 : pick({0.3f, 0.7f, 1, 1.7f});
  if (chance(3)) round.params.top_k = static_cast<int32_t>(1 + rng() % (vocab_size + 3));
  if (chance(3)) round.params.top_p = pick({0.05f, 0.5f, 0.9f, 0.999f});
  if (chance(4)) round.params.min_p = pick({0.01f, 0.2f, 1});
  if (chance(4)) round.params.repetition_penalty = pick({0.8f, 1.3f});
  if (chance(4)) round.params.presence_penalty = pick({-1, 0.7f});
  if (chance(4)) round.params.frequency_penalty = pick({-0.2f, 0.4f});
  if (chance(4)) round.params.logit_bias = {{any_token(), 3.5f}, {any_token(), -100}};
  round.round = Round(static_cast<uint32_t>(rng() % 100));
  for (uint64_t n = 1 + rng() % 9; n > 0; --n) round.prompt.push_back(any_token());
  for (uint64_t n = rng() % 9; n > 0; --n) round.output.push_back(any_token());
  round.q_kind = !needs_q(rule) || gamma == 0 ? QKind::kNone : chance(2) ? QKind::kDense : QKind::kSparse;
  for (int i = 0; i <= gamma; ++i) {
    round.raw.push_back(reference::random_logits(rng, vocab_size, pick({0.5f, 3}), pick({4, 1e6f})));
    if (i == gamma) break;
    std::vector<TokenId> before = round.output;
    before.insert(before.end(), round.draft.begin(), round.draft.end());
    const auto processed = reference::process(round.raw.back(), round.params, round.prompt, before);
    TokenId x = any_token();
    if (round.q_kind != QKind::kNone) {
      round.q.push_back(random_q(rng, processed, round.q_kind, 1 + rng() % 20));
      x = draw_token(round.q.back(), rng());
    } else if (!chance(5)) {
      const Position position = round.base() + i;
      x = rule == Rule::kGreedy ? reference::argmax(processed)
          : rule == Rule::kInvariant
              ? reference::gumbel_argmax(processed, round.params.seed, position)
              : reference::inverse_cdf(reference::weights(processed),
                                       draw_u64(round.params.seed, Purpose::kPlain, position, Round(0)));
    }
    round.draft.push_back(x);
  }
  return round;
}

// Takes the distribution of one of the round's rows away, and returns which.
inline size_t damage(std::mt19937_64& rng, TestRound& round) {
  const float bad_values[] = {std::nanf(""), -std::nanf(""), std::numeric_limits<float>::infinity()};
  const size_t bad = rng() % round.raw.size();
  auto& row = round.raw[bad];
  if (const size_t kind = rng() % 4; kind < 3) {
    row[rng() % row.size()] = bad_values[kind];
  } else {
    std::fill(row.begin(), row.end(), reference::kMasked);
    round.params.logit_bias.clear();
  }
  return bad;
}

// A row without a distribution matters to its own request only, on every rank, wherever the bad number sits,
// and only if the tokens in front of it are accepted.
template <class Verify>
void expect_damage_contained(uint64_t seed, int passes, std::vector<int> rank_counts, Verify verify) {
  std::mt19937_64 rng(seed);
  int failed = 0, cut = 0, unharmed = 0;
  for (int i = 0; i < passes; ++i) {
    std::vector<TestRound> rounds;
    for (int rule = 0; rule < 5; ++rule) rounds.push_back(random_round(rng, static_cast<Rule>(rule), 90, 4));
    const size_t victim = static_cast<size_t>(i) % 5;
    const size_t bad = damage(rng, rounds[victim]);
    for (int ranks : rank_counts) {
      const std::vector<VerifyResult> results = verify(rounds, ranks);
      for (size_t r = 0; r < rounds.size(); ++r) {
        const auto expected = r == victim ? oracle_before(rounds[r], bad) : oracle(rounds[r]);
        const std::string text = "pass " + std::to_string(i) + ", request " + std::to_string(r) + ", row " +
                                 std::to_string(bad) + ", " + std::to_string(ranks) + " ranks";
        ASSERT_EQ(results[r].status, expected ? VerdictStatus::kOk : VerdictStatus::kNonFinite) << text;
        if (!expected) {
          ++failed;
          continue;
        }
        ASSERT_EQ(results[r].accepted_count, expected->accepted_count) << text;
        ASSERT_EQ(results[r].next, expected->next) << text;
        if (r == victim) ++(static_cast<size_t>(expected->accepted_count) + 1 == bad ? cut : unharmed);
      }
    }
  }
  EXPECT_GT(failed, 0);
  EXPECT_GT(cut, 0);
  EXPECT_GT(unharmed, 0);
}

}  // namespace outrider
