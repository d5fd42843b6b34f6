// The duration of one forward pass of a simulated model.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cluster/simulation/row_costs.h"

namespace outrider {

// seconds = max(base + experts(rows) + per_context * context, compute_per_row * rows) + per_row * rows +
// overhead: reading the weights and the KV cache, or computing, whichever is longer, and what comes on top.
// Where `curve` has points it is a factor of `base`. With compute_per_row 0 and no curve it is the linear
// model that the coordinator fits (coordinator/costs/cost_model.h).
struct ForwardCost {
  double base = 0, per_row = 0, per_context = 0, compute_per_row = 0, overhead = 0;
  // Mixture-of-experts layers: the time to read all experts, and the share of the experts that one row uses.
  double all_experts = 0, share_of_row = 0;
  RowCosts curve = {};
  // The rows of the block of a drafter whose pass makes a whole draft. 0: a pass makes a token.
  int32_t block_rows = 0;

  // Rows choose experts independently. Experts that no row chose are not read.
  double experts(double rows) const {
    return all_experts > 0 ? all_experts * (1 - std::pow(1 - share_of_row, rows)) : 0;
  }
  double seconds(int64_t rows, int64_t context) const {
    const double r = static_cast<double>(rows);
    return std::max(base * curve.of(r) + experts(r) + per_context * static_cast<double>(context),
                    compute_per_row * r) +
           per_row * r + overhead;
  }
};

}  // namespace outrider
