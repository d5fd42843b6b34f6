// The draft worker of a rank, as a child process without MPI: it may be killed, and then gets a successor,
// while the death of a rank would end the job.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "start/settings.h"

namespace outrider {

// How the child reaches the coordinator, and with how many threads it works (role_threads.h).
struct DraftChildOptions {
  std::string endpoint;
  std::optional<CurveKeys> curve;
  int threads = 0;  // asked for; 0: of `cores`, as many as its weights are worth
  int cores = 0;    // that it may count on
};

// Its command line, keys apart.
std::vector<std::string> draft_child_arguments(const RoleSettings& settings, const DraftChildOptions& child);

// Keeps a child running until the coordinator says on `line`, the rank's own connection, that the job has
// ended. An error: the first child could not work at all. Later ones that cannot are told and not replaced:
// the job goes on.
Status supervise_draft_child(const RoleSettings& settings, const DraftChildOptions& child, Transport& line);

}  // namespace outrider
