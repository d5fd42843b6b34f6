// `outrider generate`: text for a prompt or a file of prompts, with or without a drafter.
#pragma once

#include "launch/options.h"

namespace outrider {

// Exit codes of the program, stable.
constexpr int kExitOk = 0;
constexpr int kExitRequestFailed = 1;  // at least one request ended with an error
constexpr int kExitUsage = 2;          // a flag, file or request is wrong; nothing was generated
constexpr int kExitRuntime = 3;        // the target group failed, or results could not be written

// In one process, or as one rank of an mpirun. Returns the exit code; errors were printed.
int run_generate(const RunOptions& options);

}  // namespace outrider
