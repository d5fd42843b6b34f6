// A target rank that receives invalid plans. For every field, the rank either refuses the plan before doing
// anything or executes it.
#include <gtest/gtest.h>

#include "base/hash.h"
#include "target_worker/target_worker.h"
#include "tests/heads/golden_heads.h"
#include "tests/support/hostile_fields.h"
#include "tests/support/test_models.h"

namespace outrider::testing {
namespace {

constexpr SequenceId kHeld(7), kOther(8), kNew(9), kLong(10), kTaker(11);

std::vector<TokenId> ids(int count) { return std::vector<TokenId>(static_cast<size_t>(count), TokenId(41)); }

Open open(SequenceId sequence, Rule rule) {
  return {.sequence = sequence,
          .ids = ids(6),
          .prompt_length = 5,
          .sampling = {.rule = rule, .temperature = 0.8f, .repetition_penalty = 1.1f, .logprobs = 1}};
}

PlanEntry entry(SequenceId sequence, uint32_t round, int base, int first_input) {
  return {.sequence = sequence,
          .round = Round(round),
          .base = Position(base),
          .first_input = Position(first_input),
          .input_count = base - first_input};
}

constexpr PrefixId kKept(4), kOtherKept(5), kNewKept(6);

PrefixChange keep(PrefixId prefix, SequenceId sequence, int32_t length) {
  return {.kind = PrefixChange::Kind::kKeep, .prefix = prefix, .sequence = sequence, .length = length};
}
PrefixChange cut(PrefixId prefix, int32_t length) {
  return {.kind = PrefixChange::Kind::kCut, .prefix = prefix, .sequence = {}, .length = length};
}

// A text of two blocks and some tokens.
Open long_open(SequenceId sequence) {
  return {.sequence = sequence, .ids = ids(35), .prompt_length = 35, .sampling = {.rule = Rule::kGreedy}};
}

// A rank that holds three sequences after their first pass, and two prefixes. It sends blocks to
// itself and takes them in; a real group either sends or takes in.
struct Rank {
  Rank() {
    StepPlan plan{.opens = {open(kHeld, Rule::kInvariant), open(kOther, Rule::kToken), long_open(kLong)},
                  .entries = {entry(kHeld, 0, 6, 0), entry(kOther, 0, 6, 0)}};
    plan.entries.push_back({.sequence = kLong, .base = Position(35), .first_input = {}, .input_count = 32});
    worker.step(plan);
    worker.step({.step = 1,
                 .state_hash = sequences(),
                 .prefixes = {keep(kKept, kHeld, 6), keep(kOtherKept, kOther, 3)}});
  }
  static uint64_t sequences() {
    return state_hash_term(kHeld, 7, 6, Epoch()) + state_hash_term(kOther, 7, 6, Epoch()) +
           state_hash_term(kLong, 35, 32, Epoch());
  }
  static uint64_t state() { return sequences() + prefix_hash_term(4, 6) + prefix_hash_term(5, 3); }
  // A plan that does something of everything.
  static StepPlan plan() {
    StepPlan plan{.step = 1,
                  .state_hash = state(),
                  .exports = {{.sequence = kLong, .transfer = 1, .first = {}, .count = 32, .inbox = 7}},
                  .prefixes = {keep(kNewKept, kOther, 6), cut(kOtherKept, 0)},
                  .closes = {kLong},
                  .opens = {open(kNew, Rule::kInvariant), long_open(kTaker)},
                  .entries = {entry(kHeld, 1, 7, 6), entry(kOther, 1, 7, 6), entry(kNew, 1, 6, 5)},
                  .imports = {{.sequence = kTaker, .transfer = 1, .first = {}, .count = 32}}};
    plan.opens[0].prefix = kKept;
    plan.opens[0].prefix_length = 5;
    plan.entries[0].draft = ids(2);
    plan.entries[1].draft = ids(1);
    plan.entries[1].q_kind = QKind::kSparse;
    plan.entries[1].q = {{.ids = {41}, .weights = {3}, .sum = 3}};
    plan.hidden_states = {{.sequence = kHeld, .first = Position(4), .count = 3},
                          {.sequence = kNew, .first = {}, .count = 6}};
    return plan;
  }
  // Closes one and goes on with another.
  static StepPlan short_plan() {
    StepPlan plan{.step = 1,
                  .state_hash = state(),
                  .prefixes = {cut(kKept, 4)},
                  .closes = {kHeld},
                  .entries = {entry(kOther, 1, 7, 6)}};
    return plan;
  }

  std::shared_ptr<InprocHub> hub = make_inproc_hub({.high_water_mark = 64});
  std::unique_ptr<Collectives> group = make_single_collectives();
  std::unique_ptr<Head> head = load_head_or_die(kPairHeads[0], {.max_positions = 60});
  std::unique_ptr<Model> model = load_or_die(golden_model("qwen3"),
                                             {.max_rows = 48,
                                              .max_logit_rows = 20,
                                              .max_positions = 60,
                                              .kv_tokens = 400,
                                              .aux_layers = head->config().aux_layers},
                                             *group);
  TargetWorker worker{*model,
                      *group,
                      {.max_sequences = 4,
                       .hidden_state_head = 1,
                       .hidden_state_width = 64,
                       .hidden_states = std::make_shared<HiddenStateReader>(*model, head->projection(), 4),
                       .block_sender = std::make_shared<BlockSender>(
                           [this](uint64_t inbox) -> Result<std::unique_ptr<Transport>> {
                             if (inbox != 7) return invalid_argument("there is no such inbox");
                             return hub->connect();
                           },
                           BlockSenderOptions{}),
                       .block_inbox = std::make_shared<BlockInbox>(
                           hub->coordinator_end(), BlockInboxOptions{.block_bytes = model->kv().block_bytes(),
                                                                     .most_bytes = 1 << 24}),
                       .block_inbox_name = 7,
                       .block_wait = std::chrono::milliseconds(0)}};
};

std::vector<TokenId> verdict_ids(const StepResult& result) {
  std::vector<TokenId> found;
  for (const Verdict& verdict : result.verdicts) {
    found.emplace_back(verdict.accepted_count);
    found.push_back(verdict.next);
  }
  return found;
}

void expect_refused_or_done(const StepPlan& honest) {
  Rank reference;
  const auto expected = verdict_ids(reference.worker.step(honest));
  int refused = 0;
  auto rank = std::make_unique<Rank>();
  const int lies = for_each_lie(honest, [&](const Message& lie, const std::string& what) {
    SCOPED_TRACE(what);
    const StepPlan& plan = std::get<StepPlan>(lie);
    try {
      const StepResult result = rank->worker.step(plan);
      EXPECT_LE(result.verdicts.size(), plan.entries.size());
      EXPECT_LE(result.hidden_states.size(), plan.hidden_states.size());
      EXPECT_EQ(result.exported.size(), plan.exports.size());
      EXPECT_EQ(result.imported.size(), plan.imports.size());
      rank = std::make_unique<Rank>();
    } catch (const std::runtime_error&) {
      if (++refused % 10 != 0) return;  // nothing was done; now and then with a look
      EXPECT_EQ(verdict_ids(rank->worker.step(honest)), expected);
      rank = std::make_unique<Rank>();
    }
  });
  EXPECT_EQ(verdict_ids(rank->worker.step(honest)), expected);
  std::printf("  %d lies, %d refused\n", lies, refused);
  EXPECT_GT(refused, lies / 3);
}

TEST(LyingLeader, NoFieldOfAPlanHarms) {
  expect_refused_or_done(Rank::plan());
  expect_refused_or_done(Rank::short_plan());
}

std::string reason(const StepPlan& plan) {
  static Rank rank;
  try {
    rank.worker.step(plan);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "done";
}

TEST(LyingLeader, IsToldWhichField) {
  StepPlan plan = Rank::plan();
  plan.opens[0].prompt_length = 99;
  EXPECT_EQ(reason(plan), "step 1: step_plan: open: prompt_length is 99, not 1 to 6");
  plan = Rank::plan();
  plan.entries[0].sequence = SequenceId(5);
  EXPECT_EQ(reason(plan), "step 1: step_plan: has an entry of sequence 5, which is not open, or another");
  plan = Rank::plan();
  plan.entries[1].sequence = kHeld;
  EXPECT_EQ(reason(plan), "step 1: step_plan: has an entry of sequence 7, which is not open, or another");
  plan = Rank::plan();
  plan.entries[0].draft[1] = TokenId(302);
  EXPECT_EQ(reason(plan),
            "step 1: step_plan: entry of sequence 7: draft has id 302, outside a vocabulary of 302");
  plan = Rank::plan();
  plan.entries[0].input_count = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(reason(plan), "step 1: step_plan: entry of sequence 7: input_count is 2147483647, not 1 to 1");
  plan = Rank::plan();
  plan.entries[1].q_kind = QKind::kSlices;
  plan.entries[1].q.clear();
  EXPECT_EQ(reason(plan), "step 1: step_plan: entry of sequence 8: q_kind is slices, and there is no door");
  plan.entries[1].q_kind = QKind::kNone;
  EXPECT_EQ(reason(plan),
            "step 1: step_plan: entry of sequence 8: q_kind is none, which the token rule needs");
  plan = Rank::plan();
  plan.entries[2].base = Position(5);
  EXPECT_EQ(reason(plan), "step 1: step_plan: entry of sequence 9: first_input is 5, not 0 to 4");
  plan = Rank::plan();
  plan.closes = {kNew};
  EXPECT_EQ(reason(plan), "step 1: step_plan: closes sequence 9, which is not open");
  plan = Rank::plan();
  plan.opens.push_back(open(SequenceId(12), Rule::kGreedy));
  EXPECT_EQ(reason(plan), "step 1: step_plan: leaves 5 sequences open; planned 4");
  plan = Rank::plan();
  plan.exports[0].count = 48;
  EXPECT_EQ(reason(plan), "step 1: step_plan: exports tokens 0 to 48 of sequence 10, which has 32");
  plan = Rank::plan();
  plan.imports[0].sequence = kHeld;
  EXPECT_EQ(reason(plan),
            "step 1: step_plan: imports blocks of sequence 7, which is not open, or has an entry");
}

}  // namespace
}  // namespace outrider::testing
