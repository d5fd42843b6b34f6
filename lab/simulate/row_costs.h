// Reads the costs of passes by rows that a user gives.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "cluster/simulation/row_costs.h"

namespace outrider {

// ROWS=COST, e.g. "16=1.10", "64=1.3". An error names --row-costs.
Result<RowCosts> parse_row_costs(const std::vector<std::string>& texts);

}  // namespace outrider
