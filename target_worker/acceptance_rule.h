// The verification rules, written over whole rows as one rank with the full vocabulary would compute them:
// the specification that the sharded verifier must equal for the same draws. Letters: p = target, q = draft;
// row i (0-based) is the distribution of the token after i draft tokens, so row i tests draft[i] and row
// gamma gives the bonus token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/sampling_params.h"

namespace outrider {

struct RuleInput {
  std::span<const TokenId> draft;              // gamma
  std::span<const std::vector<float>> logits;  // gamma + 1 processed rows: greedy, invariant
  std::span<const std::vector<double>> p;      // gamma + 1 rows that sum to 1: naive, token, block
  std::span<const std::vector<double>> q;      // gamma rows that sum to 1: token, block
};

// Where a rule's randomness and sums come from: text-book doubles, or the fixed-point arithmetic of the
// engine.
class RuleDraws {
 public:
  virtual ~RuleDraws() = default;
  virtual double accept_uniform(int i) = 0;         // in [0, 1), for draft[i]
  virtual float noise(int row, TokenId token) = 0;  // Gumbel
  virtual double mass(std::span<const double> weights) = 0;
  virtual TokenId draw_target(int row) = 0;                                     // from p[row]
  virtual TokenId draw_residual(int row, std::span<const double> weights) = 0;  // weights need not sum to 1
};

struct RuleOutcome {
  int accepted_count = 0;  // 0..gamma
  TokenId next;            // recovery token if accepted_count < gamma, else bonus token
};

class AcceptanceRule {
 public:
  virtual ~AcceptanceRule() = default;
  virtual RuleOutcome decide(const RuleInput& input, RuleDraws& draws) const = 0;
};

const AcceptanceRule& acceptance_rule(Rule rule);

}  // namespace outrider
