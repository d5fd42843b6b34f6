#include "draft_worker/drafter.h"

#include <gtest/gtest.h>

#include <random>

#include "base/hash.h"
#include "comm/q_rows.h"
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

Propose propose(int base, std::vector<TokenId> committed, int gamma, uint32_t round = 1,
                QKind kind = QKind::kNone) {
  return {.sequence = kSequence,
          .round = Round(round),
          .base = Position(base),
          .committed = std::move(committed),
          .gamma = gamma,
          .q_kind = kind,
          .sparse_m = 8};
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
      auto draft = worker.drafter->draft(propose(base, unseen, gamma, round, kind));
      ASSERT_TRUE(draft.ok()) << draft.status().message();
      EXPECT_EQ(draft->ids.size(), static_cast<size_t>(gamma));
      EXPECT_EQ(draft->prefix_hash, prefix_hash(truth));

      ModelAndDrafter fresh;
      Open open{.sequence = kSequence, .ids = truth, .prompt_length = 5, .sampling = sampling};
      ASSERT_TRUE(fresh.drafter->open(open).ok());
      auto expected = fresh.drafter->draft(propose(base, {}, gamma, round, kind));
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

TEST(ModelDrafter, StopsAtItsContextAndAtEos) {
  ModelAndDrafter worker;
  const auto prompt = random_ids(98, 4);
  ASSERT_TRUE(
      worker.drafter->open({.sequence = kSequence, .ids = prompt, .prompt_length = 98, .sampling = {}}).ok());
  auto draft = worker.drafter->draft(propose(98, {}, 8));
  ASSERT_TRUE(draft.ok());
  EXPECT_EQ(draft->ids.size(), 3u);  // positions 98, 99, and one whose KV is not needed

  const auto stopping = make_model_drafter(*worker.model, {.max_sequences = 2, .eos_ids = {draft->ids[1]}});
  worker.drafter->close(kSequence);
  ASSERT_TRUE(
      stopping->open({.sequence = kSequence, .ids = prompt, .prompt_length = 98, .sampling = {}}).ok());
  auto cut = stopping->draft(propose(98, {}, 8));
  ASSERT_TRUE(cut.ok());
  EXPECT_TRUE(cut->eos);
  EXPECT_LE(cut->ids.size(), 2u);
}

TEST(ModelDrafter, TellsWhatItHolds) {
  ModelAndDrafter worker;
  EXPECT_EQ(worker.drafter->draft(propose(3, {}, 2)).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(worker.drafter->held(kSequence).committed, Position(0));
  const auto prompt = random_ids(5, 2);
  ASSERT_TRUE(
      worker.drafter->open({.sequence = kSequence, .ids = prompt, .prompt_length = 5, .sampling = {}}).ok());
  EXPECT_EQ(worker.drafter->draft(propose(9, {}, 2)).status().code(), StatusCode::kMalformed);
  EXPECT_EQ(worker.drafter->held(kSequence).committed, Position(5));
  EXPECT_EQ(worker.drafter->held(kSequence).hash, prefix_hash(prompt));
  ASSERT_TRUE(worker.drafter->open({.sequence = SequenceId(2), .ids = prompt, .sampling = {}}).ok());
  EXPECT_EQ(worker.drafter->open({.sequence = SequenceId(3), .ids = prompt, .sampling = {}}).code(),
            StatusCode::kResourceExhausted);
}

TEST(NgramDrafter, ContinuesTheLastOccurrence) {
  const auto drafter = make_ngram_drafter({});
  std::vector<TokenId> ids;
  for (int v : {1, 2, 3, 4, 9, 1, 2, 3, 5, 6, 7, 1, 2, 3}) ids.emplace_back(v);
  ASSERT_TRUE(drafter->open({.sequence = kSequence, .ids = ids, .prompt_length = 14, .sampling = {}}).ok());
  auto draft = drafter->draft(propose(14, {}, 3, 1, QKind::kDense));
  ASSERT_TRUE(draft.ok());
  EXPECT_EQ(draft->ids, (std::vector<TokenId>{TokenId(5), TokenId(6), TokenId(7)}));
  EXPECT_EQ(draft->q_kind, QKind::kSparse);  // one-hot, whatever was asked for
  ASSERT_EQ(draft->q.size(), 3u);
  EXPECT_EQ(draft->q[1].ids, std::vector<uint32_t>{6});
  EXPECT_TRUE(validate_q_rows(draft->q_kind, draft->q, draft->ids, 10).ok());
}

TEST(NgramDrafter, NothingToSayIsAnEmptyDraft) {
  const auto drafter = make_ngram_drafter({});
  ASSERT_TRUE(
      drafter->open({.sequence = kSequence, .ids = {TokenId(1)}, .prompt_length = 1, .sampling = {}}).ok());
  auto draft = drafter->draft(propose(1, {}, 3));
  ASSERT_TRUE(draft.ok());
  EXPECT_TRUE(draft->ids.empty());
  EXPECT_EQ(draft->prefix_hash, prefix_hash(std::vector<TokenId>{TokenId(1)}));
}

}  // namespace
}  // namespace outrider
