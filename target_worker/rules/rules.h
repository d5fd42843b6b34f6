// The whole-row rules, one file each.
#pragma once

#include "target_worker/acceptance_rule.h"
#include "target_worker/rules/decisions.h"

namespace outrider {

struct GreedyRule final : AcceptanceRule {
  RuleOutcome decide(const RuleInput& input, RuleDraws& draws) const override;
};
struct InvariantRule final : AcceptanceRule {
  RuleOutcome decide(const RuleInput& input, RuleDraws& draws) const override;
};
struct NaiveRule final : AcceptanceRule {
  RuleOutcome decide(const RuleInput& input, RuleDraws& draws) const override;
};
struct TokenRule final : AcceptanceRule {
  RuleOutcome decide(const RuleInput& input, RuleDraws& draws) const override;
};
struct BlockRule final : AcceptanceRule {
  RuleOutcome decide(const RuleInput& input, RuleDraws& draws) const override;
};

// For rules with a q: what is tested, and the token after a rejection at `row`.
std::vector<TestedToken> tested_tokens(const RuleInput& input, RuleDraws& draws);
TokenId draw_recovery(const RuleInput& input, int row, double ratio, RuleDraws& draws);

}  // namespace outrider
