// The draft worker of a rank, as a child process without MPI: it may be killed, and is then replaced, while
// the death of a rank would end the job.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "start/settings.h"

namespace outrider {

// The child's connection to the coordinator, and its number of threads (role_threads.h).
struct DraftChildOptions {
  std::string endpoint;
  std::optional<CurveKeys> curve;
  int threads = 0;  // --threads; 0: part of `cores`, by the size of its weights
  int cores = 0;    // cores that it may use
};

// Its command line, without keys.
std::vector<std::string> draft_child_arguments(const RoleSettings& settings, const DraftChildOptions& child);

// Keeps a child running until the coordinator says on `line`, the rank's own connection, that the job has
// ended. An error: the first child could not work at all. Failures of later children are reported, and the
// job goes on.
Status supervise_draft_child(const RoleSettings& settings, const DraftChildOptions& child, Transport& line);

}  // namespace outrider
