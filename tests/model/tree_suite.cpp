#include "tests/model/tree_suite.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/model/model_suite.h"

namespace outrider {
namespace testing {

std::vector<int32_t> TokenTree::path(int32_t node) const {
  std::vector<int32_t> nodes;
  for (; node >= 0; node = parents[static_cast<size_t>(node)]) nodes.push_back(node);
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

bool TokenTree::is_leaf(int32_t node) const { return std::count(parents.begin(), parents.end(), node) == 0; }

TokenTree random_tree(std::mt19937& random, int64_t vocab) {
  TokenTree tree;
  const auto nodes = 1 + random() % 32, deepest = 1 + random() % 8, widest = 1 + random() % 4;
  for (size_t i = 0; i < nodes; ++i) {
    // The nodes that may have one more child; the place in front of the tree always may.
    std::vector<int32_t> open{-1};
    for (int32_t node = 0; node < static_cast<int32_t>(i); ++node)
      if (tree.path(node).size() < deepest &&
          std::count(tree.parents.begin(), tree.parents.end(), node) < static_cast<int64_t>(widest))
        open.push_back(node);
    tree.parents.push_back(open[random() % open.size()]);
  }
  tree.ids = random_ids(static_cast<int>(nodes), vocab, random());
  return tree;
}

namespace {

std::vector<TokenId> joined(std::span<const TokenId> text, const TokenTree& tree,
                            std::span<const int32_t> path) {
  std::vector<TokenId> ids(text.begin(), text.end());
  for (const int32_t node : path) ids.push_back(tree.ids[static_cast<size_t>(node)]);
  return ids;
}

// One sequence of a round.
struct Text {
  std::vector<TokenId> ids;  // in front of the tree
  TokenTree tree;
  KvHandle sequence, twin;  // the twin shares what was there before the pass
  uint64_t twin_hash = 0;
  std::vector<TokenId> inputs;
  size_t first_row = 0;  // of its nodes, among the rows with logits
};

class SuiteRound {
 public:
  SuiteRound(Model& model, std::mt19937& random, const TreeTexts& texts)
      : model_(model), kv_(model.kv()), random_(random), vocab_(model.config().vocab_size) {
    for (size_t i = 0; i < 3; ++i) texts_.push_back(begin(texts));
  }

  void pass() {
    std::vector<BatchSlice> batch;
    size_t rows = 0;
    for (Text& text : texts_) {
      const auto inputs = static_cast<int64_t>(text.inputs.size()),
                 nodes = static_cast<int64_t>(text.tree.ids.size());
      const int64_t with_logits = std::min(inputs, nodes + 1);
      text.first_row = rows + static_cast<size_t>(with_logits - nodes);
      rows += static_cast<size_t>(with_logits);
      batch.push_back({.sequence = text.sequence,
                       .tokens = text.inputs,
                       .logit_rows = with_logits,
                       .parents = text.tree.parents});
    }
    auto logits = model_.forward(batch);
    ASSERT_TRUE(logits.ok()) << logits.status().message();
    got_ = rows_of(logits->logits);
    width_ = got_.size() / rows;
  }

  void expect_nodes_equal_chains() {
    for (const Text& text : texts_) {
      const KvHandle base = prefilled(text.ids);
      for (int32_t leaf = 0; leaf < static_cast<int32_t>(text.tree.ids.size()); ++leaf) {
        if (!text.tree.is_leaf(leaf)) continue;
        const auto path = text.tree.path(leaf);
        const auto chain = chain_logits(base, joined({}, text.tree, path));
        for (size_t depth = 0; depth < path.size(); ++depth) {
          const auto* row = got_.data() + (text.first_row + static_cast<size_t>(path[depth])) * width_;
          ASSERT_EQ(std::memcmp(row, chain.data() + depth * width_, width_ * sizeof(float)), 0)
              << "node " << path[depth] << " of " << text.tree.ids.size() << " behind " << text.ids.size()
              << " tokens";
        }
      }
      kv_.release(base);
    }
  }

  // A prefix of a path stays, all of it or nothing; siblings that share blocks see none of it.
  void expect_kept_path_equals_prefill() {
    for (Text& text : texts_) {
      const auto nodes = static_cast<int32_t>(text.tree.ids.size());
      auto path = text.tree.path(nodes == 0 ? -1 : static_cast<int32_t>(random_() % text.tree.ids.size()));
      if (random_() % 4 == 0) path.resize(random_() % (path.size() + 1));
      const bool is_shared = random_() % 3 == 0;
      const KvHandle late = is_shared ? kv_.fork(text.sequence) : kv_.create();
      const uint64_t late_hash = kv_.content_hash(late);
      const auto base = static_cast<int64_t>(text.ids.size());
      const Status status = kv_.keep_path(text.sequence, base, path);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(kv_.length(text.sequence), base + static_cast<int64_t>(path.size()));
      ASSERT_TRUE(kv_.check_invariants().ok()) << kv_.check_invariants().message();

      const auto kept = joined(text.ids, text.tree, path);
      const KvHandle fresh = prefilled(kept);
      ASSERT_EQ(kv_.content_hash(text.sequence), kv_.content_hash(fresh)) << "behind " << base << " tokens";
      EXPECT_EQ(kv_.content_hash(late), late_hash);
      EXPECT_EQ(kv_.content_hash(text.twin), text.twin_hash);
      kv_.release(late);
      expect_same_next(text.sequence, fresh);
      kv_.release(fresh);
      kv_.release(text.sequence);
      kv_.release(text.twin);
    }
    ASSERT_TRUE(kv_.check_invariants().ok()) << kv_.check_invariants().message();
    ASSERT_EQ(kv_.free_blocks(), kv_.num_blocks());
  }

 private:
  Text begin(const TreeTexts& texts) {
    Text text;
    const auto length = static_cast<size_t>(texts.shortest) +
                        random_() % static_cast<size_t>(texts.longest - texts.shortest + 1);
    text.ids = random_ids(static_cast<int>(length), vocab_, random_());
    if (random_() % 5 != 0) text.tree = random_tree(random_, vocab_);
    if (text.ids.empty() && text.tree.ids.empty()) text.ids = random_ids(1, vocab_, random_());
    // Most of the text is there, as before a verification; the rest goes through with the tree.
    const size_t before =
        text.ids.empty() ? 0 : text.ids.size() - std::min(text.ids.size(), 1 + random_() % 3);
    text.sequence = prefilled(std::span(text.ids).first(before));
    text.twin = kv_.fork(text.sequence);
    text.twin_hash = kv_.content_hash(text.twin);
    text.inputs.assign(text.ids.begin() + static_cast<ptrdiff_t>(before), text.ids.end());
    text.inputs.insert(text.inputs.end(), text.tree.ids.begin(), text.tree.ids.end());
    return text;
  }

  KvHandle prefilled(std::span<const TokenId> ids) {
    const KvHandle sequence = kv_.create();
    const BatchSlice prefill{sequence, ids, 0};
    if (!ids.empty()) {
      EXPECT_TRUE(model_.forward({&prefill, 1}).ok());
    }
    return sequence;
  }

  std::vector<float> chain_logits(KvHandle base, std::span<const TokenId> ids) {
    const KvHandle sequence = kv_.fork(base);
    const BatchSlice slice{sequence, ids, static_cast<int64_t>(ids.size())};
    auto logits = model_.forward({&slice, 1});
    EXPECT_TRUE(logits.ok());
    kv_.release(sequence);
    return rows_of(logits->logits);
  }

  void expect_same_next(KvHandle kept, KvHandle fresh) {
    const auto id = random_ids(1, vocab_, random_());
    const BatchSlice slices[]{{kept, id, 1}, {fresh, id, 1}};
    auto logits = model_.forward(slices);
    ASSERT_TRUE(logits.ok());
    const auto a = logits->logits.row(0), b = logits->logits.row(1);
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size_bytes()), 0);
  }

  Model& model_;
  KvCache& kv_;
  std::mt19937& random_;
  int64_t vocab_;
  std::vector<Text> texts_;
  std::vector<float> got_;
  size_t width_ = 0;
};

}  // namespace

void expect_trees_equal_chains(Model& model, uint32_t seed, int rounds, const TreeTexts& texts) {
  std::mt19937 random(seed);
  for (int i = 0; i < rounds && !::testing::Test::HasFatalFailure(); ++i) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(i));
    SuiteRound round(model, random, texts);
    round.pass();
    round.expect_nodes_equal_chains();
    round.expect_kept_path_equals_prefill();
  }
}

}  // namespace testing

namespace {

using testing::golden_model;
using testing::load_or_die;
using testing::suite_device;

class TreeTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string reason = testing::no_suite_device(); !reason.empty()) GTEST_SKIP() << reason;
  }
  static ModelOptions options() {
    return {.device = suite_device(),
            .threads = 2,
            .bytes_per_thread = 1,
            .max_logit_rows = 128,
            .kv_tokens = 1024};
  }
};

TEST_P(TreeTest, NodesHaveTheBitsOfTheirChains) {
  auto single = make_single_collectives();
  const auto model = load_or_die(golden_model(GetParam()), options(), *single);
  testing::expect_trees_equal_chains(*model, 1, testing::suite_tree_rounds());
}

TEST_P(TreeTest, AlsoOnSeveralRanks) {
  for (int tp_size : {2, 4})
    testing::run_group(tp_size, [&](Collectives& group) {
      ModelOptions split = options();
      split.shard = {group.rank(), tp_size};
      const auto model = load_or_die(golden_model(GetParam()), split, group);
      testing::expect_trees_equal_chains(*model, 2, (testing::suite_tree_rounds() + 1) / 2);
    });
}

// However a chain is written, and wherever its slice begins.
TEST_P(TreeTest, AChainOfParentsIsAChain) {
  auto single = make_single_collectives();
  const auto model = load_or_die(golden_model(GetParam()), options(), *single);
  const auto ids = testing::random_ids(24, model->config().vocab_size, 3);
  std::vector<int32_t> parents;
  for (int32_t i = 0; i < 20; ++i) parents.push_back(i - 1);
  KvCache& kv = model->kv();
  const KvHandle chain = kv.create(), written = kv.create();
  const BatchSlice plain{chain, ids, 24};
  const auto expected = testing::rows_of(model->forward({&plain, 1}).value().logits);
  const BatchSlice slice{.sequence = written, .tokens = ids, .logit_rows = 24, .parents = parents};
  EXPECT_TRUE(testing::same_bits(expected, testing::rows_of(model->forward({&slice, 1}).value().logits)));
  EXPECT_FALSE(place_of(slice, kv).is_tree());
  EXPECT_EQ(kv.content_hash(chain), kv.content_hash(written));
  const std::vector<int32_t> kept{0, 1, 2};
  ASSERT_TRUE(kv.keep_path(written, 4, kept).ok());
  kv.truncate(chain, 7);
  EXPECT_EQ(kv.content_hash(chain), kv.content_hash(written));
}

INSTANTIATE_TEST_SUITE_P(Goldens, TreeTest, ::testing::ValuesIn(testing::suite_models()),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

TEST(TreeDeath, ParentsAreEarlierNodes) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  if (const std::string reason = testing::no_suite_device(); !reason.empty()) GTEST_SKIP() << reason;
  auto single = make_single_collectives();
  const auto model = load_or_die(golden_model("llama2"), {.device = suite_device()}, *single);
  const KvHandle sequence = model->kv().create();
  const auto ids = testing::random_ids(3, model->config().vocab_size, 1);
  const auto pass = [&](std::vector<int32_t> parents) {
    const BatchSlice slice{.sequence = sequence, .tokens = ids, .logit_rows = 1, .parents = parents};
    return model->forward({&slice, 1}).ok();
  };
  EXPECT_DEATH(pass({-1, 1, 0}), "node 1 follows node 1");
  EXPECT_DEATH(pass({-1, 2, 0}), "node 1 follows node 2");
  EXPECT_DEATH(pass({-1, -2, 0}), "node 1 follows node -2");
  EXPECT_DEATH(pass({-1, 0, 1, 2}), "4 parents of 3 tokens");
  EXPECT_TRUE(pass({-1, -1, 0}));
  EXPECT_DEATH((void)model->kv().keep_path(sequence, 0, std::vector<int32_t>{2, 1}), "node 1 of a tree");
  EXPECT_DEATH((void)model->kv().keep_path(sequence, 0, std::vector<int32_t>{0, 3}), "node 3 of a tree");
}

}  // namespace
}  // namespace outrider
