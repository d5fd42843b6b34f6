// `outrider batch`: answers the requests of an OpenAI batch file like a server, and writes the answers to
// another file.
#pragma once

#include <string>

#include "serve/api/api.h"

namespace CLI {
class App;
}

namespace outrider {

struct BatchOptions {
  ServeOptions serve;
  std::string input, output;
  int in_flight = 0;  // requests at once; 0: twice --max-num-seqs
};

void add_batch_options(CLI::App& app, BatchOptions& options);

// The exit code: kExitOk if every line was answered with status 200, else kExitRequestFailed.
int run_batch(const BatchOptions& options);

}  // namespace outrider
