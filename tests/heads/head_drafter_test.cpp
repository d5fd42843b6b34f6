// A draft of a head depends on the text and the request, not on other drafts before or beside it.
#include "heads/head_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "base/hash.h"
#include "tests/heads/golden_heads.h"
#include "tests/support/allocations.h"

namespace outrider {
namespace {

// A target whose state at a position is a function of the text up to there.
class TextStates final : public HiddenStateSource {
 public:
  explicit TextStates(Head& head)
      : head_(head),
        raw_(head.compute().rows(head.max_rows(),
                                 static_cast<int64_t>(head.config().aux_layers.size()) * 64)) {}
  void read(SequenceId sequence, int64_t first, FloatRows to) override {
    const FloatRows raw = raw_.rows(to.extent(0)), written = head_.compute().open(raw);
    for (int64_t r = 0; r < to.extent(0); ++r) {
      uint64_t hash = 1;
      for (const TokenId id : std::span(texts.at(sequence)).first(static_cast<size_t>(first + r + 1)))
        hash = hash_combine(hash, static_cast<uint64_t>(id.value()));
      std::mt19937 random(static_cast<uint32_t>(hash));
      for (float& x : written.row(r)) x = static_cast<float>(random() % 2001) / 500 - 2;
    }
    head_.compute().close(raw);
    head_.committed_hidden_states(raw, to);
    read_rows += to.extent(0);
  }

  std::map<SequenceId, std::span<const TokenId>> texts;
  int64_t read_rows = 0;

 private:
  Head& head_;
  RowBuffer raw_;
};

std::vector<TokenId> random_ids(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids;
  while (ids.size() < count) ids.emplace_back(static_cast<int32_t>(random() % 302));
  return ids;
}

SamplingParams sampling_of(Rule rule, uint64_t seed) {
  return {.rule = rule, .temperature = rule == Rule::kGreedy ? 0.0f : 1.2f, .seed = Seed{seed}};
}

struct Drafting {
  explicit Drafting(const testing::GoldenHead& kind, int32_t max_sequences = 4, int64_t max_rows = 256)
      : head(testing::load_head_or_die(kind, {.max_rows = max_rows,
                                              .max_sequences = max_sequences,
                                              .max_positions = 120,
                                              .kv_tokens = max_sequences * 160})),
        drafter(make_head_drafter(*head, {.max_sequences = max_sequences})),
        hidden_states(*head) {}

  HeadDraft one(SequenceId id, std::span<const TokenId> text, const SamplingParams& sampling, int32_t gamma,
                uint32_t round = 1) {
    hidden_states.texts[id] = text;
    const HeadTask task{
        .sequence = id, .committed = text, .sampling = &sampling, .round = Round(round), .gamma = gamma};
    std::vector<HeadDraft> drafts;
    drafter->draft({&task, 1}, hidden_states, drafts);
    return drafts.front();
  }

  std::unique_ptr<Head> head;
  std::unique_ptr<HeadDrafter> drafter;
  TextStates hidden_states;
};

// Tokens that it can draft at all.
int32_t longest(const Drafting& drafting) {
  if (const auto* const block = dynamic_cast<const BlockHead*>(drafting.head.get()))
    return static_cast<int32_t>(block->block_tokens());
  if (const auto* const hydra = dynamic_cast<const HydraHead*>(drafting.head.get()))
    return static_cast<int32_t>(hydra->heads());
  const auto* const medusa = dynamic_cast<const MedusaHead*>(drafting.head.get());
  return medusa ? static_cast<int32_t>(medusa->heads()) : 100;
}

void expect_same(const HeadDraft& a, const HeadDraft& b) {
  EXPECT_EQ(a.ids, b.ids);
  ASSERT_EQ(a.q.size(), b.q.size());
  for (size_t i = 0; i < a.q.size(); ++i) EXPECT_EQ(a.q[i].weights, b.q[i].weights) << "row " << i;
}

class HeadDrafting : public testing::TestOfAnyHead {};

// The text goes on with some of the draft and then something else, round after round; each draft, and each of
// its distributions, is that of a drafter that has just read the whole text.
TEST_P(HeadDrafting, AfterRejectionsIsThatOfAFreshOne) {
  for (const Rule rule : {Rule::kGreedy, Rule::kInvariant, Rule::kToken}) {
    Drafting running(GetParam());
    std::mt19937 random(5);
    const SamplingParams sampling = sampling_of(rule, 9);
    auto text = random_ids(7, 3);
    const SequenceId id(1);
    int rounds = 0;
    while (text.size() < (testing::suite_is_on_a_device() ? 40 : 100)) {
      const int32_t gamma = 1 + static_cast<int32_t>(random() % 5);
      const auto draft = running.one(id, text, sampling, gamma, static_cast<uint32_t>(++rounds));
      ASSERT_EQ(draft.ids.size(), static_cast<size_t>(std::min(gamma, longest(running))));
      Drafting fresh(GetParam());
      expect_same(draft, fresh.one(SequenceId(8), text, sampling, gamma, static_cast<uint32_t>(rounds)));
      const auto accepted = static_cast<ptrdiff_t>(random() % (draft.ids.size() + 1));
      text.insert(text.end(), draft.ids.begin(), draft.ids.begin() + accepted);
      text.emplace_back(static_cast<int32_t>(random() % 302));
    }
    // Most committed positions were read once, and never a drafted one.
    EXPECT_LE(running.hidden_states.read_rows, static_cast<int64_t>(text.size()) + rounds);
  }
}

TEST_P(HeadDrafting, DependsOnNoOtherSequenceAndNoChunk) {
  Drafting together(GetParam(), 3), chunked(GetParam(), 3, 9);
  std::vector<std::vector<TokenId>> texts{random_ids(50, 1), random_ids(3, 2), random_ids(21, 3)};
  std::vector<SamplingParams> sampling{sampling_of(Rule::kInvariant, 4), sampling_of(Rule::kGreedy, 5),
                                       sampling_of(Rule::kBlock, 6)};
  std::vector<HeadTask> tasks;
  for (size_t i = 0; i < texts.size(); ++i) {
    tasks.push_back({.sequence = SequenceId(i),
                     .committed = texts[i],
                     .sampling = &sampling[i],
                     .round = Round(3),
                     .gamma = static_cast<int32_t>(2 * i + 1)});
    for (Drafting* d : {&together, &chunked}) d->hidden_states.texts[SequenceId(i)] = texts[i];
  }
  for (Drafting* d : {&together, &chunked}) {
    std::vector<HeadDraft> drafts;
    d->drafter->draft(tasks, d->hidden_states, drafts);
    ASSERT_EQ(drafts.size(), 3u);
    for (size_t i = 0; i < texts.size(); ++i) {
      Drafting alone(GetParam());
      expect_same(drafts[i],
                  alone.one(SequenceId(7), texts[i], sampling[i], static_cast<int32_t>(2 * i + 1), 3));
    }
  }
}

// A shorter draft is the beginning of a longer one, and of the draft vocabulary.
TEST_P(HeadDrafting, DraftsTokensOfItsVocabulary) {
  Drafting drafting(GetParam());
  const auto text = random_ids(12, 8);
  std::set<int32_t> known;
  for (const TokenId id : drafting.head->target_ids()) known.insert(id.value());
  for (const Rule rule : {Rule::kGreedy, Rule::kInvariant, Rule::kNaive, Rule::kToken, Rule::kBlock})
    for (uint64_t seed = 0; seed < 12; ++seed) {
      const auto sampling = sampling_of(rule, seed);
      const auto longer = drafting.one(SequenceId(1), text, sampling, 6);
      const auto shorter = drafting.one(SequenceId(1), text, sampling, 2);
      EXPECT_TRUE(std::equal(shorter.ids.begin(), shorter.ids.end(), longer.ids.begin()));
      for (const TokenId id : longer.ids) EXPECT_TRUE(known.empty() || known.contains(id.value()));
      EXPECT_EQ(longer.q.size(), needs_q(rule) ? longer.ids.size() : 0u);
      for (size_t i = 0; i < longer.q.size(); ++i) EXPECT_GT(weight_in(longer.q[i], longer.ids[i]), 0u);
    }
}

TEST_P(HeadDrafting, EndsAtTheEndOfATextAndOfTheContext) {
  Drafting drafting(GetParam());
  const SamplingParams greedy = sampling_of(Rule::kGreedy, 0);
  const auto text = random_ids(12, 8);
  const auto whole = drafting.one(SequenceId(1), text, greedy, 5);
  const TokenId eos = whole.ids[std::min<size_t>(2, whole.ids.size() - 1)];
  const auto ending = make_head_drafter(*drafting.head, {.max_sequences = 1, .eos_ids = {eos}});
  const HeadTask task{
      .sequence = SequenceId(1), .committed = text, .sampling = &greedy, .round = Round(1), .gamma = 5};
  std::vector<HeadDraft> drafts;
  ending->draft({&task, 1}, drafting.hidden_states, drafts);
  const auto end = std::find(whole.ids.begin(), whole.ids.end(), eos) - whole.ids.begin() + 1;
  EXPECT_EQ(drafts[0].ids, std::vector<TokenId>(whole.ids.begin(), whole.ids.begin() + end));
  EXPECT_TRUE(drafts[0].eos);

  auto* const pairs = dynamic_cast<PairHead*>(drafting.head.get());
  if (!pairs) return;                       // others read one state, whatever the length
  const auto longest = random_ids(121, 8);  // pairs have 120 positions
  EXPECT_EQ(drafting.one(SequenceId(2), std::span(longest).first(119), greedy, 5).ids.size(), 3u);
  EXPECT_EQ(drafting.one(SequenceId(2), longest, greedy, 5).ids.size(), 1u);
  EXPECT_TRUE(drafting.one(SequenceId(3), random_ids(122, 8), greedy, 5).ids.empty());
  for (int id : {1, 2, 3}) drafting.drafter->close(SequenceId(static_cast<uint64_t>(id)));
  ending->close(SequenceId(1));
  EXPECT_EQ(pairs->kv().free_blocks(), pairs->kv().num_blocks());
}

TEST_P(HeadDrafting, AllocatesNothingOnceItIsWarm) {
  if (testing::suite_is_on_a_device()) GTEST_SKIP() << "a device's kernels are queued as the runtime likes";
  Drafting drafting(GetParam(), 2);
  const SamplingParams sampling = sampling_of(Rule::kInvariant, 3);
  auto text = random_ids(40, 8);
  text.reserve(120);
  std::vector<HeadDraft> drafts;
  for (int round = 0; round < 6; ++round) {
    drafting.hidden_states.texts[SequenceId(1)] = text;
    const HeadTask task{
        .sequence = SequenceId(1), .committed = text, .sampling = &sampling, .round = Round(1), .gamma = 4};
    const int64_t before = testing::allocations_here();
    drafting.drafter->draft({&task, 1}, drafting.hidden_states, drafts);
    if (round > 1) {
      EXPECT_EQ(testing::allocations_here() - before, 0) << "round " << round;
    }
    text.insert(text.end(), drafts[0].ids.begin(), drafts[0].ids.begin() + 3);
    text.emplace_back(7);
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, HeadDrafting, ::testing::ValuesIn(testing::kGoldenHeads),
                         testing::head_test_name);
INSTANTIATE_TEST_SUITE_P(OfTheHost, HeadDrafting, ::testing::ValuesIn(testing::kHeadsOfTheHost),
                         testing::head_test_name);

}  // namespace
}  // namespace outrider
