// Verification on a CUDA device, or on its emulation: the results equal those of the host's rules, for any
// number of ranks and any transport between ranks.
#include "target_worker/cuda/device_verifier.h"

#include <gtest/gtest.h>

#include <latch>
#include <map>
#include <mutex>

#include "target_worker/successor_ranks.h"
#include "tests/target_worker/verify_support.h"

namespace outrider::cuda {
namespace {

enum class Link { kStaged, kPeer };

// Parents of the nodes of each round's tree. Empty: drafts are chains, verified without a tree verifier.
using Parents = std::vector<std::vector<int32_t>>;
std::vector<VerifyRequest> requests_with(const RankPass& pass, const Parents& parents) {
  std::vector<VerifyRequest> requests = pass.requests;
  for (size_t i = 0; i < parents.size(); ++i) requests[i].parents = parents[i];
  return requests;
}

std::vector<VerifyResult> verify_on_device(const std::vector<TestRound>& rounds, int ranks, Link link,
                                           VerifierStats* stats = nullptr, const Parents& parents = {}) {
  std::latch done(ranks);  // groups end together
  return verify_on_ranks(rounds, ranks, stats, [&](RankPass& pass, VerifierStats& own_stats) {
    use_device(0);
    auto group = link == Link::kStaged ? make_staged_group(pass.group) : make_peer_group(pass.group).value();
    Stream stream;
    DeviceBuffer<float> memory(static_cast<int64_t>(pass.shard.size()));
    copy(memory.data(), pass.shard.data(), memory.size(), stream);
    stream.synchronize();
    std::unique_ptr<Verifier> verifier = std::make_unique<DeviceVerifier>(
        *group, pass.group, VerifierLimits{.rows = pass.rows, .requests = pass.rows});
    if (!parents.empty()) verifier = make_tree_verifier(std::move(verifier), pass.group);
    const PinnedBuffer<float> room(memory.size());
    const LogitsShard host = pass.logits();
    const DeviceLogits logits{.logits = TensorView<float, 2>(memory.data(), host.logits.extents()),
                              .vocab_range = host.vocab_range,
                              .vocab_size = host.vocab_size,
                              .stream = stream,
                              .host_room = room.data()};
    pass.group.barrier();               // all allocations are done before a kernel waits for a peer
    EXPECT_EQ(verifier->busy_ns(), 0);  // it has had no work yet
    const auto results = verifier->verify(requests_with(pass, parents), logits);
    own_stats = verifier->stats();
    EXPECT_TRUE(verifier->busy_ns().has_value());
    done.arrive_and_wait();
    return results;
  });
}

void expect_same_logprobs(const std::vector<PositionLogprobs>& a, const std::vector<PositionLogprobs>& b,
                          const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  const auto same = [](const TokenLogprob& x, const TokenLogprob& y) {
    return x.id == y.id && x.logprob == y.logprob;
  };
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(same(a[i].chosen, b[i].chosen)) << what;
    EXPECT_TRUE(std::equal(a[i].top.begin(), a[i].top.end(), b[i].top.begin(), b[i].top.end(), same)) << what;
  }
}

void expect_host_verdicts(const std::vector<TestRound>& rounds, int ranks, Link link,
                          const std::string& what) {
  VerifierStats host_stats, device_stats;
  const auto expected = verify_sharded(rounds, 1, &host_stats);
  const auto results = verify_on_device(rounds, ranks, link, &device_stats);
  for (size_t i = 0; i < rounds.size(); ++i) {
    const auto text = what + ": request " + std::to_string(i) + " of rule " +
                      std::string(rule_name(rounds[i].params.rule)) + " on " + std::to_string(ranks) +
                      " ranks";
    ASSERT_EQ(results[i].status, expected[i].status) << text;
    ASSERT_EQ(results[i].accepted_count, expected[i].accepted_count) << text;
    ASSERT_EQ(results[i].next, expected[i].next) << text;
    expect_same_logprobs(results[i].logprobs, expected[i].logprobs, text);
  }
  ASSERT_EQ(device_stats.residual_fallbacks, host_stats.residual_fallbacks) << what;
  ASSERT_EQ(device_stats.q_zero_draws, host_stats.q_zero_draws) << what;
}

// A match rule: the chain of a round, and further nodes anywhere.
std::vector<int32_t> add_branches(std::mt19937_64& rng, TestRound& round) {
  std::vector<int32_t> parents;
  const size_t chain = round.draft.size(), all = chain + 1 + rng() % 8;
  for (size_t i = 0; i < all; ++i) {
    const bool is_branch = i >= chain;
    parents.push_back(static_cast<int32_t>(is_branch ? rng() % (i + 1) : i) - 1);
    if (!is_branch) continue;
    round.draft.emplace_back(static_cast<int32_t>(rng() % round.vocab_size()));
    round.raw.push_back(reference::random_logits(rng, round.vocab_size(), 3, 4));
  }
  return parents;
}

// A p/q rule whose child nodes are drawn independently. Nodes may be anywhere; nodes with children have a q.
std::vector<int32_t> grow_sampled_tree(std::mt19937_64& rng, Rule rule, TestRound& round) {
  round.params.rule = rule;
  round.q_kind = QKind::kSparse;
  std::vector<int32_t> parents;
  std::map<int32_t, QRow> q;
  for (size_t nodes = 1 + rng() % 8; parents.size() < nodes;) {
    const auto parent = static_cast<int32_t>(rng() % (parents.size() + 1)) - 1;
    if (!q.contains(parent))
      q[parent] = random_q(rng, round.raw[static_cast<size_t>(parent + 1)], QKind::kSparse, 9);
    parents.push_back(parent);
    round.draft.push_back(draw_token(q[parent], rng()));
    round.raw.push_back(reference::random_logits(rng, round.vocab_size(), 0.5f, 4));
  }
  for (auto& [node, row] : q) round.q.push_back(std::move(row));
  return parents;
}

class DeviceVerifierTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto devices = count_devices(); !devices.ok())
      GTEST_SKIP() << "no CUDA device: " << devices.status().message();
  }
};

// The tokens that are ranked before a pass overwrites the logits, on the device and on the host, for every
// row but one and over `ranks` ranks. Checks that every rank has the same tokens.
std::vector<TokenId> ranked(const TestRound& round, int ranks, bool on_device) {
  std::vector<TokenId> first;
  std::mutex mutex;
  std::latch done(ranks);
  verify_on_ranks({round}, ranks, nullptr, [&](RankPass& pass, VerifierStats&) {
    use_device(0);
    auto group = make_staged_group(pass.group);
    Stream stream;
    DeviceBuffer<float> memory(static_cast<int64_t>(pass.shard.size()));
    copy(memory.data(), pass.shard.data(), memory.size(), stream);
    stream.synchronize();
    const PinnedBuffer<float> room(memory.size());
    const LogitsShard host = pass.logits();
    const PlacedLogits device = DeviceLogits{.logits = {memory.data(), host.logits.extents()},
                                             .vocab_range = host.vocab_range,
                                             .vocab_size = host.vocab_size,
                                             .stream = stream,
                                             .host_room = room.data()};
    DeviceVerifier verifier(*group, pass.group, VerifierLimits{.rows = pass.rows, .requests = pass.rows});
    std::vector<int64_t> rows;
    for (int64_t r = pass.rows - 1; r > 0; --r) rows.push_back(r);
    SuccessorRanks successors(pass.group);
    successors.begin(rows, on_device ? device : PlacedLogits(host), verifier);
    const auto results = verifier.verify(pass.requests, device);
    const auto best = successors.finish(verifier);
    {
      const std::lock_guard lock(mutex);
      if (first.empty()) first.assign(best.begin(), best.end());
      EXPECT_TRUE(std::equal(best.begin(), best.end(), first.begin(), first.end()));
    }
    done.arrive_and_wait();
    return results;
  });
  return first;
}

TEST_F(DeviceVerifierTest, RanksRowsLikeTheHost) {
  std::mt19937_64 rng(31);
  for (const size_t vocab : {5, 9, 300, 5000})
    for (int kind = 0; kind < 3; ++kind) {
      TestRound round = random_round(rng, Rule::kGreedy, vocab, 4);
      round.params.repetition_penalty = 1.7f;  // changes what is drawn, and not what is ranked
      for (float& logit : round.raw[2]) logit = std::round(logit);  // ties
      const size_t somewhere = rng() % vocab;
      if (kind == 1) round.raw[3][somewhere] = std::numeric_limits<float>::quiet_NaN();
      if (kind == 2) {
        for (float& logit : round.raw[3]) logit = -std::numeric_limits<float>::infinity();
        round.raw[3][somewhere] = 1;
        round.raw[4][somewhere] = std::numeric_limits<float>::infinity();
      }
      const auto expected = ranked(round, 1, false);
      ASSERT_EQ(expected.size(), 4u * kSuccessors);
      for (const int ranks : {1, 3})
        EXPECT_EQ(ranked(round, ranks, true), expected) << vocab << " tokens, kind " << kind << ", " << ranks;
    }
}

class DeviceRule : public DeviceVerifierTest, public ::testing::WithParamInterface<Rule> {};

TEST_P(DeviceRule, EqualsTheHostOnAnyNumberOfRanks) {
  std::mt19937_64 rng(200 + static_cast<uint64_t>(GetParam()));
  const size_t sizes[] = {5, 37, 256, 1031, 4500};  // the last has several parts per rank
  for (int i = 0; i < 25; ++i) {
    const auto round = random_round(rng, GetParam(), sizes[i % 5], static_cast<int>(rng() % 6));
    const std::string pass = "pass " + std::to_string(i);
    expect_host_verdicts({round}, 1, Link::kStaged, pass);
    if (i % 4 == 0) expect_host_verdicts({round}, 3, Link::kStaged, pass + " staged");
    if (i % 4 == 2) expect_host_verdicts({round}, 4, Link::kPeer, pass + " peer");
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, DeviceRule,
                         ::testing::Values(Rule::kGreedy, Rule::kInvariant, Rule::kNaive, Rule::kToken,
                                           Rule::kBlock),
                         [](const auto& rule) { return std::string(rule_name(rule.param)); });

// The whole-row rules, without the sharded verifier of the host in between.
TEST_F(DeviceVerifierTest, EqualsTheOracle) {
  std::mt19937_64 rng(17);
  for (int i = 0; i < 30; ++i) {
    const auto round = random_round(rng, static_cast<Rule>(i % 5), 300, static_cast<int>(rng() % 5));
    const RuleOutcome expected = oracle(round);
    const auto result = verify_on_device({round}, 2, Link::kStaged).front();
    ASSERT_EQ(result.accepted_count, expected.accepted_count) << i;
    ASSERT_EQ(result.next, expected.next) << i;
  }
}

TEST_F(DeviceVerifierTest, MixedBatchesWithLogprobs) {
  std::mt19937_64 rng(18);
  for (int i = 0; i < 12; ++i) {
    std::vector<TestRound> rounds;
    for (int n = static_cast<int>(1 + rng() % 7); n > 0; --n) {
      rounds.push_back(random_round(rng, static_cast<Rule>(rng() % 5), 700, static_cast<int>(rng() % 5)));
      if (rng() % 3 == 0) rounds.back().params.logprobs = static_cast<int32_t>(rng() % 4);
    }
    expect_host_verdicts(rounds, 1 + i % 2, Link::kPeer, "batch " + std::to_string(i));
    if (HasFatalFailure()) return;
  }
}

TEST_F(DeviceVerifierTest, ARowWithoutADistributionMattersOnlyWhereTheTextComesToIt) {
  expect_damage_contained(19, 20, {1, 3}, [](const std::vector<TestRound>& rounds, int ranks) {
    return verify_on_device(rounds, ranks, Link::kStaged);
  });
}

// Match rules on the device, rules that need q on the host, and chains: in one pass.
TEST_F(DeviceVerifierTest, TreesAreDecidedAsTheHostDecidesThem) {
  std::mt19937_64 rng(21);
  int64_t accepted = 0;
  for (int i = 0; i < 12; ++i) {
    std::vector<TestRound> rounds;
    Parents parents;
    for (const Rule rule :
         {Rule::kGreedy, Rule::kInvariant, Rule::kNaive, Rule::kToken, Rule::kSpecInfer, Rule::kKSeq}) {
      if (i % 4 == 3 && !is_tree_rule(rule)) continue;  // nothing is left for the device
      const auto gamma = is_tree_rule(rule) ? 0 : static_cast<int>(rng() % 5);
      TestRound& round =
          rounds.emplace_back(random_round(rng, is_tree_rule(rule) ? Rule::kNaive : rule, 400, gamma));
      if (rng() % 3 == 0) round.params.logprobs = 2;
      parents.push_back(is_tree_rule(rule)     ? grow_sampled_tree(rng, rule, round)
                        : rule == Rule::kToken ? std::vector<int32_t>()
                                               : add_branches(rng, round));
    }
    const auto expected = verify_on_ranks(rounds, 1, nullptr, [&](RankPass& pass, VerifierStats&) {
      const auto verifier = make_tree_verifier(std::make_unique<ShardedVerifier>(pass.group), pass.group);
      return verifier->verify(requests_with(pass, parents), pass.logits());
    });
    const auto results = verify_on_device(rounds, 1 + i % 2, Link::kPeer, nullptr, parents);
    for (size_t r = 0; r < rounds.size(); ++r) {
      const std::string text = fmt::format("pass {}, rule {}", i, rule_name(rounds[r].params.rule));
      ASSERT_EQ(results[r].status, expected[r].status) << text;
      ASSERT_EQ(results[r].accepted_count, expected[r].accepted_count) << text;
      ASSERT_EQ(results[r].path, expected[r].path) << text;
      ASSERT_EQ(results[r].next, expected[r].next) << text;
      expect_same_logprobs(results[r].logprobs, expected[r].logprobs, text);
      accepted += static_cast<int64_t>(results[r].path.size());
    }
  }
  EXPECT_GT(accepted, 20);
}

// Adds a grammar mask to most rows. It allows very few tokens, almost all tokens, or about a half or a third.
void add_masks(std::mt19937_64& rng, TestRound& round, std::map<TokenSet::Form, int>& forms) {
  const auto vocab = static_cast<int32_t>(round.vocab_size());
  for (size_t row = 0; row < round.raw.size(); ++row) {
    if (rng() % 4 == 0) continue;
    const uint64_t kind = rng() % 4;
    std::vector<uint32_t> bits(words_of_bits(vocab));
    for (int32_t id = 0; id < vocab; ++id) {
      const bool is_in = kind == 0 ? rng() % 200 == 0 : kind == 1 ? rng() % 200 != 0 : rng() % kind == 0;
      bits[static_cast<size_t>(id / 32)] |= uint32_t{is_in} << (id % 32);
    }
    if (row < round.draft.size() && rng() % 2) {  // the draft is allowed
      const int32_t id = round.draft[row].value();
      bits[static_cast<size_t>(id / 32)] |= 1u << (id % 32);
    }
    round.masks.push_back({.row = static_cast<int32_t>(row), .allowed = token_set_of(bits, vocab)});
    ++forms[round.masks.back().allowed.form];
  }
}

TEST_F(DeviceVerifierTest, MasksAllowWhatTheyAllowOnTheHost) {
  std::mt19937_64 rng(22);
  std::map<TokenSet::Form, int> forms;
  for (int i = 0; i < 20; ++i) {
    std::vector<TestRound> rounds;
    for (const Rule rule : {Rule::kGreedy, Rule::kInvariant, Rule::kNaive, Rule::kToken, Rule::kBlock}) {
      rounds.push_back(random_round(rng, rule, i % 2 ? 4500 : 333, static_cast<int>(rng() % 5)));
      if (rng() % 5 != 0) add_masks(rng, rounds.back(), forms);
      if (rng() % 3 == 0) rounds.back().params.logprobs = 2;
    }
    expect_host_verdicts(rounds, 1 + i % 3, i % 2 ? Link::kPeer : Link::kStaged, "pass " + std::to_string(i));
    if (HasFatalFailure()) return;
  }
  for (const auto form : {TokenSet::Form::kOnly, TokenSet::Form::kAllBut, TokenSet::Form::kBits})
    EXPECT_GT(forms[form], 10);
}

// Rows of equal logits: every cut and every draw goes through ties.
TEST_F(DeviceVerifierTest, TiesAreCutAndDrawnById) {
  std::mt19937_64 rng(20);
  for (int i = 0; i < 20; ++i) {
    TestRound round = random_round(rng, i % 2 ? Rule::kNaive : Rule::kInvariant, 2500, 2);
    for (auto& row : round.raw)
      for (float& logit : row) logit = rng() % 3 == 0 ? 1.0f : 0.5f;
    round.params.top_k = i % 3 ? static_cast<int32_t>(1 + rng() % 2500) : 0;
    round.params.top_p = i % 3 ? 1 : 0.3f;
    expect_host_verdicts({round}, 1 + i % 3, Link::kStaged, "pass " + std::to_string(i));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace outrider::cuda
