// `outrider simulate replay`: recorded rounds through any policies, side by side.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace CLI {
class App;
}

namespace outrider {

struct ReplayOptions {
  std::string file;
  std::vector<std::string> policies;  // empty: fixed lengths and every policy that can be replayed
  std::string report;
};

void add_replay_options(CLI::App& app, ReplayOptions& options);
Status run_replay(const ReplayOptions& options);

}  // namespace outrider
