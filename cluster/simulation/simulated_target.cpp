#include "cluster/simulation/simulated_target.h"

#include <algorithm>

#include "cluster/simulation/simulated_text.h"

namespace outrider {

StepResult SimulatedTarget::verify(const StepPlan& plan) {
  StepResult result{.step = plan.step, .verdicts = {}};
  int64_t rows = 0, context = 0;
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
  }
  // What a row is, nobody looks at.
  for (const StateAsk& ask : plan.states)
    result.states.push_back({.sequence = ask.sequence,
                             .first = ask.first,
                             .ids = {},
                             .width = 1,
                             .values = std::vector<uint16_t>(static_cast<size_t>(ask.count))});
  const double seconds = plan.entries.empty() ? 0 : cost_.seconds(rows, context);
  busy_ += seconds;
  result.forward_ns = static_cast<int64_t>(seconds * 1e9 + 0.5);
  return result;
}

}  // namespace outrider
