// Gumbel-coupled verification (Daliri, Musco, Suresh 2024): the target's token at a position is argmax of its
// logits plus noise that the draft shares; a draft token survives if it is the same. The text never depends
// on the draft.
#include <limits>

#include "target_worker/rules/decisions.h"
#include "target_worker/rules/rules.h"

namespace outrider {
namespace {

TokenId noisy_argmax(std::span<const float> logits, int row, RuleDraws& draws) {
  TokenId best(-1);
  float best_score = -std::numeric_limits<float>::infinity();
  for (int32_t v = 0; v < static_cast<int32_t>(logits.size()); ++v) {
    const float logit = logits[static_cast<size_t>(v)];
    if (logit == -std::numeric_limits<float>::infinity()) continue;
    const float score = logit + draws.noise(row, TokenId(v));
    if (best.value() >= 0 && score <= best_score) continue;
    best = TokenId(v);
    best_score = score;
  }
  return best;
}

}  // namespace

RuleOutcome InvariantRule::decide(const RuleInput& input, RuleDraws& draws) const {
  std::vector<TokenId> target;
  for (size_t row = 0; row < input.logits.size(); ++row)
    target.push_back(noisy_argmax(input.logits[row], static_cast<int>(row), draws));
  const int accepted = count_matches(input.draft, target);
  return {accepted, target[static_cast<size_t>(accepted)]};
}

}  // namespace outrider
