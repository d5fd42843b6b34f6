// Verification of trees: a walk from the root that follows the decision at each row.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "target_worker/sharded_verifier.h"

namespace outrider {
namespace {

constexpr int kVocab = 50;

DraftTree random_tree(std::mt19937& random, int nodes, int vocab) {
  DraftTree tree;
  while (static_cast<int>(tree.size()) < nodes) {
    const auto parent = static_cast<int32_t>(random() % (tree.size() + 1)) - 1;
    const TokenId id(static_cast<int32_t>(random() % static_cast<uint32_t>(vocab)));
    if (child_with(tree, parent, id) != kTreeRoot) continue;
    tree.ids.push_back(id);
    tree.parents.push_back(parent);
  }
  return tree;
}

// Logits whose best token is below `likely`, so that trees of such ids are often right.
std::vector<float> random_logits(std::mt19937& random, size_t rows, int likely) {
  std::vector<float> logits(rows * kVocab);
  for (size_t i = 0; i < logits.size(); ++i)
    logits[i] = static_cast<float>(random() % 1000) / 250 + (static_cast<int>(i % kVocab) < likely ? 3 : 0);
  return logits;
}

LogitsShard shard_of(std::vector<float>& logits) {
  return {
      .logits = TensorView<float, 2>(logits.data(), {static_cast<int64_t>(logits.size()) / kVocab, kVocab}),
      .vocab_range = {0, kVocab},
      .vocab_size = kVocab};
}

class TreeVerification : public ::testing::Test {
 protected:
  // The token that plain decoding chooses after a node.
  TokenId plain(std::vector<float> row, const SamplingParams& sampling, Position position,
                const TokenCounts& counts) {
    ShardedVerifier verifier(*single_);
    const VerifyRequest request{
        .sequence = SequenceId(1), .sampling = &sampling, .base = position, .counts = &counts};
    const auto& results = verifier.verify({&request, 1}, shard_of(row));
    return results[0].status == VerdictStatus::kOk ? results[0].next : TokenId(-1);
  }

  std::unique_ptr<Collectives> single_ = make_single_collectives();
  std::unique_ptr<Verifier> verifier_ =
      make_tree_verifier(std::make_unique<ShardedVerifier>(*single_), *single_);
};

// Beside chains, which the same pass verifies as ever.
TEST_F(TreeVerification, FollowsWhatPlainDecodingWouldChoose) {
  std::mt19937 random(3);
  int64_t deep = 0;
  for (int repeat = 0; repeat < 300; ++repeat) {
    const SamplingParams params[] = {
        {},
        {.rule = Rule::kInvariant, .temperature = 1, .seed = Seed{random()}},
        {.rule = Rule::kInvariant, .temperature = 0.7f, .top_k = 9, .seed = Seed{random()}},
        {.rule = Rule::kNaive, .temperature = 1, .seed = Seed{random()}},
        {.rule = Rule::kGreedy, .repetition_penalty = 1.5f, .presence_penalty = 1, .logprobs = 2}};
    const SamplingParams& sampling = params[repeat % 5];
    TokenCounts counts;
    counts.add_output(TokenId(1));
    const DraftTree tree = random_tree(random, 1 + static_cast<int>(random() % 40), 2);
    const DraftTree chain({TokenId(0), TokenId(1)});
    std::vector<float> logits = random_logits(random, tree.size() + 1 + chain.size() + 1, 2);
    const std::vector<float> raw = logits;
    const Position base(30);
    const std::vector<VerifyRequest> requests{{.sequence = SequenceId(1),
                                               .sampling = &sampling,
                                               .base = base,
                                               .draft = chain.ids,
                                               .first_row = 0,
                                               .counts = &counts},
                                              {.sequence = SequenceId(2),
                                               .sampling = &sampling,
                                               .base = base,
                                               .draft = tree.ids,
                                               .parents = tree.parents,
                                               .first_row = static_cast<int64_t>(chain.size()) + 1,
                                               .counts = &counts}};
    const std::vector<VerifyResult> results = verifier_->verify(requests, shard_of(logits));
    for (size_t e = 0; e < 2; ++e) {
      const DraftTree& draft = e == 0 ? chain : tree;
      int32_t node = kTreeRoot;
      TokenCounts seen = counts;
      std::vector<int32_t> path;
      TokenId next;
      while (true) {
        const auto row = static_cast<size_t>(requests[e].first_row + node + 1);
        next = plain({raw.begin() + static_cast<ptrdiff_t>(row * kVocab),
                      raw.begin() + static_cast<ptrdiff_t>((row + 1) * kVocab)},
                     sampling, base + static_cast<int32_t>(path.size()), seen);
        seen.add_output(next);
        node = child_with(draft, node, next);
        if (node == kTreeRoot) break;
        path.push_back(node);
      }
      ASSERT_EQ(results[e].accepted_count, static_cast<int>(path.size()));
      ASSERT_EQ(results[e].next, next);
      ASSERT_EQ(results[e].path, e == 0 ? std::vector<int32_t>() : path);
      ASSERT_EQ(results[e].logprobs.size(), sampling.logprobs < 0 ? 0 : path.size() + 1);
      deep += path.size() > 2;
    }
  }
  EXPECT_GT(deep, 15);
}

TEST_F(TreeVerification, RowsThatAreNotFiniteMatterOnThePathOnly) {
  // 3 ( 4, 5 ( 6 ) ), 7
  const DraftTree tree({TokenId(3), TokenId(4), TokenId(5), TokenId(6), TokenId(7)}, {-1, 0, 0, 2, -1});
  const SamplingParams sampling;
  const VerifyRequest request{.sequence = SequenceId(1),
                              .sampling = &sampling,
                              .base = Position(4),
                              .draft = tree.ids,
                              .parents = tree.parents};
  const auto verify = [&](std::vector<int> bad_rows) {
    std::vector<float> logits(6 * kVocab);
    const int chosen[] = {3, 5, 9, 6, 8, 9};  // of the root, then of each node
    for (size_t row = 0; row < 6; ++row) logits[row * kVocab + static_cast<size_t>(chosen[row])] = 1;
    for (const int row : bad_rows) logits[static_cast<size_t>(row) * kVocab + 20] = NAN;
    return verifier_->verify({&request, 1}, shard_of(logits))[0];
  };
  using Path = std::vector<int32_t>;
  EXPECT_EQ(verify({}).path, (Path{0, 2, 3}));
  EXPECT_EQ(verify({}).next, TokenId(8));
  EXPECT_EQ(verify({2, 5}).path, (Path{0, 2, 3})) << "nodes that the text does not come to";
  EXPECT_EQ(verify({4}).path, (Path{0, 2})) << "the last node: its token stands";
  EXPECT_EQ(verify({4}).next, TokenId(6));
  EXPECT_EQ(verify({1, 3}).path, Path());
  EXPECT_EQ(verify({1, 3}).next, TokenId(3));
  EXPECT_EQ(verify({1, 3}).status, VerdictStatus::kOk);
  EXPECT_EQ(verify({0}).status, VerdictStatus::kNonFinite);
}

}  // namespace
}  // namespace outrider
