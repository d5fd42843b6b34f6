// Models with recurrent states (gated delta nets): after any history of drafts that were accepted and
// rejected, chains and trees, forks, prefixes that were found again, and passes through the first layers, a
// text has the logits of a fresh prefill, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "model/exited_tokens.h"
#include "tests/model/model_suite.h"
#include "tests/model/tree_suite.h"

namespace outrider {
namespace {

using testing::random_ids;
using testing::random_tree;
using testing::rows_of;
using testing::TokenTree;

// Texts of one model. Every rank of a group calls it alike.
class History {
 public:
  History(Model& model, uint32_t seed)
      : model_(model), kv_(model.kv()), random_(seed), vocab_(model.config().vocab_size) {
    for (int i = 0; i < 3; ++i) texts_.push_back({.sequence = kv_.create(), .ids = some(1 + below(20))});
    for (Text& text : texts_) pass(text, text.ids, 0, {});
  }
  ~History() {
    for (const Text& text : texts_) kv_.release(text.sequence);
    if (prefix_) kv_.cut(*prefix_, 0);
  }

  void step() {
    Text& text = texts_[below(texts_.size())];
    switch (below(9)) {
      case 0:
      case 1:
        return verify_together();
      case 2:
        return verify_tree(text);
      case 3:
        return draft_one_by_one(text);
      case 4:
        return shorten(text);
      case 5:
        return fork(text);
      case 6:
        return find_prefix(text);
      case 7:
        return exit_early(text);
      default:
        return pass_and_keep(text, some(1 + below(9)), below(2));
    }
  }

  // The next token of every text, in a pass of all; then it is taken back.
  void expect_fresh_prefills() {
    const auto next = some(texts_.size());
    std::vector<BatchSlice> batch;
    for (size_t i = 0; i < texts_.size(); ++i)
      batch.push_back({texts_[i].sequence, std::span(next).subspan(i, 1), 1});
    const auto got = rows_of(model_.forward(batch).value().logits);
    const size_t width = got.size() / texts_.size();
    for (size_t i = 0; i < texts_.size(); ++i) {
      std::vector<TokenId> ids = texts_[i].ids;
      ids.push_back(next[i]);
      const KvHandle fresh = kv_.create();
      const BatchSlice slice{fresh, ids, 1};
      const auto expected = rows_of(model_.forward({&slice, 1}).value().logits);
      ASSERT_EQ(std::memcmp(got.data() + i * width, expected.data(), width * sizeof(float)), 0)
          << "text " << i << " of " << ids.size() << " tokens";
      ASSERT_EQ(kv_.content_hash(fresh), kv_.content_hash(texts_[i].sequence));
      kv_.release(fresh);
      kv_.truncate(texts_[i].sequence, static_cast<int64_t>(texts_[i].ids.size()));
    }
  }

 private:
  struct Text {
    KvHandle sequence;
    std::vector<TokenId> ids;
  };

  size_t below(size_t count) { return random_() % count; }
  std::vector<TokenId> some(size_t count) {
    return random_ids(static_cast<int>(count), vocab_, static_cast<uint32_t>(random_()));
  }
  void pass(const Text& text, std::span<const TokenId> ids, int64_t logit_rows,
            std::span<const int32_t> parents) {
    const BatchSlice slice{
        .sequence = text.sequence, .tokens = ids, .logit_rows = logit_rows, .parents = parents};
    ASSERT_TRUE(model_.forward({&slice, 1}).ok());
  }
  void pass_and_keep(Text& text, std::vector<TokenId> ids, size_t logit_rows) {
    pass(text, ids, static_cast<int64_t>(logit_rows), {});
    text.ids.insert(text.ids.end(), ids.begin(), ids.end());
    bound(text);
  }
  // One token and a draft for every text, of which some are accepted.
  void verify_together() {
    std::vector<std::vector<TokenId>> inputs;
    std::vector<BatchSlice> batch;
    for (size_t i = 0; i < texts_.size(); ++i) inputs.push_back(some(1 + below(7)));
    for (size_t i = 0; i < texts_.size(); ++i)
      batch.push_back({texts_[i].sequence, inputs[i], static_cast<int64_t>(inputs[i].size())});
    ASSERT_TRUE(model_.forward(batch).ok());
    for (size_t i = 0; i < texts_.size(); ++i) {
      const auto kept = static_cast<ptrdiff_t>(1 + below(inputs[i].size()));
      texts_[i].ids.insert(texts_[i].ids.end(), inputs[i].begin(), inputs[i].begin() + kept);
      kv_.truncate(texts_[i].sequence, static_cast<int64_t>(texts_[i].ids.size()));
      bound(texts_[i]);
    }
  }
  void verify_tree(Text& text) {
    const TokenTree tree = random_tree(random_, vocab_);
    std::vector<TokenId> inputs = some(below(4));
    text.ids.insert(text.ids.end(), inputs.begin(), inputs.end());
    inputs.insert(inputs.end(), tree.ids.begin(), tree.ids.end());
    pass(text, inputs, static_cast<int64_t>(std::min(inputs.size(), tree.ids.size() + 1)), tree.parents);
    auto path = tree.path(static_cast<int32_t>(below(tree.ids.size())));
    path.resize(below(path.size() + 1));
    ASSERT_TRUE(kv_.keep_path(text.sequence, static_cast<int64_t>(text.ids.size()), path).ok());
    for (const int32_t node : path) text.ids.push_back(tree.ids[static_cast<size_t>(node)]);
    bound(text);
  }
  // As a draft model: every token in a pass of its own, and then most of them taken back.
  void draft_one_by_one(Text& text) {
    const auto draft = some(1 + below(6));
    for (const TokenId& id : draft) pass(text, {&id, 1}, 1, {});
    const auto kept = static_cast<ptrdiff_t>(below(draft.size() + 1));
    text.ids.insert(text.ids.end(), draft.begin(), draft.begin() + kept);
    kv_.truncate(text.sequence, static_cast<int64_t>(text.ids.size()));
    bound(text);
  }
  void shorten(Text& text) {
    text.ids.resize(1 + below(text.ids.size()));
    kv_.truncate(text.sequence, static_cast<int64_t>(text.ids.size()));
  }
  void fork(Text& text) {
    Text& other = texts_[below(texts_.size())];
    if (&other == &text) return;
    kv_.release(other.sequence);
    other = {.sequence = kv_.fork(text.sequence), .ids = text.ids};
  }
  // Another text goes on from the beginning of what was kept.
  void find_prefix(Text& text) {
    if (prefix_) {
      const size_t length = 1 + below(prefix_ids_.size());
      kv_.release(text.sequence);
      text = {.sequence = kv_.create(*prefix_, static_cast<int64_t>(length)),
              .ids = {prefix_ids_.begin(), prefix_ids_.begin() + static_cast<ptrdiff_t>(length)}};
      kv_.cut(*prefix_, 0);
      prefix_.reset();
      return;
    }
    prefix_ = kv_.keep(text.sequence, static_cast<int64_t>(text.ids.size()));
    prefix_ids_ = text.ids;
  }
  // Drafts of the first layers, from which the whole pass goes on.
  void exit_early(Text& text) {
    const int64_t layers = 1 + static_cast<int64_t>(below(static_cast<size_t>(model_.config().num_layers)));
    const auto draft = some(2 + below(4));
    const auto length = static_cast<int64_t>(text.ids.size());
    ExitedTokens exited;
    exited.begin(length, static_cast<int64_t>(draft.size()));
    ExitedTokens* const keep = &exited;
    const size_t exits = 1 + below(draft.size());
    for (size_t i = 0; i < exits; ++i) {
      const BatchSlice slice{text.sequence, std::span(draft).subspan(i, 1), 1};
      ASSERT_TRUE(model_.forward_first({&slice, 1}, layers, {&keep, 1}).ok());
    }
    kv_.truncate(text.sequence, length);
    const BatchSlice slice{.sequence = text.sequence,
                           .tokens = draft,
                           .logit_rows = static_cast<int64_t>(draft.size()),
                           .exited = &exited};
    ASSERT_TRUE(model_.forward({&slice, 1}).ok());
    const auto kept = static_cast<ptrdiff_t>(below(draft.size() + 1));
    text.ids.insert(text.ids.end(), draft.begin(), draft.begin() + kept);
    kv_.truncate(text.sequence, static_cast<int64_t>(text.ids.size()));
    bound(text);
  }
  void bound(Text& text) {
    if (text.ids.size() > 80) shorten(text);
  }

  Model& model_;
  KvCache& kv_;
  std::mt19937 random_;
  const int64_t vocab_;
  std::vector<Text> texts_;
  std::optional<KvPrefix> prefix_;
  std::vector<TokenId> prefix_ids_;
};

class RecurrentStatesTest : public ::testing::TestWithParam<const char*> {};

TEST_P(RecurrentStatesTest, AnyHistoryHasTheBitsOfAFreshPrefill) {
  if (const std::string reason = testing::no_suite_device(); !reason.empty()) GTEST_SKIP() << reason;
  const int part = testing::suite_tree_rounds() == 1 ? 4 : 1;  // the emulation takes its time
  // A device has room for a few states, and those of further sequences are computed anew.
  for (const auto& [ranks, kv, states, most_steps] : {std::tuple{1, ModelOptions::Kv::kFloat32, 0, 80},
                                                      {1, ModelOptions::Kv::kBFloat16, 2, 30},
                                                      {2, ModelOptions::Kv::kFloat32, 0, 30},
                                                      {8, ModelOptions::Kv::kFloat32, 1, 12}}) {
    const int steps = most_steps / part;
    testing::run_group(ranks, [&](Collectives& group) {
      const auto model = testing::load_or_die(testing::golden_model(GetParam()),
                                              {.device = testing::suite_device(),
                                               .shard = {group.rank(), ranks},
                                               .threads = 2,
                                               .bytes_per_thread = 1,
                                               .kv_tokens = 1024,
                                               .state_sequences = states,
                                               .kv = kv},
                                              group);
      {
        History history(*model, static_cast<uint32_t>(ranks));
        for (int i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) {
          SCOPED_TRACE(fmt::format("{} ranks, step {}", ranks, i));
          history.step();
          history.expect_fresh_prefills();
        }
      }
      EXPECT_EQ(model->kv().free_blocks(), model->kv().num_blocks());
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RecurrentStatesTest,
                         ::testing::Values("qwen3-next", "qwen3.5", "qwen3.5-moe"), [](const auto& of) {
                           std::string name = of.param;
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

}  // namespace
}  // namespace outrider
