#include "heads/stop_rule.h"

#include <cmath>

namespace outrider {

bool may_stop(const StopRule& rule) {
  return rule.kind == StopKind::kSvip || rule.kind == StopKind::kAdaEdl || rule.kind == StopKind::kConfidence;
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
