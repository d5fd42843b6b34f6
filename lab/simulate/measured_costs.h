// Costs of passes from a real run: the report of `generate`, or the result of `simulate fit`.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "lab/simulate/hardware.h"
#include "lab/simulate/simulated_job.h"

namespace outrider {

struct MeasuredCosts {
  JobOptions job;  // passes of target and draft, and the links between the roles
  std::vector<CostSource> sources;
};

// The cost model in a `generate --report` file, or a file of `simulate fit`.
Result<MeasuredCosts> measured_costs(const std::string& path);

}  // namespace outrider
