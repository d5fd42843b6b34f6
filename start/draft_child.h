// The draft worker of a rank, as a child process without MPI: it may be killed, and then gets a successor,
// while the death of a rank would end the job.
#pragma once

#include <optional>

#include "comm/transport.h"
#include "start/settings.h"

namespace outrider {

// How the child reaches the coordinator, and with how many threads it works.
struct DraftChildOptions {
  std::string endpoint;
  std::optional<CurveKeys> curve;
  int threads = 1;
};

// Keeps a child running until the coordinator says on `line`, the rank's own connection, that the job has
// ended. An error: the first child could not work at all. Later ones that cannot are told and not replaced:
// the job goes on.
Status supervise_draft_child(const RoleSettings& settings, const DraftChildOptions& child, Transport& line);

}  // namespace outrider
