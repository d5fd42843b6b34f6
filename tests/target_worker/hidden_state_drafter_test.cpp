// A draft head at a target: its drafts after rejections equal its drafts after a fresh prefill. A group that
// drafts itself checks the requests it receives.
#include "target_worker/hidden_state_drafter.h"

#include <gtest/gtest.h>

#include <random>

#include "base/hash.h"
#include "target_worker/target_worker.h"
#include "tests/heads/golden_heads.h"

namespace outrider {
namespace {

constexpr SequenceId kDraftedSequence(7);

struct Drafting {
  explicit Drafting(const testing::GoldenHead& kind, std::vector<TokenId> prompt,
                    const SamplingParams& params)
      : sampling(params), ids(std::move(prompt)) {
    auto head = testing::load_head_or_die(kind, {.max_rows = 16, .max_positions = 120, .kv_tokens = 200});
    model = testing::load_or_die(
        testing::golden_model(testing::kHeadsTarget),
        {.max_positions = 120, .kv_tokens = 400, .aux_layers = head->config().aux_layers}, *group);
    const auto drafter = std::make_shared<HiddenStateDrafter>(
        *model, std::move(head), HiddenStateDrafterOptions{.q_kind = QKind::kDense});
    worker = std::make_unique<TargetWorker>(
        *model, *group, TargetOptions{.max_sequences = 2, .co_located_drafter = 1, .drafter = drafter});
  }

  // A pass over `draft` and what is committed but not read; the draft of the next round comes with it.
  Draft step(const Draft& draft, int32_t next_gamma) {
    StepPlan plan{.step = steps,
                  .state_hash = steps == 0 ? 0 : state_hash_term(kDraftedSequence, size(), kv, epoch)};
    if (steps == 0)
      plan.opens.push_back({.sequence = kDraftedSequence,
                            .ids = ids,
                            .prompt_length = static_cast<int32_t>(ids.size()),
                            .sampling = sampling});
    plan.entries.push_back({.sequence = kDraftedSequence,
                            .epoch = epoch,
                            .round = draft.round,
                            .base = Position(static_cast<int32_t>(size())),
                            .first_input = Position(static_cast<int32_t>(kv)),
                            .input_count = static_cast<int32_t>(size() - kv),
                            .draft = draft.ids,
                            .q_kind = draft.ids.empty() ? QKind::kNone : draft.q_kind,
                            .q = draft.q,
                            .next_gamma = next_gamma,
                            .next_round = Round(5)});
    const StepResult result = worker->step(plan);
    const Verdict& verdict = result.verdicts.at(0);
    EXPECT_EQ(verdict.status, VerdictStatus::kOk);
    ids.insert(ids.end(), draft.ids.begin(), draft.ids.begin() + verdict.accepted_count);
    ids.push_back(verdict.next);
    accepted += verdict.accepted_count;
    if (verdict.accepted_count < static_cast<int>(draft.ids.size())) ++epoch;
    kv = size() - 1;
    ++steps;
    EXPECT_EQ(result.drafts.size(), next_gamma > 0 ? 1u : 0u);
    return result.drafts.empty() ? Draft{} : result.drafts.front();
  }
  int64_t size() const { return static_cast<int64_t>(ids.size()); }

  std::unique_ptr<Collectives> group = make_single_collectives();
  std::unique_ptr<Model> model;
  std::unique_ptr<TargetWorker> worker;
  SamplingParams sampling;
  std::vector<TokenId> ids;
  int64_t kv = 0;
  Epoch epoch;
  uint64_t steps = 0;
  int64_t accepted = 0;
};

std::vector<TokenId> prompt_of(size_t count) {
  std::mt19937 random(4);
  std::vector<TokenId> ids;
  while (ids.size() < count) ids.emplace_back(static_cast<int32_t>(random() % 302));
  return ids;
}

class BesideTarget : public ::testing::TestWithParam<testing::GoldenHead> {};

TEST_P(BesideTarget, DraftsAfterRejectionsAreThoseOfAFreshPrefill) {
  for (const Rule rule : {Rule::kInvariant, Rule::kToken}) {
    const SamplingParams sampling{.rule = rule, .temperature = 1.4f, .seed = Seed{3}};
    Drafting running(GetParam(), prompt_of(21), sampling);
    std::mt19937 random(8);
    Draft draft = running.step({}, 4);
    while (running.size() < 80) {
      ASSERT_FALSE(draft.ids.empty());
      EXPECT_EQ(draft.base.value(), running.size());
      EXPECT_EQ(draft.epoch, running.epoch);
      EXPECT_EQ(draft.prefix_hash, prefix_hash(running.ids));
      // This text, of which the last token is this worker's first, is opened elsewhere.
      Drafting fresh(GetParam(), {running.ids.begin(), running.ids.end() - 1}, sampling);
      const Draft again = fresh.step({}, static_cast<int32_t>(draft.ids.size()));
      if (fresh.ids == running.ids) {  // under p/q rules this token may be another
        EXPECT_EQ(again.ids, draft.ids);
        ASSERT_EQ(again.q.size(), draft.q.size());
        for (size_t i = 0; i < draft.q.size(); ++i) EXPECT_EQ(again.q[i].weights, draft.q[i].weights);
      } else {
        EXPECT_EQ(rule, Rule::kToken);
      }
      // Some steps ask for no draft, so the head later prefills several tokens at once.
      if (random() % 4 == 0) (void)running.step(draft, 0), draft = {};
      draft = running.step(draft, 1 + static_cast<int32_t>(random() % 5));
    }
    EXPECT_GT(running.epoch.value(), 10u);
  }
}

TEST_P(BesideTarget, ADraftThatNobodyCanMakeIsAPlanThatMakesNoSense) {
  Drafting drafting(GetParam(), prompt_of(9), {});
  (void)drafting.step({}, 2);
  TargetWorker without(*drafting.model, *drafting.group, {.max_sequences = 2});
  StepPlan plan{
      .opens = {{.sequence = SequenceId(1), .ids = prompt_of(3), .prompt_length = 3, .sampling = {}}}};
  plan.entries.push_back({.sequence = SequenceId(1), .base = Position(3), .input_count = 3, .next_gamma = 2});
  try {
    (void)without.step(plan);
    FAIL() << "it drafted";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("next_gamma"), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, BesideTarget, ::testing::ValuesIn(testing::kGoldenHeads),
                         testing::head_test_name);

}  // namespace
}  // namespace outrider
