// `outrider target-group`: joins a running job as one of its target groups, in one process or as the ranks of
// an mpirun of its own, and leaves when told, asked or alone for too long.
#pragma once

#include "start/joining.h"
#include "start/settings.h"

namespace CLI {
class App;
}

namespace outrider {

struct TargetGroupSettings : JoinSettings {
  RoleSettings run;  // what concerns a target
};

void add_target_group_options(CLI::App& app, TargetGroupSettings& settings);

// Returns the exit code: kExitOk when it was asked to leave or the job ended, kExitUsage when it cannot work
// or was refused, kExitRuntime when a rank failed or there was no coordinator for too long.
int run_target_group_command(TargetGroupSettings settings);

}  // namespace outrider
