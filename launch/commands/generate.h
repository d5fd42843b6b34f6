// `outrider generate`: text for a prompt or a file of prompts, with or without a drafter.
#pragma once

#include "start/flags/options.h"

namespace outrider {

// Ends the help of `outrider` and of `outrider generate`.
extern const char* const kGenerateExamples;

void add_generate_flags(CLI::App& app, RunOptions& options);

// In one process, or as one rank of an mpirun. Returns the exit code; errors were printed.
int run_generate(RunOptions options);

}  // namespace outrider
