#include "cluster/simulation/simulated_target.h"

#include <algorithm>
#include <utility>

#include "cluster/simulation/event_queue.h"
#include "cluster/simulation/simulated_drafter.h"
#include "cluster/simulation/simulated_text.h"

namespace outrider {

// A lockstep draft worker, with a clock of its own that stops during the target's passes.
class SimulatedTarget::Head {
 public:
  Head(const ForwardCost& cost, const AcceptanceProcess& acceptance)
      : drafter_(events_, cost, acceptance,
                 [this](Message message) { drafts_.push_back(std::get<Draft>(std::move(message))); }) {}

  void follow(const StepPlan& plan) {
    for (const SequenceId id : plan.closes) drafter_.receive(Close{id});
    for (const Open& open : plan.opens) drafter_.receive(open);
  }
  void committed(const PlanEntry& entry, const Verdict& verdict) {
    const auto accepted = static_cast<size_t>(verdict.accepted_count);
    std::vector<TokenId> ids(entry.draft.begin(), entry.draft.begin() + static_cast<ptrdiff_t>(accepted));
    ids.push_back(verdict.next);
    Epoch epoch = verdict.epoch;
    if (accepted < entry.draft.size()) ++epoch;
    drafter_.receive(Propose{.sequence = entry.sequence,
                             .epoch = epoch,
                             .round = entry.next_round,
                             .base = Position(entry.base.value() + verdict.accepted_count + 1),
                             .committed = std::move(ids),
                             .gamma = entry.next_gamma,
                             .stop = entry.next_stop});
  }
  void draft(StepResult& result) {
    const SimTime begin = events_.now();
    while (!events_.empty()) events_.run_next();
    result.drafts = std::exchange(drafts_, {});
    result.draft_ns = events_.now() - begin;
  }
  double busy_seconds() const { return drafter_.busy_seconds(); }

 private:
  EventQueue events_;
  std::vector<Draft> drafts_;
  SimulatedDrafter drafter_;
};

SimulatedTarget::SimulatedTarget(const ForwardCost& cost, const AcceptanceProcess& acceptance,
                                 const ForwardCost* head)
    : cost_(cost),
      acceptance_(acceptance),
      head_(head ? std::make_unique<Head>(*head, acceptance) : nullptr) {}
SimulatedTarget::SimulatedTarget(SimulatedTarget&&) noexcept = default;
SimulatedTarget::~SimulatedTarget() = default;

double SimulatedTarget::drafting_seconds() const { return head_ ? head_->busy_seconds() : 0; }

StepResult SimulatedTarget::verify(const StepPlan& plan) {
  StepResult result{.step = plan.step, .verdicts = {}};
  int64_t rows = 0, context = 0;
  if (head_) head_->follow(plan);
  for (const PlanEntry& entry : plan.entries) {
    const auto drafted = static_cast<int32_t>(entry.draft.size());
    rows += entry.input_count + drafted;
    context += entry.first_input.value() + entry.input_count;
    if (entry.first_input.value() + entry.input_count < entry.base.value()) continue;  // a prefill chunk
    const int32_t accepted = acceptance_.accepted_count(entry.sequence, entry.base.value(), drafted);
    const int32_t guess = acceptance_.next_guess(entry.sequence, entry.base.value(), accepted, drafted);
    result.verdicts.push_back({.sequence = entry.sequence,
                               .epoch = entry.epoch,
                               .round = entry.round,
                               .base = entry.base,
                               .accepted_count = accepted,
                               .next = TokenId(std::min(guess, kGuesses - 1)),
                               .logprobs = {}});
    if (head_) head_->committed(entry, result.verdicts.back());
  }
  // The content of the rows is never used in a simulation.
  for (const HiddenStateRequest& ask : plan.hidden_states)
    result.hidden_states.push_back({.sequence = ask.sequence,
                                    .first = ask.first,
                                    .ids = {},
                                    .width = 1,
                                    .values = std::vector<uint16_t>(static_cast<size_t>(ask.count))});
  const double seconds = plan.entries.empty() ? 0 : cost_.seconds(rows, context);
  busy_ += seconds;
  result.forward_ns = static_cast<int64_t>(seconds * 1e9 + 0.5);
  if (head_) head_->draft(result);
  return result;
}

}  // namespace outrider
