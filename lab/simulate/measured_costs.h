// What passes cost, from the report of a real run.
#pragma once

#include <string>

#include "base/status.h"
#include "lab/simulate/simulated_group.h"

namespace outrider {

// The cost model in a `generate --report` file: passes of target and draft, and the delay between the roles.
Result<GroupOptions> costs_from_report(const std::string& path);

}  // namespace outrider
