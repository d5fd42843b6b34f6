// `outrider serve`: the OpenAI-compatible API over one engine, until a signal ends it.
#pragma once

#include <string>
#include <vector>

#include "serve/api/api.h"

namespace CLI {
class App;
}

namespace outrider {

// Also sets the defaults that differ from those of `generate`.
void add_serve_options(CLI::App& app, ServeOptions& options);

// Checks of options that need neither a port nor a model.
Status check_serve_options(const ServeOptions& options);
// One key a line; none without a file.
Result<std::vector<std::string>> read_api_keys(const std::string& file);
// A warning if other machines can connect without a key; empty otherwise.
std::string explain_exposure(const ServeOptions& options);

// In one process, or as one rank of an mpirun. Returns the exit code of generate.h: kExitOk after SIGTERM or
// SIGINT; errors were printed.
int run_serve(const ServeOptions& options);

}  // namespace outrider
