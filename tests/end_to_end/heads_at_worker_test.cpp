// Draft heads at a draft worker, which receive the target's hidden states. Their drafts equal those of a head
// at the target, and lost or late hidden states change no text.
#include <gtest/gtest.h>

#include <atomic>

#include "base/hash.h"
#include "draft_worker/head/head_drafting.h"
#include "target_worker/target_worker.h"
#include "tests/end_to_end/request_grid.h"
#include "tests/heads/golden_heads.h"
#include "tests/support/dying_wire.h"
#include "tests/support/law_samples.h"
#include "tests/support/row_faults.h"
#include "tests/support/token_law.h"

namespace outrider::heads_at_worker_test {
namespace {

using namespace grid;  // NOLINT: the grid's names
using testing::GoldenHead;
using testing::with_row_faults;

ClusterOptions at_worker(const GoldenHead& head, int tp_size, int batch) {
  return {.target = testing::kHeadsTarget,
          .head = testing::golden_head(head.name).string(),
          .head_at_worker = true,
          .head_kind = head.kind,
          .tp_size = tp_size,
          .max_num_seqs = batch};
}

ClusterOptions demo_pair(int tp_size, int batch) {
  const std::string pair = (source_dir() / "launch/demo_pair").string();
  return {.target = pair + "/target",
          .head = pair + "/eagle3",
          .head_at_worker = true,
          .tp_size = tp_size,
          .max_num_seqs = batch};
}

class HeadsAtWorker : public ::testing::TestWithParam<int> {};  // tensor-parallel size

TEST_P(HeadsAtWorker, TextIsThatOfPlainDecoding) {
  TestCluster plain({.target = kTarget});
  const auto expected = plain.run(grid_requests(kMatchRules, ""));
  size_t i = 0;
  for (const GoldenHead& head : testing::kGoldenHeads) {
    const int batch = ++i % 2 == 0 ? 1 : 8;
    ClusterOptions options = at_worker(head, GetParam(), batch);
    options.drafters = 1 + static_cast<int>(i % 3) / 2;
    options.wire = i % 2 == 0 ? Wire::kInproc : Wire::kZmqIpc;
    TestCluster cluster(options);
    const auto what = fmt::format("tp {}, head {}, batch {}", GetParam(), head.name, batch);
    expect_same(expected, cluster.run(grid_requests(kMatchRules, "fixed:gamma=4")), what);
    const Totals& totals = cluster.totals();
    EXPECT_GT(totals.rounds.accepted, 0) << what;
    EXPECT_GT(totals.rounds.rollbacks, kEnough) << what;
    // Rows are there before they are needed, unless a sequence moves.
    if (options.drafters == 1) {
      EXPECT_EQ(totals.resyncs, 0) << what;
    }
    EXPECT_EQ(totals.draft_deadlines_missed, 0) << what;
  }
}

TEST_P(HeadsAtWorker, ATrainedHeadDraftsAsWellAsBesideTheTarget) {
  ClusterOptions options = demo_pair(GetParam(), 1 + GetParam());
  const auto requests = [](const char* policy) {
    auto all = more_requests({Rule::kGreedy, Rule::kInvariant}, policy);
    all.resize(kSanitized ? 6 : 24);
    return all;
  };
  TestCluster plain({.target = options.target});
  const auto expected = plain.run(requests(""));
  TestCluster far(options);
  expect_same(expected, far.run(requests("fixed:gamma=4")), "at the worker");
  options.head_at_worker = false;
  TestCluster near(options);
  expect_same(expected, near.run(requests("fixed:gamma=4")), "beside the target");
  EXPECT_GT(far.totals().rounds.accepted, kEnough);
  EXPECT_NEAR(static_cast<double>(far.totals().rounds.accepted),
              static_cast<double>(near.totals().rounds.accepted),
              0.02 * static_cast<double>(near.totals().rounds.accepted));
}

INSTANTIATE_TEST_SUITE_P(TensorParallel, HeadsAtWorker, ::testing::Values(1, 2, 4));

// The text of the token and block rules is that of one seed, and losing rows costs time.
TEST(HeadsAtWorkerToo, PqRulesDependOnNoBatchNoRankAndNoLostRow) {
  ClusterOptions options = at_worker(testing::kGoldenHeads[0], 1, 1);
  TestCluster reference(options);
  const auto requests = [] {
    auto all = more_requests(kPqRules, "fixed:gamma=3");
    all.resize(24);
    return all;
  };
  const auto expected = reference.run(requests());
  EXPECT_GT(reference.totals().rounds.accepted, 0);
  for (const auto& [tp_size, batch] : {std::pair{1, 8}, {2, 3}, {4, 8}}) {
    ClusterOptions other = at_worker(testing::kGoldenHeads[0], tp_size, batch);
    TestCluster cluster(other);
    expect_same(expected, cluster.run(requests()), fmt::format("tp {}, batch {}", tp_size, batch));
  }
  options.max_num_seqs = 4;
  options.drafter_wire = with_row_faults({.lost = 0.1, .twice = 0.2, .late = 0.2});
  TestCluster faulty(options);
  expect_same(expected, faulty.run(requests()), "rows that are lost, late or come twice");
  EXPECT_GT(faulty.totals().resyncs, 0);
  EXPECT_EQ(faulty.totals().liveness_timeouts, 0);
}

TEST(HeadsAtWorkerToo, RowsThatAreLostCostNoText) {
  TestCluster plain({.target = kTarget});
  const auto requests = [](const char* policy) {
    auto all = more_requests({Rule::kGreedy, Rule::kInvariant}, policy);
    all.resize(kSanitized ? 4 : 20);
    return all;
  };
  const auto expected = plain.run(requests(""));
  for (const testing::RowFaults& faults : {testing::RowFaults{.lost = 0.3},
                                           {.twice = 1},
                                           {.late = 0.5},
                                           {.lost = 0.1, .twice = 0.3, .late = 0.3},
                                           {.lost = 1}}) {
    ClusterOptions options = at_worker(testing::kGoldenHeads[0], 1, 4);
    options.drafter_wire = with_row_faults(faults);
    if (faults.lost == 1) options.draft_timeout = std::chrono::milliseconds(50);
    TestCluster cluster(options);
    const auto what = fmt::format("lost {}, twice {}, late {}", faults.lost, faults.twice, faults.late);
    expect_same(expected, cluster.run(requests("fixed:gamma=4")), what);
    EXPECT_EQ(cluster.totals().drafts_used > 0, faults.lost < 1) << what;
    EXPECT_EQ(cluster.totals().resyncs > 0, faults.lost > 0) << what;  // who comes late is waited for
  }
}

TEST(HeadsAtWorkerToo, AnyNetworkGivesTheSameText) {
  TestCluster plain({.target = kTarget});
  const auto requests = [](const char* policy) {
    auto all = more_requests({Rule::kInvariant}, policy);
    all.resize(8);
    return all;
  };
  const auto expected = plain.run(requests(""));
  for (const char* link : {"delay=1ms,rate=100mbit", "loss=0.2", "reorder=0.5", "corrupt=0.2", "duplicate=1",
                           "delay=1ms,loss=0.1,duplicate=0.3,corrupt=0.1,reorder=0.3,links=all"}) {
    ClusterOptions options = at_worker(testing::kGoldenHeads[0], 1, 4);
    options.link = link;
    if (std::string(link).find("loss") != std::string::npos ||
        std::string(link).find("corrupt") != std::string::npos)
      options.draft_timeout = std::chrono::milliseconds(10);
    TestCluster cluster(options);
    expect_same(expected, cluster.run(requests("fixed:gamma=4")), link);
    EXPECT_GT(cluster.totals().proposals, 0) << link;
  }
}

// The sequences of the dead worker move to the other worker, which then needs all their rows of hidden
// states.
TEST(HeadsAtWorkerToo, AWorkerThatDiesLeavesItsSequencesToAnother) {
  TestCluster plain({.target = kTarget});
  const auto expected = plain.run(grid_requests({Rule::kInvariant}, ""));
  ClusterOptions options = at_worker(testing::kGoldenHeads[0], 2, 4);
  options.drafters = 2;
  std::atomic<int> workers = 0;
  options.drafter_wire = [&](std::unique_ptr<Transport> inner) {
    return std::make_unique<testing::DyingWire<Draft>>(std::move(inner), workers++ == 0 ? 19 : 1 << 30);
  };
  TestCluster cluster(options);
  expect_same(expected, cluster.run(grid_requests({Rule::kInvariant}, "fixed:gamma=4")), "a death");
  EXPECT_EQ(cluster.totals().workers_lost, 1);
  EXPECT_GT(cluster.totals().drafts_used, 40);
}

// Covers hidden states of a cached prompt prefix, and of a preempted sequence whose text is recomputed.
TEST(HeadsAtWorkerToo, PrefixesAndLittleMemoryChangeNoText) {
  TestCluster plain({.target = kTarget});
  const auto requests = [](const char* policy) {
    auto once = grid_requests({Rule::kGreedy}, policy), twice = grid_requests({Rule::kGreedy}, policy);
    for (Request& request : twice) once.push_back(std::move(request));
    return once;
  };
  const auto expected = plain.run(requests(""));
  for (const int64_t kv_tokens : {int64_t{0}, int64_t{128}}) {
    ClusterOptions options = at_worker(testing::kGoldenHeads[0], 1, 6);
    options.kv_tokens = kv_tokens;
    if (kv_tokens > 0) options.max_context = 100;
    TestCluster cluster(options);
    expect_same(expected, cluster.run(requests("fixed:gamma=4")), fmt::format("{} tokens", kv_tokens));
    EXPECT_GT(cluster.totals().prefix_hits, 0);
    EXPECT_EQ(cluster.totals().preemptions > 0, kv_tokens > 0);
    EXPECT_GT(cluster.totals().rounds.accepted, 0);
  }
}

TEST(HeadsAtWorkerToo, TokensFollowTheTarget) {
  const int samples = testing::repeated_law_samples();
  constexpr float kTemperature = 2.0f;
  const auto single = make_single_collectives();
  auto model = testing::load_or_die(testing::golden_model(kTarget), {}, *single);
  const std::vector<TokenId> prompt{TokenId(11), TokenId(14), TokenId(10)};
  const auto law = testing::law_of_second(*model, prompt, kTemperature);
  for (const QKind q_kind : {QKind::kSparse, QKind::kDense}) {
    ClusterOptions options = at_worker(testing::kGoldenHeads[0], 1, 8);
    options.q_kind = q_kind;
    options.row_bytes = q_kind == QKind::kSparse ? 64 : 0;
    TestCluster cluster(options);
    const Rule rule = q_kind == QKind::kSparse ? Rule::kToken : Rule::kBlock;
    auto all = testing::seeded_requests(prompt, {.rule = rule, .temperature = kTemperature}, samples);
    const auto seen = testing::count_second(cluster, std::move(all), law.size());
    testing::expect_follows(law, seen, std::string(rule_name(rule)));
    EXPECT_GT(cluster.totals().rounds.rollbacks, samples / 12);
    EXPECT_EQ(cluster.totals().dropped(DropReason::kBadQ), 0);
  }
}

// ---- one draft in both places ---------------------------------------------------------------------------

constexpr SequenceId kSequence(7);

// A target of one rank, and its head in one place or the other.
struct Place {
  Place(const GoldenHead& kind, bool is_beside) {
    head = testing::load_head_or_die(kind, {.max_rows = 16, .max_positions = 120, .kv_tokens = 200});
    model = testing::load_or_die(
        testing::golden_model(testing::kHeadsTarget),
        {.max_positions = 120, .kv_tokens = 400, .aux_layers = head->config().aux_layers}, *group);
    TargetOptions options{.max_sequences = 2};
    if (is_beside) {
      options.co_located_drafter = 1;
      options.drafter = std::make_shared<HiddenStateDrafter>(
          *model, std::move(head), HiddenStateDrafterOptions{.q_kind = QKind::kDense});
    } else {
      options.hidden_state_head = 1;
      options.hidden_state_width = static_cast<int32_t>(head->hidden_size());
      options.hidden_states = std::make_shared<HiddenStateReader>(
          *model, head->projection(), static_cast<int64_t>(head->config().aux_layers.size()));
      drafter = std::make_unique<HeadDrafting>(*head, HeadDraftingOptions{.read_ahead = 8});
    }
    worker = std::make_unique<TargetWorker>(*model, *group, std::move(options));
  }

  std::unique_ptr<Collectives> group = make_single_collectives();
  std::unique_ptr<Head> head;
  std::unique_ptr<Model> model;
  std::unique_ptr<TargetWorker> worker;
  std::unique_ptr<Drafter> drafter;
};

class OneDraft : public ::testing::TestWithParam<GoldenHead> {};

TEST_P(OneDraft, HasTheSameBitsInBothPlaces) {
  for (const Rule rule : {Rule::kInvariant, Rule::kToken}) {
    Place near(GetParam(), true), far(GetParam(), false);
    std::mt19937 random(4);
    std::vector<TokenId> ids;
    while (ids.size() < 21) ids.emplace_back(static_cast<int32_t>(random() % 302));
    const Open open{.sequence = kSequence,
                    .ids = ids,
                    .prompt_length = 21,
                    .sampling = {.rule = rule, .temperature = 1.4f, .seed = Seed{3}}};
    ASSERT_TRUE(far.drafter->open(open).ok());
    Draft draft;
    int32_t told = 0;
    size_t kv = 0;
    Epoch epoch;
    for (uint64_t step = 0; ids.size() < 80; ++step) {
      const int32_t gamma = static_cast<int32_t>(random() % 6);
      StepPlan plan{.step = step,
                    .state_hash = step == 0 ? 0
                                            : state_hash_term(kSequence, static_cast<int64_t>(ids.size()),
                                                              static_cast<int64_t>(kv), epoch)};
      if (step == 0) plan.opens.push_back(open);
      plan.entries.push_back({.sequence = kSequence,
                              .epoch = epoch,
                              .round = draft.round,
                              .base = Position(static_cast<int32_t>(ids.size())),
                              .first_input = Position(static_cast<int32_t>(kv)),
                              .input_count = static_cast<int32_t>(ids.size() - kv),
                              .draft = draft.ids,
                              .q_kind = draft.ids.empty() ? QKind::kNone : draft.q_kind,
                              .q = draft.q,
                              .next_gamma = gamma,
                              .next_round = Round(static_cast<uint32_t>(step) + 1)});
      const StepResult by_near = near.worker->step(plan);
      plan.entries[0].next_gamma = 0;
      plan.hidden_states.push_back({.sequence = kSequence, .first = Position(told), .count = 100 - told});
      StepResult by_far = far.worker->step(plan);
      const Verdict& verdict = by_far.verdicts.at(0);
      ids.insert(ids.end(), draft.ids.begin(), draft.ids.begin() + verdict.accepted_count);
      ids.push_back(verdict.next);
      if (verdict.accepted_count < static_cast<int>(draft.ids.size())) ++epoch;
      kv = ids.size() - 1;
      HiddenStateRows& rows = by_far.hidden_states.at(0);
      rows.ids.assign(ids.begin() + told + 1, ids.end());
      ASSERT_EQ(rows.values.size(), rows.ids.size() * static_cast<size_t>(rows.width));
      told = static_cast<int32_t>(kv);
      // Now and then rows pile up before they are wanted.
      ASSERT_TRUE(far.drafter->take(rows).ok());
      std::vector<DraftAnswer> answers;
      while (far.drafter->work(answers)) {
      }
      draft = {};
      if (gamma == 0) continue;
      const bool needs_rows = needs_q(rule);
      ASSERT_TRUE(far.drafter
                      ->begin({.sequence = kSequence,
                               .epoch = epoch,
                               .round = Round(static_cast<uint32_t>(step) + 1),
                               .base = Position(static_cast<int32_t>(ids.size())),
                               .gamma = gamma,
                               .q_kind = needs_rows ? QKind::kDense : QKind::kNone})
                      .ok());
      while (far.drafter->work(answers)) {
      }
      ASSERT_EQ(answers.size(), 1u);
      draft = answers[0].draft;
      const Draft& other = by_near.drafts.at(0);
      EXPECT_EQ(draft.ids, other.ids);
      EXPECT_EQ(draft.prefix_hash, other.prefix_hash);
      EXPECT_EQ(draft.base, other.base);
      EXPECT_EQ(draft.epoch, other.epoch);
      ASSERT_EQ(draft.q.size(), other.q.size());
      for (size_t i = 0; i < draft.q.size(); ++i) EXPECT_EQ(draft.q[i].weights, other.q[i].weights);
    }
    EXPECT_GT(epoch.value(), 3u);
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, OneDraft, ::testing::ValuesIn(testing::kGoldenHeads),
                         testing::head_test_name);

}  // namespace
}  // namespace outrider::heads_at_worker_test
