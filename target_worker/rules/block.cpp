// Block verification (Sun et al. 2025): tests prefixes of the draft by their joint ratio; accepts at least as
// many tokens as token-wise rejection in expectation.
#include <algorithm>

#include "target_worker/rules/decisions.h"
#include "target_worker/rules/rules.h"

namespace outrider {

void block_ratios(std::span<const TestedToken> tests, std::vector<double>& ratios) {
  ratios.assign(1, 1.0);
  for (const TestedToken& test : tests) {
    // A drafted token has q > 0; with q = 0 the ratio would be unbounded unless p is 0 too.
    const double joint = ratios.back() * test.p;
    const double ratio = test.q > 0 ? joint / test.q : (joint > 0 ? 1.0 : 0.0);
    ratios.push_back(std::min(1.0, ratio));
  }
}

int count_block_accepted(std::span<const TestedToken> tests, std::span<const double> ratios,
                         std::span<const double> residual_mass) {
  int accepted = 0;
  const size_t gamma = tests.size();
  for (size_t i = 1; i <= gamma; ++i) {  // no early exit: the last success wins
    const double u = tests[i - 1].u;
    // h = S / (S + 1 - P), tested without the division; 0/0 counts as 0. The whole block's h is P itself.
    const bool success =
        i == gamma ? u < ratios[i] : u * (residual_mass[i] + 1 - ratios[i]) < residual_mass[i];
    if (success) accepted = static_cast<int>(i);
  }
  return accepted;
}

RuleOutcome BlockRule::decide(const RuleInput& input, RuleDraws& draws) const {
  const int gamma = static_cast<int>(input.draft.size());
  const std::vector<TestedToken> tests = tested_tokens(input, draws);
  std::vector<double> ratios, residual_mass, residual;
  block_ratios(tests, ratios);
  for (size_t i = 0; i < tests.size(); ++i) {
    residual_row(input.p[i], input.q[i], ratios[i], residual);
    residual_mass.push_back(draws.mass(residual));
  }
  const int accepted = count_block_accepted(tests, ratios, residual_mass);
  if (accepted == gamma) return {gamma, draws.draw_target(gamma)};
  return {accepted, draw_recovery(input, accepted, ratios[static_cast<size_t>(accepted)], draws)};
}

}  // namespace outrider
