// Naive match: the target samples its own token in every row; a draft token survives if it is the same.
#include "target_worker/rules/decisions.h"
#include "target_worker/rules/rules.h"

namespace outrider {

RuleOutcome NaiveRule::decide(const RuleInput& input, RuleDraws& draws) const {
  std::vector<TokenId> target;
  for (size_t row = 0; row <= input.draft.size(); ++row)
    target.push_back(draws.draw_target(static_cast<int>(row)));
  const int accepted = count_matches(input.draft, target);
  return {accepted, target[static_cast<size_t>(accepted)]};
}

}  // namespace outrider
