#include "coordinator/rounds/draft_shares.h"

#include <gtest/gtest.h>

#include <map>

#include "coordinator/protocol.h"

namespace outrider {
namespace {

// A target and a drafter whose work takes time. No draft token is accepted.
class SharedTarget {
 public:
  // Milliseconds that a row adds to a pass of ten, and that a draft token takes.
  explicit SharedTarget(double row_ms = 0.5, double token_ms = 0.5)
      : protocol_(ProtocolOptions{.gamma_max = 64}, parse_gamma_policy("fixed:gamma=2").value()),
        row_ms_(row_ms),
        token_ms_(token_ms) {
    const ModelInfo model{
        .name = "m", .vocab_size = 100, .vocabulary_fingerprint = 1, .max_context = 4000, .isa = ""};
    for (const auto& [peer, role] : {std::pair{1, Role::kTarget}, std::pair{2, Role::kDraft}})
      take(MessageReceived{PeerId{static_cast<uint64_t>(peer)},
                           Hello{.role = role, .generation = {}, .model = model, .max_sequences = 8}});
  }
  void submit(uint64_t id, int gamma, bool pays) {
    Request request;
    request.prompt = {TokenId(1), TokenId(3)};
    request.max_tokens = 2000;
    if (gamma >= 0) request.gamma = parse_gamma_policy("fixed:gamma=" + std::to_string(gamma)).value();
    request.pays_for_drafts = pays;
    ids_[id] = request.prompt;
    take(Submit{SequenceId(id), std::move(request)});
  }
  // So many further passes.
  void run(int passes) {
    for (int i = 0; i < passes && plan_; ++i) answer();
  }
  int64_t drafted(uint64_t id) const { return drafted_.contains(id) ? drafted_.at(id) : 0; }
  int64_t rounds(uint64_t id) const { return static_cast<int64_t>(ids_.at(id).size()) - 2; }

 private:
  void take(Event event) {
    now_ += std::chrono::microseconds(100);
    for (Action& action : protocol_.step(std::move(event), now_)) {
      auto* const send = std::get_if<Send>(&action);
      if (!send) continue;
      if (const auto* propose = std::get_if<Propose>(&send->message); propose && propose->gamma > 0)
        asked_.push_back(*propose);
      if (const auto* plan = std::get_if<StepPlan>(&send->message)) plan_ = *plan;
    }
    if (asked_.empty()) return;
    const Propose propose = asked_.back();
    asked_.pop_back();
    const auto& ids = ids_.at(propose.sequence.value());
    now_ += milliseconds(propose.gamma * token_ms_);
    take(MessageReceived{PeerId{2},
                         Draft{.sequence = propose.sequence,
                               .epoch = propose.epoch,
                               .round = propose.round,
                               .base = propose.base,
                               .ids = std::vector<TokenId>(static_cast<size_t>(propose.gamma), TokenId(7)),
                               .parents = {},
                               .prefix_hash = prefix_hash(ids),
                               .q = {}}});
  }
  void answer() {
    const StepPlan plan = *std::exchange(plan_, std::nullopt);
    StepResult result{.step = plan.step};
    size_t rows = 0;
    for (const PlanEntry& entry : plan.entries) {
      auto& ids = ids_.at(entry.sequence.value());
      drafted_[entry.sequence.value()] += static_cast<int64_t>(entry.draft.size());
      rows += static_cast<size_t>(entry.input_count) + entry.draft.size();
      if (entry.first_input.value() + entry.input_count < entry.base.value()) continue;
      result.verdicts.push_back({.sequence = entry.sequence,
                                 .epoch = entry.epoch,
                                 .round = entry.round,
                                 .base = entry.base,
                                 .next = TokenId(5),
                                 .logprobs = {}});
      ids.push_back(TokenId(5));
    }
    now_ += milliseconds(10 + static_cast<double>(rows) * row_ms_);
    take(MessageReceived{PeerId{1}, result});
  }

  static Clock::duration milliseconds(double ms) {
    return std::chrono::nanoseconds(static_cast<int64_t>(ms * 1e6));
  }

  Clock::time_point now_{};
  Protocol protocol_;
  const double row_ms_, token_ms_;
  std::map<uint64_t, std::vector<TokenId>> ids_;
  std::map<uint64_t, int64_t> drafted_;
  std::vector<Propose> asked_;
  std::optional<StepPlan> plan_;
};

TEST(DraftShares, LongDraftsOfSomeDoNotFillThePassesOfOthers) {
  SharedTarget target;
  target.submit(1, 0, true);  // plain, which is a choice too
  for (uint64_t id = 2; id <= 5; ++id) target.submit(id, 64, true);
  target.run(400);
  EXPECT_GT(target.rounds(1), 390) << "the plain request waits for nothing";
  for (uint64_t id = 2; id <= 5; ++id) {
    EXPECT_GT(target.rounds(id), 390) << "who owes goes on without drafts";
    EXPECT_GE(target.drafted(id), 64);
    EXPECT_LT(target.drafted(id), 64 * 400 / 10);
  }
}

TEST(DraftShares, RequestsThatAskForTheSameAreNotHeldBack) {
  SharedTarget target;
  for (uint64_t id = 1; id <= 4; ++id) target.submit(id, 16, true);
  target.run(100);
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_GT(target.drafted(id), 16 * 90);
}

TEST(DraftShares, ARequestAloneAndTheServersOwnPolicyPayNothing) {
  SharedTarget alone, usual;
  alone.submit(1, 64, true);
  alone.run(100);
  EXPECT_GT(alone.drafted(1), 64 * 90);
  usual.submit(1, -1, false);
  usual.submit(2, 0, true);
  usual.run(100);
  EXPECT_GT(usual.drafted(1), 2 * 90);
}

TEST(DraftShares, DraftsThatCostNothingAreNotHeldBack) {
  SharedTarget target(0, 0);
  target.submit(1, 0, true);
  target.submit(2, 16, true);
  target.run(100);
  EXPECT_GT(target.drafted(2), 16 * 80);
}

TEST(DraftShares, ANewRequestOwesNothing) {
  SharedTarget target;
  target.submit(1, 64, true);
  target.submit(2, 0, true);
  target.run(50);
  const int64_t before = target.drafted(1);
  EXPECT_LT(before, 64 * 25);
  target.submit(3, 64, true);
  target.run(10);
  EXPECT_GE(target.drafted(3), 64) << "a new request owes nothing yet";
}

}  // namespace
}  // namespace outrider
