#include "draft_worker/drafter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/hash.h"
#include "comm/q_rows.h"
#include "kernels/sampling/draft_sampler.h"
#include "tests/support/test_models.h"

namespace outrider {
namespace {

constexpr SequenceId kSequence(1);
constexpr int kVocab = 302;

std::vector<TokenId> random_ids(int count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids;
  for (int i = 0; i < count; ++i) ids.emplace_back(static_cast<int32_t>(random() % kVocab));
  return ids;
}

struct ModelAndDrafter {
  std::unique_ptr<Collectives> single = make_single_collectives();
  std::unique_ptr<Model> model = testing::load_or_die(
      testing::golden_model("qwen3"), {.max_rows = 16, .max_positions = 100, .kv_tokens = 400}, *single);
  std::unique_ptr<Drafter> drafter = make_model_drafter(*model, {.max_sequences = 2});
};

// As the loop of a worker would: until the round is answered.
Result<Draft> draft_now(Drafter& drafter, const Propose& propose) {
  RETURN_IF_ERROR(drafter.begin(propose));
  std::vector<DraftAnswer> answers;
  while (answers.empty()) CHECK(drafter.work(answers), "a round was begun and never answered");
  RETURN_IF_ERROR(answers[0].status);
  return std::move(answers[0].draft);
}

Propose propose(int base, std::vector<TokenId> committed, int gamma, uint32_t round = 1,
                QKind kind = QKind::kNone, Pipeline pipeline = Pipeline::kLockstep) {
  return {.sequence = kSequence,
          .round = Round(round),
          .base = Position(base),
          .committed = std::move(committed),
          .gamma = gamma,
          .q_kind = kind,
          .row_bytes = 24,
          .pipeline = pipeline,
          .fanout = 6};
}

// Whatever was drafted, accepted, rejected or merely read before: the next draft is that of a fresh worker.
TEST(ModelDrafter, HistoryLeavesNoTrace) {
  for (const SamplingParams& sampling :
       {SamplingParams{},
        SamplingParams{.rule = Rule::kInvariant, .temperature = 1, .repetition_penalty = 1.2f},
        SamplingParams{.rule = Rule::kToken, .temperature = 1, .top_k = 20}}) {
    ModelAndDrafter worker;
    std::mt19937 random(3);
    std::vector<TokenId> truth = random_ids(5, 1);
    ASSERT_TRUE(
        worker.drafter->open({.sequence = kSequence, .ids = truth, .prompt_length = 5, .sampling = sampling})
            .ok());
    const QKind kind = sampling.rule == Rule::kToken ? QKind::kSparse : QKind::kNone;
    std::vector<TokenId> unseen;
    for (uint32_t round = 1; round < 12; ++round) {
      const int gamma = static_cast<int>(random() % 6);  // 0 is among them
      const auto base = static_cast<int>(truth.size());
      auto draft = draft_now(*worker.drafter, propose(base, unseen, gamma, round, kind));
      ASSERT_TRUE(draft.ok()) << draft.status().message();
      EXPECT_EQ(draft->ids.size(), static_cast<size_t>(gamma));
      EXPECT_EQ(draft->prefix_hash, prefix_hash(truth));

      ModelAndDrafter fresh;
      Open open{.sequence = kSequence, .ids = truth, .prompt_length = 5, .sampling = sampling};
      ASSERT_TRUE(fresh.drafter->open(open).ok());
      auto expected = draft_now(*fresh.drafter, propose(base, {}, gamma, round, kind));
      ASSERT_TRUE(expected.ok());
      EXPECT_EQ(draft->ids, expected->ids) << "round " << round;
      ASSERT_EQ(draft->q.size(), expected->q.size());
      for (size_t i = 0; i < draft->q.size(); ++i) {
        EXPECT_EQ(draft->q[i].weights, expected->q[i].weights);
        EXPECT_TRUE(validate_q_row(kind, draft->q[i], draft->ids[i], kVocab).ok());
      }
      const size_t accepted = random() % (draft->ids.size() + 1);
      unseen.assign(draft->ids.begin(), draft->ids.begin() + static_cast<ptrdiff_t>(accepted));
      unseen.push_back(random_ids(1, random())[0]);
      truth.insert(truth.end(), unseen.begin(), unseen.end());
      ASSERT_TRUE(worker.model->kv().check_invariants().ok());
    }
    worker.drafter->close(kSequence);
    EXPECT_EQ(worker.model->kv().free_blocks(), worker.model->kv().num_blocks());
  }
}

// With a window the model drafts what it would draft after the first and the last tokens of the text alone,
// whatever was accepted since, prepared ahead or grown as a tree.
class WindowedModel : public ::testing::TestWithParam<std::pair<Pipeline, TreeShape>> {};

TEST_P(WindowedModel, DraftsAsAfterTheTextWithoutItsMiddle) {
  constexpr int kLength = 60, kSinks = 3, kWindow = 12;
  const auto& [pipeline, tree] = GetParam();
  ModelAndDrafter windowed, shortened;
  windowed.drafter =
      make_model_drafter(*windowed.model, {.max_sequences = 2, .window = kWindow, .sinks = kSinks});
  std::vector<TokenId> text = random_ids(kLength, 1), read(text.begin(), text.begin() + kSinks);
  read.insert(read.end(), text.end() - kWindow, text.end());
  const auto open = [](Drafter& drafter, const std::vector<TokenId>& ids) {
    const auto length = static_cast<int32_t>(ids.size());
    ASSERT_TRUE(
        drafter.open({.sequence = kSequence, .ids = ids, .prompt_length = length, .sampling = {}}).ok());
  };
  open(*windowed.drafter, text);
  open(*shortened.drafter, read);
  std::mt19937 random(3);
  std::vector<TokenId> unseen;
  for (uint32_t round = 1; round < 9; ++round) {
    Propose whole = propose(static_cast<int>(text.size()), unseen, 4, round, QKind::kNone, pipeline);
    Propose part = propose(static_cast<int>(read.size()), unseen, 4, round, QKind::kNone, pipeline);
    whole.tree = part.tree = tree;
    const auto draft = draft_now(*windowed.drafter, whole), expected = draft_now(*shortened.drafter, part);
    ASSERT_TRUE(draft.ok() && expected.ok());
    EXPECT_EQ(draft->ids, expected->ids) << "round " << round;
    EXPECT_EQ(draft->parents, expected->parents) << "round " << round;
    EXPECT_EQ(draft->prefix_hash, prefix_hash(text));
    EXPECT_EQ(draft->base.value(), static_cast<int32_t>(text.size()));
    for (ModelAndDrafter* worker : {&windowed, &shortened}) {  // prepares for the verdict
      std::vector<DraftAnswer> none;
      for (int i = 0; i < 6; ++i) (void)worker->drafter->work(none);
    }
    const size_t accepted = tree.is_chain() ? random() % (draft->ids.size() + 1) : 0;
    unseen.assign(draft->ids.begin(), draft->ids.begin() + static_cast<ptrdiff_t>(accepted));
    unseen.push_back(tree.is_chain() ? random_ids(1, random())[0] : draft->ids.front());
    for (auto* ids : {&text, &read}) ids->insert(ids->end(), unseen.begin(), unseen.end());
    ASSERT_TRUE(windowed.model->kv().check_invariants().ok());
  }
  windowed.drafter->close(kSequence);
  EXPECT_EQ(windowed.model->kv().free_blocks(), windowed.model->kv().num_blocks());
}

INSTANTIATE_TEST_SUITE_P(
    Forms, WindowedModel,
    ::testing::Values(std::pair{Pipeline::kLockstep, TreeShape{}}, std::pair{Pipeline::kFanout, TreeShape{}},
                      std::pair{Pipeline::kLockstep, TreeShape{.widths = {3, 2}}},
                      std::pair{Pipeline::kFanout, TreeShape{.widths = {}, .nodes = 10}}));

// Shared randomness belongs to positions of the whole text: where it decides alone, a window changes no
// token.
TEST(ModelDrafter, AWindowLeavesPositionsAsTheyAre) {
  const SamplingParams noise{.rule = Rule::kInvariant, .temperature = 1e4f, .seed = Seed{5}};
  ModelAndDrafter whole, windowed;
  windowed.drafter = make_model_drafter(*windowed.model, {.max_sequences = 2, .window = 12, .sinks = 3});
  const std::vector<TokenId> text = random_ids(60, 1);
  std::vector<std::vector<TokenId>> drafts;
  for (ModelAndDrafter* worker : {&whole, &windowed}) {
    ASSERT_TRUE(
        worker->drafter->open({.sequence = kSequence, .ids = text, .prompt_length = 60, .sampling = noise})
            .ok());
    auto draft = draft_now(*worker->drafter, propose(60, {}, 6));
    ASSERT_TRUE(draft.ok());
    drafts.push_back(draft->ids);
  }
  EXPECT_EQ(drafts[0], drafts[1]);
}

// A text that went on without the worker by more tokens than the window is prefilled from the window on, and
// costs no more than a new text.
TEST(ModelDrafter, AWindowBoundsEveryPrefill) {
  ModelAndDrafter worker;
  worker.drafter = make_model_drafter(*worker.model, {.max_sequences = 2, .window = 12, .sinks = 3});
  std::vector<TokenId> text = random_ids(40, 1);
  ASSERT_TRUE(
      worker.drafter->open({.sequence = kSequence, .ids = text, .prompt_length = 40, .sampling = {}}).ok());
  ASSERT_TRUE(draft_now(*worker.drafter, propose(40, {}, 2)).ok());
  const std::vector<TokenId> more = random_ids(30, 2);
  text.insert(text.end(), more.begin(), more.end());
  ASSERT_TRUE(worker.drafter->begin(propose(70, more, 1, 2)).ok());
  std::vector<DraftAnswer> answers;
  int passes = 0;  // of at most 16 rows
  for (; answers.empty(); ++passes) ASSERT_TRUE(worker.drafter->work(answers));
  EXPECT_LE(passes, 2) << "15 tokens, then the answer";
  EXPECT_EQ(answers[0].draft.prefix_hash, prefix_hash(text));
}

// A sequence reuses the prefix that another open or closed sequence has prefilled, and its draft equals that
// of a fresh worker. A text with another salt is prefilled whole. Kept texts are evicted when their memory is
// needed.
TEST(ModelDrafter, TextsThatBeginAlikeAreReadOnce) {
  ModelAndDrafter worker;
  worker.drafter = make_model_drafter(*worker.model, {.max_sequences = 3, .kept_texts = 2});
  const std::vector<TokenId> prompt = random_ids(70, 1);
  const SamplingParams sampling{.rule = Rule::kToken, .temperature = 1, .top_k = 20};
  std::optional<Draft> first;
  // The passes that a draft of two tokens takes, of at most 16 rows each.
  const auto passes = [&](uint64_t sequence, std::vector<TokenId> ids, uint64_t salt = 0) {
    const auto length = static_cast<int32_t>(ids.size());
    EXPECT_TRUE(worker.drafter
                    ->open({.sequence = SequenceId(sequence),
                            .ids = ids,
                            .prompt_length = length,
                            .sampling = sampling,
                            .salt = salt})
                    .ok());
    Propose asked = propose(length, {}, 2, 1, QKind::kSparse);
    asked.sequence = SequenceId(sequence);
    EXPECT_TRUE(worker.drafter->begin(asked).ok());
    std::vector<DraftAnswer> answers;
    int count = 0;
    for (; answers.empty(); ++count) EXPECT_TRUE(worker.drafter->work(answers));
    EXPECT_TRUE(answers[0].status.ok()) << answers[0].status.message();
    if (ids == prompt) {
      if (!first) first = answers[0].draft;
      EXPECT_EQ(answers[0].draft.ids, first->ids);
      EXPECT_EQ(answers[0].draft.q[0].weights, first->q[0].weights);
    }
    EXPECT_TRUE(worker.model->kv().check_invariants().ok());
    return count;
  };
  const int whole = passes(1, prompt);
  EXPECT_GE(whole, 6);
  EXPECT_EQ(passes(2, prompt), whole - 4) << "the first one is open";
  worker.drafter->close(SequenceId(1));
  worker.drafter->close(SequenceId(2));
  EXPECT_EQ(passes(3, prompt), whole - 4) << "they are closed";
  EXPECT_EQ(passes(4, prompt, 9), whole) << "another salt";
  worker.drafter->close(SequenceId(3));
  worker.drafter->close(SequenceId(4));
  auto other = prompt;
  other[40] = TokenId(7);
  EXPECT_EQ(passes(5, other), whole - 3);
  for (uint64_t sequence = 6; sequence < 8; ++sequence) passes(sequence, random_ids(90, sequence));
  for (uint64_t sequence = 5; sequence < 8; ++sequence) worker.drafter->close(SequenceId(sequence));
  for (uint64_t sequence = 8; sequence < 11; ++sequence) passes(sequence, random_ids(95, sequence));
  for (uint64_t sequence = 8; sequence < 11; ++sequence) worker.drafter->close(SequenceId(sequence));
  worker.drafter.reset();
  EXPECT_EQ(worker.model->kv().free_blocks(), worker.model->kv().num_blocks());
}

// Behind every node of a tree stand the tokens that a chain would begin with there, whatever was drafted
// before: the best one is what a draft of the text up to the node gets. That a tree grew on while it was
// verified, and became the next one, changes nothing.
class TreesOfAModel : public ::testing::TestWithParam<Pipeline> {};

TEST_P(TreesOfAModel, EveryNodeIsWhatAChainWouldDraft) {
  int branching = 0, hits = 0, looked_up = 0;
  for (const SamplingParams& sampling :
       {SamplingParams{}, SamplingParams{.rule = Rule::kInvariant, .temperature = 1, .seed = Seed{5}},
        SamplingParams{
            .rule = Rule::kInvariant, .temperature = 0.6f, .top_k = 40, .repetition_penalty = 1.2f}})
    for (const TreeShape& shape : {TreeShape{.widths = {3, 2, 2}}, TreeShape{.widths = {}, .nodes = 10}}) {
      ModelAndDrafter worker, other;
      std::mt19937 random(3);
      std::vector<TokenId> truth = random_ids(5, 1), unseen;
      const Open open{.sequence = kSequence, .ids = truth, .prompt_length = 5, .sampling = sampling};
      ASSERT_TRUE(worker.drafter->open(open).ok());
      for (uint32_t round = 1; round < 10; ++round) {
        Propose asked = propose(static_cast<int>(truth.size()), unseen, 4, round);
        asked.tree = shape;
        asked.pipeline = GetParam();
        const auto draft = draft_now(*worker.drafter, asked);
        ASSERT_TRUE(draft.ok()) << draft.status().message();
        const DraftTreeView tree = draft->tree();
        ASSERT_TRUE(check_tree(tree, {.nodes = shape.nodes > 0 ? shape.nodes : 21, .depth = 4}).ok());
        ASSERT_GT(tree.size(), 0);
        branching += !draft->parents.empty();
        hits += draft->preparation.hit;
        looked_up += draft->preparation.looked_up;
        std::vector<DraftAnswer> answers;
        while (worker.drafter->work(answers)) ASSERT_TRUE(worker.model->kv().check_invariants().ok());
        EXPECT_TRUE(answers.empty());
        std::vector<int32_t> path;
        for (int32_t node = kTreeRoot; node < tree.size(); ++node) {
          int32_t first = node + 1;  // depth first: its best child is the next
          if (first >= tree.size() || tree.parent(first) != node) continue;
          path_to(tree, node, path);
          std::vector<TokenId> text = truth;
          for (const int32_t on_path : path) text.push_back(tree.id(on_path));
          other.drafter->close(kSequence);
          ASSERT_TRUE(
              other.drafter
                  ->open({.sequence = kSequence, .ids = text, .prompt_length = 5, .sampling = sampling})
                  .ok());
          const auto chain = draft_now(*other.drafter, propose(static_cast<int>(text.size()), {}, 1));
          ASSERT_TRUE(chain.ok());
          EXPECT_EQ(chain->ids[0], tree.id(first)) << "round " << round << ", behind node " << node;
        }
        ASSERT_TRUE(worker.model->kv().check_invariants().ok());
        // Any path, and a token of the target's.
        path_to(tree, static_cast<int32_t>(random() % static_cast<uint32_t>(tree.size() + 1)) - 1, path);
        unseen.clear();
        for (const int32_t on_path : path) unseen.push_back(tree.id(on_path));
        // Half of the time the drafter's own.
        TokenId next = random_ids(1, random())[0];
        if (random() % 2 == 0) {
          std::vector<TokenId> text = truth;
          text.insert(text.end(), unseen.begin(), unseen.end());
          other.drafter->close(kSequence);
          ASSERT_TRUE(
              other.drafter
                  ->open({.sequence = kSequence, .ids = text, .prompt_length = 5, .sampling = sampling})
                  .ok());
          next = draft_now(*other.drafter, propose(static_cast<int>(text.size()), {}, 1))->ids.at(0);
        }
        unseen.push_back(next);
        truth.insert(truth.end(), unseen.begin(), unseen.end());
      }
      worker.drafter->close(kSequence);
      EXPECT_EQ(worker.model->kv().free_blocks(), worker.model->kv().num_blocks());
    }
  EXPECT_GT(branching, 15);
  EXPECT_EQ(looked_up, GetParam() == Pipeline::kLockstep ? 0 : 3 * 8)
      << "best-first trees, but the first of a text";
  EXPECT_GE(hits, GetParam() == Pipeline::kLockstep ? 0 : 6);
}

INSTANTIATE_TEST_SUITE_P(Pipelines, TreesOfAModel, ::testing::Values(Pipeline::kLockstep, Pipeline::kFanout));

// Under the rules that need q a node's children come from the q that a chain would have there, by a draw of
// their own; the first of each level's nodes by that of a chain.
TEST(ModelDrafter, ChildrenAreDrawnFromTheQThatIsSent) {
  int64_t equal_siblings = 0, nodes = 0;
  for (const Rule rule : {Rule::kSpecInfer, Rule::kKSeq, Rule::kSwor, Rule::kTraversal})
    for (const TreeShape& shape :
         {TreeShape{.widths = {3, 2, 2}}, TreeShape{.widths = {}, .parents = {-1, 0, -1, 0, 1, -1, 2, 4}}}) {
      const SamplingParams sampling{.rule = rule, .temperature = 0.5f, .top_k = 6, .seed = Seed{8}};
      ModelAndDrafter worker, other;
      std::vector<TokenId> truth = random_ids(5, 1), unseen;
      ASSERT_TRUE(worker.drafter
                      ->open({.sequence = kSequence, .ids = truth, .prompt_length = 5, .sampling = sampling})
                      .ok());
      for (uint32_t round = 1; round < 5; ++round) {
        Propose asked = propose(static_cast<int>(truth.size()), unseen, 4, round);
        asked.q_kind = QKind::kSparse;
        asked.row_bytes = 200;
        asked.tree = shape;
        const auto draft = draft_now(*worker.drafter, asked);
        ASSERT_TRUE(draft.ok()) << draft.status().message();
        const DraftTreeView tree = draft->tree();
        const TreeLimits limits{
            .nodes = 21, .depth = 4, .children = 3, .equal_siblings = draws_independently(rule)};
        ASSERT_TRUE(check_tree(tree, limits).ok());
        ASSERT_TRUE(validate_q_rows(draft->q_kind, draft->q, tree, 1000).ok());
        const RowNumbers numbers(tree);
        std::vector<int32_t> path, depths, ordinals(tree.ids.size());
        tree_depths(tree, depths);
        for (size_t i = 0; i < ordinals.size(); ++i)
          ordinals[i] = static_cast<int32_t>(
              std::count(depths.begin(), depths.begin() + static_cast<ptrdiff_t>(i), depths[i]));
        for (int32_t node = 0; node < tree.size(); ++node) {
          const int32_t parent = tree.parent(node);
          path_to(tree, parent, path);
          std::vector<TokenId> text = truth, gone;
          for (const int32_t on_path : path) text.push_back(tree.id(on_path));
          for (int32_t i = 0; i < node; ++i)
            if (tree.parent(i) == parent) {
              equal_siblings += tree.id(i) == tree.id(node);
              if (draws_without_replacement(rule)) gone.push_back(tree.id(i));
            }
          ++nodes;
          const QRow& q = draft->q[numbers.of(static_cast<size_t>(node))];
          const Position position(static_cast<int32_t>(text.size()));
          if (tree.size() == 21) {  // whole levels, so that its order is that of the shape
            const uint64_t bits = draw_u64(sampling.seed, Purpose::kDraft, position, Round(round),
                                           static_cast<uint32_t>(ordinals[static_cast<size_t>(node)]));
            EXPECT_EQ(draw_token_without(q, gone, bits), tree.id(node));
          }
          other.drafter->close(kSequence);
          ASSERT_TRUE(
              other.drafter
                  ->open({.sequence = kSequence, .ids = text, .prompt_length = 5, .sampling = sampling})
                  .ok());
          Propose one = propose(static_cast<int>(text.size()), {}, 1, round);
          one.q_kind = QKind::kSparse;
          one.row_bytes = 200;
          const auto chain = draft_now(*other.drafter, one);
          ASSERT_TRUE(chain.ok());
          ASSERT_EQ(chain->q.size(), 1u);
          EXPECT_EQ(chain->q[0].ids, q.ids);
          EXPECT_EQ(chain->q[0].weights, q.weights);
          if (ordinals[static_cast<size_t>(node)] == 0) {
            EXPECT_EQ(chain->ids[0], tree.id(node));
          }
        }
        ASSERT_TRUE(worker.model->kv().check_invariants().ok());
        unseen = random_ids(2, round);
        truth.insert(truth.end(), unseen.begin(), unseen.end());
      }
      worker.drafter->close(kSequence);
      EXPECT_EQ(worker.model->kv().free_blocks(), worker.model->kv().num_blocks());
    }
  EXPECT_GT(nodes, 300);
  EXPECT_GT(equal_siblings, 10);
}

// Where no block is left for a fork, the tree is what there was room for.
TEST(ModelDrafter, ATreeIsAsLargeAsThereIsRoom) {
  ModelAndDrafter worker;
  const auto model = testing::load_or_die(
      testing::golden_model("qwen3"), {.max_rows = 16, .max_positions = 100, .kv_tokens = 3 * kBlockTokens},
      *worker.single);
  const auto drafter = make_model_drafter(*model, {.max_sequences = 2});
  const std::vector<TokenId> text = random_ids(kBlockTokens + 2, 1);
  ASSERT_TRUE(drafter->open({.sequence = kSequence, .ids = text, .prompt_length = 5}).ok());
  Propose asked = propose(static_cast<int>(text.size()), {}, 4);
  asked.tree.widths = {4, 4};
  const auto draft = draft_now(*drafter, asked);
  ASSERT_TRUE(draft.ok()) << draft.status().message();
  EXPECT_GE(draft->ids.size(), 4u);
  EXPECT_LT(draft->ids.size(), 20u);
  EXPECT_TRUE(check_tree(draft->tree(), {}).ok());
  asked.tree = {};
  asked.round = Round(2);
  EXPECT_EQ(draft_now(*drafter, asked)->ids.size(), 4u) << "its blocks are free again";
}

// A draft that was prepared, wholly or in part, is the one that would have been made: tokens, q, everything.
TEST(ModelDrafter, PreparingLeavesNoTrace) {
  for (const Pipeline pipeline : {Pipeline::kAhead, Pipeline::kFanout, Pipeline::kAuto})
    for (const SamplingParams& sampling :
         {SamplingParams{}, SamplingParams{.rule = Rule::kNaive, .temperature = 1},
          SamplingParams{.rule = Rule::kInvariant, .temperature = 1, .repetition_penalty = 1.2f},
          SamplingParams{.rule = Rule::kBlock, .temperature = 0.3f, .top_k = 20, .presence_penalty = 0.5f}}) {
      ModelAndDrafter worker;
      std::mt19937 random(7);
      std::vector<TokenId> truth = random_ids(5, 1), unseen;
      const Open opened{.sequence = kSequence, .ids = truth, .prompt_length = 5, .sampling = sampling};
      ASSERT_TRUE(worker.drafter->open(opened).ok());
      const QKind kind = needs_q(sampling.rule) ? QKind::kSparse : QKind::kNone;
      int hits = 0, lookups = 0;
      for (uint32_t round = 1; truth.size() < 90; ++round) {
        const auto base = static_cast<int>(truth.size());
        const int gamma = 1 + static_cast<int>(random() % 5);
        auto draft = draft_now(*worker.drafter, propose(base, unseen, gamma, round, kind, pipeline));
        ASSERT_TRUE(draft.ok()) << draft.status().message();
        ModelAndDrafter fresh;
        ASSERT_TRUE(
            fresh.drafter
                ->open({.sequence = kSequence, .ids = truth, .prompt_length = 5, .sampling = sampling})
                .ok());
        auto expected = draft_now(*fresh.drafter, propose(base, {}, gamma + 1, round, kind));
        ASSERT_TRUE(expected.ok());
        const std::vector<TokenId> likely(expected->ids);  // one token longer than the draft
        EXPECT_EQ(draft->ids, std::vector<TokenId>(likely.begin(), likely.end() - 1)) << "round " << round;
        for (size_t i = 0; i < draft->q.size(); ++i) EXPECT_EQ(draft->q[i].weights, expected->q[i].weights);
        hits += draft->preparation.hit;
        lookups += draft->preparation.looked_up;

        std::vector<DraftAnswer> answers;
        for (uint32_t passes = random() % 8; passes > 0; --passes) worker.drafter->work(answers);
        EXPECT_TRUE(answers.empty());
        ASSERT_TRUE(worker.model->kv().check_invariants().ok());
        // Everything accepted and what the model itself would say next, or a rejection somewhere.
        const bool full = random() % 3 > 0;
        const size_t accepted = full ? draft->ids.size() : random() % draft->ids.size();
        unseen.assign(draft->ids.begin(), draft->ids.begin() + static_cast<ptrdiff_t>(accepted));
        unseen.push_back(full ? likely.back() : random_ids(1, random())[0]);
        truth.insert(truth.end(), unseen.begin(), unseen.end());
      }
      EXPECT_GT(lookups, 10);
      if (sampling.rule != Rule::kBlock) {
        EXPECT_GT(hits, 3) << rule_name(sampling.rule);
      }
      worker.drafter->close(kSequence);
      EXPECT_EQ(worker.model->kv().free_blocks(), worker.model->kv().num_blocks());
    }
}

// With no block to spare the round itself is never refused because of what was prepared.
TEST(ModelDrafter, PreparationGivesWayWhenTheCacheIsFull) {
  const auto single = make_single_collectives();
  const auto model = testing::load_or_die(testing::golden_model("qwen3"),
                                          {.max_rows = 16, .max_positions = 100, .kv_tokens = 112}, *single);
  const auto drafter = make_model_drafter(*model, {.max_sequences = 1});
  std::vector<TokenId> truth = random_ids(5, 1), unseen;
  ASSERT_TRUE(drafter->open({.sequence = kSequence, .ids = truth, .prompt_length = 5, .sampling = {}}).ok());
  std::vector<DraftAnswer> answers;
  for (uint32_t round = 1; truth.size() < 90; ++round) {
    auto draft = draft_now(
        *drafter, propose(static_cast<int>(truth.size()), unseen, 5, round, QKind::kNone, Pipeline::kFanout));
    ASSERT_TRUE(draft.ok()) << draft.status().message();
    ASSERT_EQ(draft->ids.size(), 5u);
    while (drafter->work(answers)) ASSERT_TRUE(model->kv().check_invariants().ok());
    unseen = draft->ids;
    unseen.push_back(random_ids(1, round)[0]);
    truth.insert(truth.end(), unseen.begin(), unseen.end());
  }
  EXPECT_TRUE(answers.empty());
}

// A draft that is ended is the beginning of the whole one, as long as its margins say, and what was not sent
// leaves no trace.
TEST(ModelDrafter, EndsWhereItsChancesSay) {
  constexpr int kGamma = 8;
  int before = 0, after = 0, redrawn_otherwise = 0;
  for (const SamplingParams& sampling :
       {SamplingParams{}, SamplingParams{.rule = Rule::kInvariant, .temperature = 1},
        SamplingParams{.rule = Rule::kToken, .temperature = 1, .top_k = 20}})
    for (const uint32_t seed : {1u, 2u, 3u, 4u}) {
      const QKind kind = sampling.rule == Rule::kToken ? QKind::kSparse : QKind::kNone;
      const Open open{
          .sequence = kSequence, .ids = random_ids(5, seed), .prompt_length = 5, .sampling = sampling};
      const auto drafted = [&](Drafter& drafter, std::vector<PlaceRule> places) {
        Propose asked = propose(5, {}, kGamma, 1, kind);
        asked.stop = {.kind = StopKind::kChances, .places = std::move(places)};
        return draft_now(drafter, asked).value();
      };
      ModelAndDrafter free;
      ASSERT_TRUE(free.drafter->open(open).ok());
      const Draft whole = drafted(*free.drafter, {});
      ASSERT_EQ(whole.ids.size(), size_t{kGamma});
      ASSERT_EQ(whole.margins.size(), size_t{kGamma});
      if (kind == QKind::kSparse) {
        // Other draws from the same distributions: what ends a draft must not depend on the token there.
        ModelAndDrafter other;
        ASSERT_TRUE(other.drafter->open(open).ok());
        Propose asked = propose(5, {}, kGamma, 9, kind);
        asked.stop.kind = StopKind::kChances;
        const Draft redrawn = draft_now(*other.drafter, asked).value();
        redrawn_otherwise += redrawn.ids != whole.ids;
        EXPECT_EQ(redrawn.margins[0], whole.margins[0]);
      }
      for (const float margin : whole.margins) EXPECT_TRUE(margin >= 0 && margin <= kMaxMargin) << margin;
      for (const bool sent : {false, true}) {
        PlaceRule rule{.slope = 0.5f, .offset = 0.2f};
        (sent ? rule.least_extended : rule.least_sent) = 0.3f;
        size_t length = 0;
        for (double survival = 1; length < size_t{kGamma}; ++length) {
          survival /= 1 + std::exp(-(0.5 * static_cast<double>(whole.margins[length]) + 0.2));
          if (survival >= 0.3) continue;
          length += sent;
          break;
        }
        ModelAndDrafter ended;
        ASSERT_TRUE(ended.drafter->open(open).ok());
        const Draft draft = drafted(*ended.drafter, {rule});
        ASSERT_EQ(draft.ids.size(), length) << rule_name(sampling.rule) << " " << seed << " " << sent;
        EXPECT_TRUE(std::equal(draft.ids.begin(), draft.ids.end(), whole.ids.begin()));
        EXPECT_TRUE(std::equal(draft.margins.begin(), draft.margins.end(), whole.margins.begin()));
        (sent ? after : before) += length < size_t{kGamma};
        std::vector<TokenId> unseen = draft.ids;
        unseen.push_back(TokenId(7));
        Open later = open;
        later.ids.insert(later.ids.end(), unseen.begin(), unseen.end());
        ModelAndDrafter fresh;
        ASSERT_TRUE(fresh.drafter->open(later).ok());
        const auto base = static_cast<int>(later.ids.size());
        const auto next = draft_now(*ended.drafter, propose(base, unseen, 4, 2, kind)),
                   expected = draft_now(*fresh.drafter, propose(base, {}, 4, 2, kind));
        ASSERT_TRUE(next.ok() && expected.ok());
        EXPECT_EQ(next->ids, expected->ids);
        EXPECT_TRUE(next->margins.empty()) << "nobody asked for them";
      }
    }
  EXPECT_GT(before, 2);
  EXPECT_GT(after, 2);
  EXPECT_GT(redrawn_otherwise, 0);
}

TEST(ModelDrafter, StopsAtItsContextAndAtEos) {
  ModelAndDrafter worker;
  const auto prompt = random_ids(98, 4);
  ASSERT_TRUE(
      worker.drafter->open({.sequence = kSequence, .ids = prompt, .prompt_length = 98, .sampling = {}}).ok());
  auto draft = draft_now(*worker.drafter, propose(98, {}, 8));
  ASSERT_TRUE(draft.ok());
  EXPECT_EQ(draft->ids.size(), 3u);  // positions 98, 99, and one whose KV is not needed

  const auto stopping = make_model_drafter(*worker.model, {.max_sequences = 2, .eos_ids = {draft->ids[1]}});
  worker.drafter->close(kSequence);
  ASSERT_TRUE(
      stopping->open({.sequence = kSequence, .ids = prompt, .prompt_length = 98, .sampling = {}}).ok());
  auto cut = draft_now(*stopping, propose(98, {}, 8));
  ASSERT_TRUE(cut.ok());
  EXPECT_TRUE(cut->eos);
  EXPECT_LE(cut->ids.size(), 2u);
}

TEST(ModelDrafter, TellsWhatItHolds) {
  ModelAndDrafter worker;
  EXPECT_EQ(draft_now(*worker.drafter, propose(3, {}, 2)).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(worker.drafter->held(kSequence).committed, Position(0));
  const auto prompt = random_ids(5, 2);
  ASSERT_TRUE(
      worker.drafter->open({.sequence = kSequence, .ids = prompt, .prompt_length = 5, .sampling = {}}).ok());
  EXPECT_EQ(draft_now(*worker.drafter, propose(9, {}, 2)).status().code(), StatusCode::kMalformed);
  EXPECT_EQ(worker.drafter->held(kSequence).committed, Position(5));
  EXPECT_EQ(worker.drafter->held(kSequence).hash, prefix_hash(prompt));
  ASSERT_TRUE(worker.drafter->open({.sequence = SequenceId(2), .ids = prompt, .sampling = {}}).ok());
  EXPECT_EQ(worker.drafter->open({.sequence = SequenceId(3), .ids = prompt, .sampling = {}}).code(),
            StatusCode::kResourceExhausted);
}

// An Open that was held up, or sent again for a Resync, reaches a worker that drafts already.
TEST(EveryDrafter, AnOpenThatSaysNothingNewLeavesTheRoundUnderWay) {
  ModelAndDrafter with_model;
  const auto ngram = make_ngram_drafter({}), suffix = make_suffix_drafter({});
  for (Drafter* drafter : {with_model.drafter.get(), ngram.get(), suffix.get()}) {
    const auto prompt = random_ids(5, 2);
    const Open open{.sequence = kSequence, .ids = prompt, .prompt_length = 5, .sampling = {}};
    ASSERT_TRUE(drafter->open(open).ok());
    ASSERT_TRUE(drafter->begin(propose(6, {TokenId(7)}, 3)).ok());
    ASSERT_TRUE(drafter->open(open).ok());
    std::vector<DraftAnswer> answers;
    while (drafter->work(answers) && answers.empty()) continue;
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_EQ(answers[0].draft.base, Position(6));
    EXPECT_EQ(drafter->held(kSequence).committed, Position(6));

    ASSERT_TRUE(drafter->open({.sequence = kSequence, .ids = random_ids(4, 3), .sampling = {}}).ok());
    EXPECT_EQ(drafter->held(kSequence).hash, prefix_hash(random_ids(4, 3))) << "another text starts afresh";
  }
}

TEST(NgramDrafter, ContinuesTheLastOccurrence) {
  const auto drafter = make_ngram_drafter({});
  std::vector<TokenId> ids;
  for (int v : {1, 2, 3, 4, 9, 1, 2, 3, 5, 6, 7, 1, 2, 3}) ids.emplace_back(v);
  ASSERT_TRUE(drafter->open({.sequence = kSequence, .ids = ids, .prompt_length = 14, .sampling = {}}).ok());
  auto draft = draft_now(*drafter, propose(14, {}, 3, 1, QKind::kDense));
  ASSERT_TRUE(draft.ok());
  EXPECT_EQ(draft->ids, (std::vector<TokenId>{TokenId(5), TokenId(6), TokenId(7)}));
  EXPECT_EQ(draft->q_kind, QKind::kSparse);  // one-hot, whatever was asked for
  ASSERT_EQ(draft->q.size(), 3u);
  EXPECT_EQ(draft->q[1].ids, std::vector<uint32_t>{6});
  EXPECT_TRUE(validate_q_rows(draft->q_kind, draft->q, draft->ids, 10).ok());
}

TEST(NgramDrafter, SeveralOccurrencesAreATree) {
  const auto drafter = make_ngram_drafter({});
  std::vector<TokenId> ids;
  for (int v : {1, 2, 3, 4, 9, 1, 2, 3, 5, 6, 7, 1, 2, 3}) ids.emplace_back(v);
  ASSERT_TRUE(drafter->open({.sequence = kSequence, .ids = ids, .prompt_length = 14, .sampling = {}}).ok());
  uint32_t round = 0;
  const auto drafted = [&](TreeShape shape) {
    Propose asked = propose(14, {}, 3, ++round);
    asked.tree = std::move(shape);
    const auto draft = draft_now(*drafter, asked);
    EXPECT_TRUE(draft.ok());
    std::vector<int> out;
    for (const TokenId id : draft->ids) out.push_back(id.value());
    out.insert(out.end(), draft->parents.begin(), draft->parents.end());
    return out;
  };
  using Ints = std::vector<int>;
  EXPECT_EQ(drafted({.widths = {}, .nodes = 9}), (Ints{5, 6, 7, 4, 9, 1, -1, 0, 1, -1, 3, 4}));
  EXPECT_EQ(drafted({.widths = {}, .nodes = 3}), (Ints{5, 6, 4, -1, 0, -1}));
  EXPECT_EQ(drafted({.widths = {2, 1}}), (Ints{5, 6, 4, 9, -1, 0, -1, 2}));
  EXPECT_EQ(drafted({.widths = {1, 2}}), (Ints{5, 6})) << "a chain has no parents";
}

TEST(NgramDrafter, NothingToSayIsAnEmptyDraft) {
  const auto drafter = make_ngram_drafter({});
  ASSERT_TRUE(
      drafter->open({.sequence = kSequence, .ids = {TokenId(1)}, .prompt_length = 1, .sampling = {}}).ok());
  auto draft = draft_now(*drafter, propose(1, {}, 3));
  ASSERT_TRUE(draft.ok());
  EXPECT_TRUE(draft->ids.empty());
  EXPECT_EQ(draft->prefix_hash, prefix_hash(std::vector<TokenId>{TokenId(1)}));
}

}  // namespace
}  // namespace outrider
