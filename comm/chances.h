// StopKind::kChances (comm/messages.h), shared by the model drafter and the simulated one. Survival: the
// chance that all tokens of a draft up to the one at `place` are accepted; places count from 0.
#pragma once

#include <algorithm>
#include <cmath>

#include "comm/messages/draft_forms.h"

namespace outrider {

// Null: no rule at this place, or another kind of rule.
inline const PlaceRule* rule_at(const StopRule& rule, size_t place) {
  if (rule.kind != StopKind::kChances || rule.places.empty()) return nullptr;
  return &rule.places[std::min(place, rule.places.size() - 1)];
}

// The chance that the token at `place` is accepted after those before it. 1 without a rule.
inline double chance_of(const StopRule& rule, size_t place, double margin) {
  const PlaceRule* const at = rule_at(rule, place);
  if (!at) return 1;
  return 1 / (1 + std::exp(-(static_cast<double>(at->slope) * margin + static_cast<double>(at->offset))));
}

// Whether the token at `place` is withheld.
inline bool stops_before(const StopRule& rule, size_t place, double survival) {
  const PlaceRule* const at = rule_at(rule, place);
  return at && survival < static_cast<double>(at->least_sent);
}

// Whether the draft ends after it.
inline bool stops_after(const StopRule& rule, size_t place, double survival) {
  const PlaceRule* const at = rule_at(rule, place);
  return at && survival < static_cast<double>(at->least_extended);
}

}  // namespace outrider
