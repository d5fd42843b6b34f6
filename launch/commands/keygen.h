// `outrider keygen`: a key pair for connections that leave the machine.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace outrider {

struct KeygenOptions {
  std::string file;
};

void add_keygen_options(CLI::App& app, KeygenOptions& options);

// Writes FILE (mode 0600: both keys) and FILE.pub (the public one, to hand out). Returns the exit code.
int run_keygen(const KeygenOptions& options);

}  // namespace outrider
