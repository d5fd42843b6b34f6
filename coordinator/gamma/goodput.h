// One decision for the whole batch (SmartSpec / TurboSpec): which sequences' next draft
// tokens are worth their place in the pass.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/cost_model.h"

namespace outrider {

struct GoodputChoice {
  std::vector<int32_t> gammas;  // one per request
  double rate = 0;              // predicted tokens per second
};

// A request whose drafter has a prompt to read before it drafts.
struct UnreadPrompt {
  double seconds = 0;     // that reading takes; 0: nothing is to be read
  int32_t remaining = 0;  // tokens that the request probably still gets
};

// acceptance[r]: of every draft token of request r. From all zeros the token with the largest chance of being
// reached is added again and again; the best prefix of these choices wins. Reach falls along each request, so
// that order is the best one for the numerator.
GoodputChoice allocate_goodput(std::span<const double> acceptance, std::span<const int32_t> limits,
                               const CostModel& cost, int64_t context);

// The same, where prompts are read only if that pays: what drafting saves on the tokens that are still to
// come must be more than the reading costs, for which all wait, or which delays the target where both share
// devices. Sets the limits of the others to 0.
GoodputChoice allocate_goodput(std::span<const double> acceptance, std::span<int32_t> limits,
                               std::span<const UnreadPrompt> unread, const CostModel& cost, int64_t context);

}  // namespace outrider
