// A drafter that proposes tokens to the draft model: the draft model's drafts stay the same, whatever is
// proposed.
#include "draft_worker/model/staged_drafts.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "draft_worker/drafter.h"
#include "draft_worker/text/text_drafter.h"
#include "tests/support/test_models.h"

namespace outrider {
namespace {

constexpr int kStagedVocab = 302;

// Knows what the draft model will draw, and says something else now and then.
class Oracle final : public TextGuesser {
 public:
  explicit Oracle(double wrong) : wrong_(wrong) {}
  void open(SequenceId, std::span<const TokenId>, int32_t, bool) override {}
  void extend(SequenceId, std::span<const TokenId>) override {}
  void close(SequenceId) override {}
  void guess(SequenceId sequence, std::span<const TokenId> text, int32_t most,
             std::vector<TokenId>& out) override {
    const auto& [base, truth] = truths[sequence.value()];
    for (size_t i = text.size() - base; i < truth.size() && static_cast<int32_t>(out.size()) < most; ++i)
      out.push_back(std::bernoulli_distribution(wrong_)(random_) ? TokenId(static_cast<int32_t>(i))
                                                                 : truth[i]);
  }
  void verified(SequenceId, int32_t right) override { right_ += right; }

  std::map<uint64_t, std::pair<size_t, std::vector<TokenId>>> truths;  // of each round: base, tokens
  int right_ = 0;

 private:
  const double wrong_;
  std::mt19937 random_{7};
};

struct Worker {
  explicit Worker(std::shared_ptr<TextGuesser> guesser) {
    drafter = make_model_drafter(*model, {.max_sequences = 3,
                                          .eos_ids = {TokenId(17)},
                                          .now = [this] { return Time(std::chrono::nanoseconds(++ticks)); },
                                          .guesser = std::move(guesser)});
  }
  using Time = std::chrono::steady_clock::time_point;

  // The drafts for these Proposes, in the same order.
  std::vector<Draft> draft(const std::vector<Propose>& rounds) {
    for (const Propose& round : rounds) EXPECT_TRUE(drafter->begin(round).ok());
    std::vector<DraftAnswer> answers;
    for (; answers.size() < rounds.size(); ++passes) CHECK(drafter->work(answers), "never answered");
    std::vector<Draft> drafts;
    for (const Propose& round : rounds)
      for (DraftAnswer& answer : answers) {
        if (answer.draft.sequence != round.sequence) continue;
        EXPECT_TRUE(answer.status.ok()) << answer.status.message();
        drafts.push_back(std::move(answer.draft));
      }
    EXPECT_TRUE(model->kv().check_invariants().ok());
    return drafts;
  }

  std::unique_ptr<Collectives> single = make_single_collectives();
  std::unique_ptr<Model> model = testing::load_or_die(
      testing::golden_model("qwen3"), {.max_rows = 24, .max_positions = 100, .kv_tokens = 600}, *single);
  std::unique_ptr<Drafter> drafter;
  int64_t ticks = 0;
  int passes = 0;
};

std::vector<TokenId> random_ids(size_t count, std::mt19937& random) {
  std::vector<TokenId> ids;
  for (size_t i = 0; i < count; ++i) ids.emplace_back(static_cast<int32_t>(random() % kStagedVocab));
  return ids;
}

struct Case {
  const char* name;
  SamplingParams sampling;
  QKind kind = QKind::kNone;
  StopRule stop = {};
  double wrong = 0.3;
};

class DraftsForTheDrafter : public ::testing::TestWithParam<Case> {};

TEST_P(DraftsForTheDrafter, AreThoseOfTheModelAlone) {
  const Case& param = GetParam();
  const auto oracle = std::make_shared<Oracle>(param.wrong);
  Worker staged(oracle), alone(nullptr);
  std::mt19937 random(5);
  std::vector<std::vector<TokenId>> texts, unseen(2);
  for (uint64_t id = 1; id <= 2; ++id) {
    texts.push_back(random_ids(5 + id, random));
    const Open open{.sequence = SequenceId(id),
                    .ids = texts.back(),
                    .prompt_length = static_cast<int32_t>(texts.back().size()),
                    .sampling = param.sampling};
    ASSERT_TRUE(staged.drafter->open(open).ok() && alone.drafter->open(open).ok());
  }
  for (uint32_t round = 1; round < 14; ++round) {
    std::vector<Propose> rounds;
    for (uint64_t id = 1; id <= 2; ++id)
      rounds.push_back({.sequence = SequenceId(id),
                        .round = Round(round),
                        .base = Position(static_cast<int32_t>(texts[id - 1].size())),
                        .committed = unseen[id - 1],
                        .gamma = static_cast<int32_t>(random() % 8),
                        .q_kind = param.kind,
                        .row_bytes = 24,
                        .stop = param.stop,
                        .wants_guess = true});
    const std::vector<Draft> expected = alone.draft(rounds);
    for (size_t i = 0; i < expected.size(); ++i) oracle->truths[i + 1] = {texts[i].size(), expected[i].ids};
    const std::vector<Draft> drafts = staged.draft(rounds);
    ASSERT_EQ(drafts.size(), 2u);
    for (size_t i = 0; i < drafts.size(); ++i) {
      EXPECT_EQ(drafts[i].ids, expected[i].ids) << "round " << round;
      EXPECT_EQ(drafts[i].margins, expected[i].margins);
      EXPECT_EQ(drafts[i].eos, expected[i].eos);
      EXPECT_EQ(drafts[i].guess, expected[i].guess);
      EXPECT_EQ(drafts[i].prefix_hash, expected[i].prefix_hash);
      ASSERT_EQ(drafts[i].q.size(), expected[i].q.size());
      for (size_t q = 0; q < drafts[i].q.size(); ++q) {
        EXPECT_EQ(drafts[i].q[q].ids, expected[i].q[q].ids);
        EXPECT_EQ(drafts[i].q[q].weights, expected[i].q[q].weights);
      }
      const size_t accepted = random() % (drafts[i].ids.size() + 1);
      unseen[i].assign(drafts[i].ids.begin(), drafts[i].ids.begin() + static_cast<ptrdiff_t>(accepted));
      unseen[i].push_back(random_ids(1, random)[0]);
      texts[i].insert(texts[i].end(), unseen[i].begin(), unseen[i].end());
    }
  }
  for (uint64_t id = 1; id <= 2; ++id) staged.drafter->close(SequenceId(id));
  EXPECT_EQ(staged.model->kv().free_blocks(), staged.model->kv().num_blocks());
  if (param.wrong < 1) {
    EXPECT_GT(oracle->right_, 0);
    EXPECT_LT(staged.passes, alone.passes);
  }
}

constexpr SamplingParams kInvariant{.rule = Rule::kInvariant, .temperature = 1};
INSTANTIATE_TEST_SUITE_P(
    Rules, DraftsForTheDrafter,
    ::testing::Values(
        Case{"Greedy", {}}, Case{"Invariant", kInvariant}, Case{"AllRight", kInvariant, QKind::kNone, {}, 0},
        Case{"AllWrong", kInvariant, QKind::kNone, {}, 1},
        Case{"Penalties", {.rule = Rule::kInvariant, .temperature = 1, .repetition_penalty = 1.2f}},
        Case{"SparseQ", {.rule = Rule::kToken, .temperature = 1, .top_k = 20}, QKind::kSparse},
        Case{"DenseQ", {.rule = Rule::kBlock, .temperature = 1}, QKind::kDense},
        Case{
            "Entropy", kInvariant, QKind::kNone, {.kind = StopKind::kSvip, .threshold = 1.3f, .scale = 0.5f}},
        Case{"Confidence", kInvariant, QKind::kNone, {.kind = StopKind::kConfidence, .threshold = 0.02f}}),
    [](const auto& one) { return one.param.name; });

// Both kinds of passes are tried, the faster one is kept, and the other tried again now and then.
TEST(StageGain, KeepsWhatIsFaster) {
  for (const int64_t guess_ns : {15, 25}) {  // a pass with guesses draws two tokens, one without one in 10 ns
    StageGain gain;
    int with = 0;
    for (int pass = 0; pass < 400; ++pass) {
      const bool reads = gain.next();
      with += pass >= 8 && reads;
      gain.took(reads, reads ? 2 : 1, reads ? guess_ns : 10);
    }
    const int trials = (400 - 8) / 32;
    EXPECT_EQ(with, guess_ns < 20 ? 392 - trials : trials);
  }
}

}  // namespace
}  // namespace outrider
