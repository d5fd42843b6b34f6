// GOODSPEED (2512.09963): proportional fairness among the sequences of one verifier.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace outrider {

// Gradient scheduling of the utility sum of log(goodput): the lengths S that maximise
//
//   sum over i of (1 - acceptance_i^(S_i + 1)) / (1 - acceptance_i) / goodput_i,   sum of S_i <= budget
//
// Each further token of a sequence adds acceptance_i^S_i / goodput_i, which falls with S_i, so the largest
// gain first is best. All of the budget is spent, whatever it costs.
std::vector<int32_t> fair_shares(std::span<const double> acceptance, std::span<const double> goodput,
                                 std::span<const int32_t> limits, int32_t budget);

}  // namespace outrider
