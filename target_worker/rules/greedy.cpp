// Greedy: the target's argmax, lowest id first; a draft token survives if it is the same.
#include <algorithm>

#include "target_worker/rules/decisions.h"
#include "target_worker/rules/rules.h"

namespace outrider {

int count_matches(std::span<const TokenId> draft, std::span<const TokenId> target) {
  size_t i = 0;
  while (i < draft.size() && draft[i] == target[i]) ++i;
  return static_cast<int>(i);
}

RuleOutcome GreedyRule::decide(const RuleInput& input, RuleDraws&) const {
  std::vector<TokenId> target;
  for (const auto& row : input.logits)
    target.emplace_back(static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
  const int accepted = count_matches(input.draft, target);
  return {accepted, target[static_cast<size_t>(accepted)]};
}

}  // namespace outrider
