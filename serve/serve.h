// `outrider serve`: the OpenAI-compatible API over one engine, until a signal ends it.
#pragma once

#include <string>
#include <vector>

#include "serve/api/api.h"

namespace CLI {
class App;
}

namespace outrider {

// Sets what a server's defaults are where those of `generate` are others.
void add_serve_options(CLI::App& app, ServeOptions& options);

// What can be known to be wrong without opening a port or a model.
Status check_serve_options(const ServeOptions& options);
// One key a line; none without a file.
Result<std::vector<std::string>> read_api_keys(const std::string& file);
// Whether only this machine reaches it.
bool is_loopback(const std::string& host);
// For standard error, where strangers may ask: the host is not this machine's own, and there is no key.
std::string explain_exposure(const ServeOptions& options);

// In one process, or as one rank of an mpirun. Returns the exit code of generate.h: kExitOk after SIGTERM or
// SIGINT; errors were printed.
int run_serve(const ServeOptions& options);

}  // namespace outrider
