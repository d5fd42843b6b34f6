#include "draft_worker/stop_rule.h"

#include <algorithm>
#include <cmath>

namespace outrider {

// H = ln Z - sum of (l - max) e^(l - max) / Z.
DraftConfidence confidence_of(std::span<const float> processed, TokenId drawn) {
  const float max = *std::max_element(processed.begin(), processed.end());
  double mass = 0, moment = 0;
  for (const float logit : processed) {
    const double below = static_cast<double>(logit) - max;
    if (below < -80) continue;  // e^-80 is beyond a float's sum, and -inf was filtered out
    const double weight = std::exp(below);
    mass += weight;
    moment += below * weight;
  }
  const double chosen = static_cast<double>(processed[static_cast<size_t>(drawn.value())]) - max;
  return {.entropy = std::max(0.0, std::log(mass) - moment / mass), .probability = std::exp(chosen) / mass};
}

bool stops_before(const StopRule& rule, double entropy) {
  const double root = std::sqrt(static_cast<double>(rule.scale) * entropy);
  if (rule.kind == StopKind::kSvip) return root > static_cast<double>(rule.threshold);
  return rule.kind == StopKind::kAdaEdl && 1 - root < static_cast<double>(rule.threshold);
}

bool stops_after(const StopRule& rule, double probability) {
  return rule.kind == StopKind::kConfidence && probability < static_cast<double>(rule.threshold);
}

}  // namespace outrider
