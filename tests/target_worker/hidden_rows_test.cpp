// The q that ranks compute from hidden states equals the q that the drafter drew from. Invalid hidden states
// make all ranks drop the draft.
#include "target_worker/hidden_rows.h"

#include <gtest/gtest.h>

#include <random>

#include "kernels/sampling/draft_sampler.h"
#include "tests/support/test_models.h"

namespace outrider {
namespace {

constexpr const char* kModel = "qwen3";
constexpr int64_t kHeadVocab = 302;
constexpr size_t kDrafted = 6;

struct Drafted {
  PlanEntry entry;
  std::vector<QRow> q;  // what its tokens were drawn from
};

Drafted draft(const DraftHead& head, const SamplingParams& sampling, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  const auto single = make_single_collectives();
  DraftSampler sampler(*single);
  DraftHead::Scratch scratch;
  Drafted made;
  made.entry.q_kind = QKind::kHidden;
  for (size_t i = 0; i < kDrafted; ++i) {
    std::vector<float> state(static_cast<size_t>(head.hidden_size())), logits(kHeadVocab);
    for (float& x : state) x = normal(random);
    HiddenRow& row = made.entry.hidden.emplace_back();
    EXPECT_TRUE(head.quantize(state, 4, row));
    head.logits({&row, 1}, {0, kHeadVocab}, {logits.data(), {1, kHeadVocab}}, scratch);
    const DraftStep step{
        .sampling = &sampling, .position = Position(static_cast<int32_t>(i)), .round = Round(seed)};
    made.entry.draft.push_back(*sampler.sample(logits, step, &made.q.emplace_back()));
    row.max = sampler.max();
  }
  return made;
}

constexpr SamplingParams kSampling{.rule = Rule::kToken, .temperature = 0.7f};

// Runs `check` on every rank of groups of 1, 2 and 4 with what it makes of the entries.
void gather(const std::vector<PlanEntry>& entries,
            const std::function<void(int ranks, IndexRange range, std::span<const SlicedQ>)>& check) {
  for (const int ranks : {1, 2, 4})
    testing::run_group(ranks, [&](Collectives& group) {
      const IndexRange range = vocab_range(kHeadVocab, {group.rank(), ranks});
      HiddenRows hidden(
          std::make_shared<const DraftHead>(DraftHead::load(testing::golden_model(kModel), range, 1).value()),
          range, 2 * kDrafted);
      std::vector<SlicedQ> sliced(entries.size());
      const std::vector<const SamplingParams*> sampling(entries.size(), &kSampling);
      hidden.gather(entries, sampling, group, sliced);
      check(ranks, range, sliced);
    });
}

TEST(HiddenRows, AreWhatTheDrafterDrewFrom) {
  const DraftHead head = DraftHead::load(testing::golden_model(kModel), {0, kHeadVocab}, 1).value();
  const Drafted a = draft(head, kSampling, 1), b = draft(head, kSampling, 2);
  PlanEntry other;
  other.q_kind = QKind::kSparse;
  other.draft = {TokenId(1)};
  gather({a.entry, other, b.entry}, [&](int ranks, IndexRange range, std::span<const SlicedQ> sliced) {
    for (const auto& [drafted, q] : {std::pair(&a, sliced[0]), {&b, sliced[2]}}) {
      ASSERT_FALSE(q.lost) << ranks;
      ASSERT_EQ(q.rows.size(), kDrafted);
      for (size_t i = 0; i < kDrafted; ++i) {
        const QRow& whole = drafted->q[i];
        EXPECT_EQ(q.rows[i].sum, whole.sum);
        EXPECT_EQ(q.drafted[i], weight_in(whole, drafted->entry.draft[i]));
        EXPECT_EQ(q.rows[i].weights, std::vector<uint32_t>(whole.weights.begin() + range.begin,
                                                           whole.weights.begin() + range.end));
      }
    }
    EXPECT_TRUE(sliced[1].rows.empty());
  });
}

TEST(HiddenRows, StatesThatCannotBeLoseTheirDraftOnAllRanks) {
  const DraftHead head = DraftHead::load(testing::golden_model(kModel), {0, kHeadVocab}, 1).value();
  const Drafted good = draft(head, kSampling, 1);
  const auto is_lost = [&](const std::function<void(PlanEntry&)>& lie) {
    PlanEntry bad = good.entry;
    lie(bad);
    bool lost = true;
    gather({bad, good.entry}, [&](int, IndexRange, std::span<const SlicedQ> sliced) {
      if (!sliced[0].lost) lost = false;
      EXPECT_FALSE(sliced[1].lost);
      EXPECT_EQ(sliced[1].rows[2].sum, good.q[2].sum);
    });
    return lost;
  };
  EXPECT_FALSE(is_lost([](PlanEntry&) {}));
  EXPECT_TRUE(is_lost([](PlanEntry& entry) { entry.hidden[3].max -= 0.01f; }));  // weights could overflow
  EXPECT_TRUE(is_lost([](PlanEntry& entry) { entry.hidden[3].max = -1e38f; }));
  EXPECT_TRUE(is_lost([](PlanEntry& entry) { entry.hidden[3].max = 1e38f; }));  // no token has weight
  EXPECT_TRUE(is_lost([](PlanEntry& entry) { entry.hidden[3].scale = 1e38f; }));
  EXPECT_TRUE(is_lost([](PlanEntry& entry) { entry.hidden[3].codes.pop_back(); }));
  EXPECT_TRUE(is_lost([](PlanEntry& entry) { entry.hidden.pop_back(); }));
  EXPECT_TRUE(is_lost([](PlanEntry& entry) { entry.draft[3] = TokenId(kHeadVocab); }));
}

}  // namespace
}  // namespace outrider
