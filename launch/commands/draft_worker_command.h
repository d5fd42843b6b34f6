// `outrider draft-worker`: joins a running job, drafts for it, and leaves when told, asked or alone for too
// long.
#pragma once

#include <string>
#include <vector>

#include "start/joining.h"
#include "start/settings.h"

namespace CLI {
class App;
}

namespace outrider {

struct DraftWorkerSettings : JoinSettings {
  RoleSettings run;  // what concerns a drafter
  std::vector<std::string> coordinators;  // each --connect; `connect` has the endpoints of one
  bool share = false;                     // drafts for all coordinators at once
  std::vector<double> share_weights;      // by coordinator; empty: equal
  int cores = 0;     // that --threads 0 may count on; 0: all this process may use
  int parent = 0;    // leave when this process, which started us, ends; 0: it does not matter
};

void add_draft_worker_options(CLI::App& app, DraftWorkerSettings& settings);

// Returns the exit code: kExitOk when it was asked to leave or the job ended, kExitUsage when it cannot work
// or was refused, kExitRuntime when there was no coordinator for too long.
int run_draft_worker_command(DraftWorkerSettings settings);

}  // namespace outrider
