// `outrider doctor`: what was found, and what a layout would place where.
#pragma once

#include "start/flags/options.h"

namespace outrider {

// `ranks`: as in mpirun -n; 0: describe this process only.
int run_doctor(const RunOptions& options, int ranks);

}  // namespace outrider
