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

// acceptance[r]: of every draft token of request r. From all zeros the token with the largest chance of being
// reached is added again and again; the best prefix of these choices wins. Reach falls along each request, so
// that order is the best one for the numerator.
GoodputChoice allocate_goodput(std::span<const double> acceptance, std::span<const int32_t> limits,
                               const CostModel& cost, int64_t context);

}  // namespace outrider
