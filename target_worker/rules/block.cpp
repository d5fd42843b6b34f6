// Block verification (Sun et al. 2025): tests prefixes of the draft by their joint ratio; accepts at least as
// many tokens as token-wise rejection in expectation.
#include "target_worker/rules/decide.h"
#include "target_worker/rules/decisions.h"
#include "target_worker/rules/rules.h"

namespace outrider {

void block_ratios(std::span<const TestedToken> tests, std::vector<double>& ratios) {
  ratios.assign(1, 1.0);
  for (const TestedToken& test : tests) {
    ratios.push_back(next_block_ratio(ratios.back(), test.p, test.q));
  }
}

int count_block_accepted(std::span<const TestedToken> tests, std::span<const double> ratios,
                         std::span<const double> residual_mass) {
  int accepted = 0;
  const size_t gamma = tests.size();
  for (size_t i = 1; i <= gamma; ++i) {  // no early exit: the last success wins
    const bool whole = i == gamma;
    if (block_accepted(tests[i - 1].u, ratios[i], whole ? 0 : residual_mass[i], whole))
      accepted = static_cast<int>(i);
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
