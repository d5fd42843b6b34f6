// The number of draft workers that pays, with cases whose rounds are computed by hand.
#include "coordinator/rounds/workers_wanted.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <memory>

#include "coordinator/costs/worker_cost.h"
#include "coordinator/protocol.h"

namespace outrider {
namespace {

// Passes of `base` seconds and `per_row` for each row; messages take no time.
std::unique_ptr<CostModel> passes(double base, double per_row) {
  return std::make_unique<CostModel>(
      CostPrior{.base = base, .per_row = per_row, .draft_token = 1, .weight = 1, .relative = false});
}

DraftedBatch batch(const CostModel& cost, int32_t sequences, DraftCost worker, double acceptance = 1,
                   int32_t gamma_max = 4) {
  return {.sequences = sequences,
          .cost = &cost,
          .worker = worker,
          .acceptance = acceptance,
          .gamma_max = gamma_max};
}

int32_t wanted(const DraftedBatch& only, int32_t room = 100) {
  return workers_wanted(std::array{only}, room);
}

// A pass takes 10, a draft token 1, sequences are served in turn. Two drafts of 4 tokens give 10 tokens:
// in 10 + 8 at one worker, in 10 + 4 at two. 2 / 10 < 10 / 18 < 10 / 14 = 1.29 * 10 / 18.
TEST(WorkersWanted, TwoRequestsAtOneBusyWorkerWantAnother) {
  const auto cost = passes(10, 0);
  EXPECT_EQ(wanted(batch(*cost, 2, {.per_step = 1, .per_further = 1})), 2);
  EXPECT_EQ(wanted(batch(*cost, 1, {.per_step = 1, .per_further = 1})), 1);
}

// One worker that drafts for both in one pass: 10 / (10 + 4) either way.
TEST(WorkersWanted, AWorkerThatDraftsForAllTogetherIsEnough) {
  const auto cost = passes(10, 0);
  EXPECT_EQ(wanted(batch(*cost, 2, {.per_step = 1, .per_further = 0})), 1);
  EXPECT_EQ(wanted(batch(*cost, 16, {.per_step = 1, .per_further = 0})), 1);
}

// A further sequence costs 0.1 a token: 10 / 14.4 at one, 10 / 14 at two, which is 3 % faster.
TEST(WorkersWanted, ASmallGainDoesNotPay) {
  const auto cost = passes(10, 0);
  EXPECT_EQ(wanted(batch(*cost, 2, {.per_step = 1, .per_further = 0.1})), 1);
}

// Plain decoding makes 2 tokens in 10. A draft token takes 12: 4 tokens (one each) in 10 + 12 or more.
TEST(WorkersWanted, NoneWhereDraftsDoNotPay) {
  const auto cost = passes(10, 0);
  EXPECT_EQ(wanted(batch(*cost, 2, {.per_step = 12, .per_further = 12})), 0);
  EXPECT_EQ(wanted(batch(*cost, 2, {.per_step = 1, .per_further = 1}, 0.05)), 0) << "5 % are accepted";
  const auto by_rows = passes(1, 10);
  EXPECT_EQ(wanted(batch(*by_rows, 2, {.per_step = 1, .per_further = 1}, 0.9)), 0) << "rows are dear";
}

TEST(WorkersWanted, NoneForNoRequest) {
  const auto cost = passes(10, 0);
  EXPECT_EQ(wanted(batch(*cost, 0, {.per_step = 1, .per_further = 1})), 0);
  EXPECT_EQ(workers_wanted({}, 100), 0);
  const CostModel unknown;
  EXPECT_EQ(wanted(batch(unknown, 0, {})), 0);
}

TEST(WorkersWanted, AGroupThatIsLostOrDraftsItselfCountsAsEmpty) {
  const auto cost = passes(10, 0);
  const DraftedBatch lost{.gamma_max = 4}, busy = batch(*cost, 2, {.per_step = 1, .per_further = 1});
  EXPECT_EQ(workers_wanted(std::array{lost}, 100), 0);
  EXPECT_EQ(workers_wanted(std::array{lost, busy}, 100), 2);
}

TEST(WorkersWanted, OneToMeasureWhatNoWorkerHasShown) {
  const CostModel unknown;
  EXPECT_EQ(wanted(batch(unknown, 7, {})), 1);
}

// Drafts cost nothing, but a worker takes two sequences: of six, 2, 4, 6 have drafts of 5 tokens, the others
// one token each. 6, 14, 22, 30 tokens a pass; the third worker gains 36 %.
TEST(WorkersWanted, SequencesWithoutAPlaceAtAWorkerCount) {
  const auto cost = passes(10, 0);
  EXPECT_EQ(wanted(batch(*cost, 6, {}), 2), 3);
  EXPECT_EQ(wanted(batch(*cost, 6, {}), 6), 1);
}

// With four requests one of three workers serves two, as each of two workers does: 20 / 26, 20 / 18, 20 / 18,
// 20 / 14. The fourth pays for itself and the third: 1.29 > 1.05 * 1.05.
TEST(WorkersWanted, GainsOfWorkersThatAreAddedTogetherCount) {
  const auto cost = passes(10, 0);
  EXPECT_EQ(wanted(batch(*cost, 4, {.per_step = 1, .per_further = 1})), 4);
}

TEST(WorkersWanted, GroupsShareTheWorkers) {
  const auto cost = passes(10, 0);
  const DraftedBatch one = batch(*cost, 1, {.per_step = 1, .per_further = 1});
  EXPECT_EQ(workers_wanted(std::array{one, one}, 100), 2);
  const DraftedBatch none = batch(*cost, 0, {});
  EXPECT_EQ(workers_wanted(std::array{one, none}, 100), 1);
}

TEST(WorkerCost, AStepOfOneDraftTellsTheStepAndOneOfSeveralTheRest) {
  WorkerCost cost;
  EXPECT_FALSE(cost.is_measured());
  for (int i = 0; i < 100; ++i) cost.observe(4, 8, 8);
  EXPECT_DOUBLE_EQ(cost.cost().per_step, 1) << "in turn, until there is a measurement";
  EXPECT_DOUBLE_EQ(cost.cost().per_further, 1);
  cost.observe(4, 4, 6);
  EXPECT_DOUBLE_EQ(cost.cost().per_step, 1.5);
  for (int i = 0; i < 100; ++i) cost.observe(4, 8, 9);
  EXPECT_DOUBLE_EQ(cost.cost().per_step, 1.5);
  EXPECT_NEAR(cost.cost().per_further, 0.75, 1e-3);
  for (int i = 0; i < 1000; ++i) cost.observe(4, 4, 6);
  EXPECT_NEAR(cost.cost().per_further, 0.75, 1e-3) << "one draft at a time says nothing about several";
  cost.observe(4, 4, 600);
  EXPECT_LT(cost.cost().per_step, 1.6) << "one draft that lost its core";
}

TEST(WorkerCost, TakesTheShareThatTheWorkerMeasured) {
  WorkerCost cost;
  cost.expect({.per_step = 2, .per_further = 0.5});
  cost.observe(4, 8, 10);
  EXPECT_DOUBLE_EQ(cost.cost().per_step, 2);
  EXPECT_DOUBLE_EQ(cost.cost().per_further, 0.5);
}

// ---- the whole coordinator ------------------------------------------------------------------------------

using std::chrono::milliseconds;

// A target whose passes take 10 ms, and workers that draft for their sequences in turn. Every token is 7.
class TimedCluster {
 public:
  TimedCluster(int workers, milliseconds token)
      : protocol_(ProtocolOptions{.gamma_max = 4}, parse_gamma_policy("fixed:gamma=4").value()),
        token_(token) {
    for (int peer = 1; peer <= workers + 1; ++peer)
      take(MessageReceived{PeerId{static_cast<uint64_t>(peer)},
                           Hello{.role = peer == 1 ? Role::kTarget : Role::kDraft,
                                 .generation = Generation{static_cast<uint64_t>(peer)},
                                 .model = {.name = "m",
                                           .vocab_size = 100,
                                           .vocabulary_fingerprint = 1,
                                           .max_context = 4000,
                                           .isa = ""},
                                 .max_sequences = 8}});
  }
  void submit(uint64_t id, int32_t tokens) {
    Request request;
    request.prompt = {TokenId(1), TokenId(3)};
    request.max_tokens = tokens;
    ids_[id] = request.prompt;
    take(Submit{SequenceId(id), std::move(request)});
  }
  void run(int passes) {
    for (int i = 0; i < passes && plan_; ++i) pass();
  }
  void lose_workers(int workers) {
    for (int peer = 2; peer <= workers + 1; ++peer)
      take(PeerLost{PeerId{static_cast<uint64_t>(peer)}, "gone"});
  }
  int32_t wanted() const { return protocol_.overview().workers_wanted; }

 private:
  void take(Event event) {
    std::vector<std::pair<PeerId, Propose>> asked;
    for (Action& action : protocol_.step(std::move(event), now_)) {
      auto* const send = std::get_if<Send>(&action);
      if (!send) continue;
      if (const auto* propose = std::get_if<Propose>(&send->message); propose && propose->gamma > 0)
        asked.emplace_back(send->to, *propose);
      if (const auto* plan = std::get_if<StepPlan>(&send->message)) plan_ = *plan;
    }
    asked_.insert(asked_.end(), asked.begin(), asked.end());
  }
  // The drafts of all workers, in the order in which they are ready, then the pass.
  void pass() {
    answer();
    std::map<PeerId, Clock::time_point> free;
    std::multimap<Clock::time_point, Event> drafts;
    for (const auto& [peer, propose] : std::exchange(asked_, {})) {
      const auto& ids = ids_.at(propose.sequence.value());
      Clock::time_point& at = free.try_emplace(peer, now_).first->second;
      at += propose.gamma * token_;
      drafts.emplace(
          at, MessageReceived{
                  peer, Draft{.sequence = propose.sequence,
                              .epoch = propose.epoch,
                              .round = propose.round,
                              .base = propose.base,
                              .ids = std::vector<TokenId>(static_cast<size_t>(propose.gamma), TokenId(7)),
                              .parents = {},
                              .prefix_hash = prefix_hash(ids),
                              .q = {},
                              .draft_ns = std::chrono::nanoseconds(propose.gamma * token_).count()}});
    }
    for (auto& [at, draft] : drafts) now_ = at, take(std::move(draft));
  }
  void answer() {
    const StepPlan plan = *std::exchange(plan_, std::nullopt);
    StepResult result{.step = plan.step};
    for (const PlanEntry& entry : plan.entries) {
      auto& ids = ids_.at(entry.sequence.value());
      if (entry.first_input.value() + entry.input_count < entry.base.value()) continue;
      result.verdicts.push_back({.sequence = entry.sequence,
                                 .epoch = entry.epoch,
                                 .round = entry.round,
                                 .base = entry.base,
                                 .accepted_count = static_cast<int32_t>(entry.draft.size()),
                                 .next = TokenId(7),
                                 .logprobs = {}});
      ids.resize(ids.size() + entry.draft.size() + 1, TokenId(7));
    }
    now_ += milliseconds(10);
    take(MessageReceived{PeerId{1}, result});
  }

  Clock::time_point now_{};
  Protocol protocol_;
  const milliseconds token_;
  std::map<uint64_t, std::vector<TokenId>> ids_;
  std::vector<std::pair<PeerId, Propose>> asked_;
  std::optional<StepPlan> plan_;
};

TEST(WorkersWanted, TheCoordinatorMeasuresWhatItTakes) {
  TimedCluster cluster(1, milliseconds(1));
  EXPECT_EQ(cluster.wanted(), 0) << "idle";
  cluster.submit(1, 3000);
  cluster.run(50);
  EXPECT_EQ(cluster.wanted(), 1);
  cluster.submit(2, 3000);
  cluster.run(50);
  EXPECT_EQ(cluster.wanted(), 2) << "the worker drafts for both in turn";
  cluster.lose_workers(1);
  cluster.run(20);
  EXPECT_EQ(cluster.wanted(), 2) << "the measurements outlive the worker";
  cluster.run(4000);
  EXPECT_EQ(cluster.wanted(), 0) << "idle";
}

TEST(WorkersWanted, TheSameNumberIsWantedWhileItIsThere) {
  TimedCluster cluster(2, milliseconds(1));
  cluster.submit(1, 3000);
  cluster.submit(2, 3000);
  cluster.run(300);
  EXPECT_EQ(cluster.wanted(), 2);
}

TEST(WorkersWanted, SlowDraftersAreNotWanted) {
  TimedCluster cluster(1, milliseconds(60));
  cluster.submit(1, 3000);
  cluster.submit(2, 3000);
  cluster.run(50);
  EXPECT_EQ(cluster.wanted(), 0);
}

}  // namespace
}  // namespace outrider
