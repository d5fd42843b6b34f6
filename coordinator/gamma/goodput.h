// One decision for the whole batch (SmartSpec / TurboSpec): which sequences' next draft
// tokens are worth their place in the pass.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/costs/cost_model.h"

namespace outrider {

struct GoodputChoice {
  std::vector<int32_t> gammas;  // one per request
  double rate = 0;              // predicted tokens per second
};

// A request whose drafter must prefill a prompt before it drafts.
struct UnreadPrompt {
  double seconds = 0;     // prefill time; 0: no prefill is needed
  int32_t remaining = 0;  // tokens that the request probably still gets
};

// acceptance[r]: acceptance rate of request r's draft tokens. Starting from all zeros, adds the token with
// the largest chance of being reached, again and again; returns the best prefix of this order. The chance
// falls along each request, so this order maximises the numerator.
GoodputChoice allocate_goodput(std::span<const double> acceptance, std::span<const int32_t> limits,
                               const CostModel& cost, int64_t context);

// The same, with prefills only where they pay: the savings on the remaining tokens must exceed the cost of
// the prefill, for which all sequences wait, or which delays a target on the same devices. Sets the other
// limits to 0.
GoodputChoice allocate_goodput(std::span<const double> acceptance, std::span<int32_t> limits,
                               std::span<const UnreadPrompt> unread, const CostModel& cost, int64_t context);

}  // namespace outrider
