// Token-wise rejection (Leviathan et al. 2023, Alg. 1; Chen et al. 2023, Alg. 2).
#include "target_worker/rules/decide.h"
#include "target_worker/rules/decisions.h"
#include "target_worker/rules/rules.h"

namespace outrider {

int count_token_accepted(std::span<const TestedToken> tests) {
  size_t i = 0;
  while (i < tests.size() && token_accepted(tests[i].p, tests[i].q, tests[i].u)) ++i;
  return static_cast<int>(i);
}

void residual_row(std::span<const double> p, std::span<const double> q, double ratio,
                  std::vector<double>& out) {
  out.resize(p.size());
  for (size_t v = 0; v < p.size(); ++v) {
    const double excess = ratio * p[v] - q[v];
    out[v] = excess > 0 ? excess : 0;
  }
}

std::vector<TestedToken> tested_tokens(const RuleInput& input, RuleDraws& draws) {
  std::vector<TestedToken> tests(input.draft.size());
  for (size_t i = 0; i < tests.size(); ++i) {
    const auto x = static_cast<size_t>(input.draft[i].value());
    tests[i] = {input.p[i][x], input.q[i][x], draws.accept_uniform(static_cast<int>(i))};
  }
  return tests;
}

TokenId draw_recovery(const RuleInput& input, int row, double ratio, RuleDraws& draws) {
  std::vector<double> residual;
  residual_row(input.p[static_cast<size_t>(row)], input.q[static_cast<size_t>(row)], ratio, residual);
  // Empty only by rounding, when p and q agree: a rejection had probability 0 then.
  return draws.mass(residual) > 0 ? draws.draw_residual(row, residual) : draws.draw_target(row);
}

RuleOutcome TokenRule::decide(const RuleInput& input, RuleDraws& draws) const {
  const int gamma = static_cast<int>(input.draft.size());
  const int accepted = count_token_accepted(tested_tokens(input, draws));
  if (accepted == gamma) return {gamma, draws.draw_target(gamma)};
  return {accepted, draw_recovery(input, accepted, 1, draws)};
}

}  // namespace outrider
