// `outrider generate`: text for a prompt or a file of prompts, with or without a drafter.
#pragma once

#include "start/flags/options.h"

namespace outrider {

// In one process, or as one rank of an mpirun. Returns the exit code; errors were printed.
int run_generate(RunOptions options);

}  // namespace outrider
