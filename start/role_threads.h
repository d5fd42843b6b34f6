// The number of threads of a role, wherever it starts: one rule for the threads of a process, the ranks of
// mpirun, their draft children and workers that join.
#pragma once

#include <cstdint>

#include "model/model.h"

namespace outrider {

// The threads of one process.
struct RoleThreads {
  int count = 1;  // at most this many
  bool spin = false;
  int cores = 0;  // cores for its use, shared with other processes that count on theirs; 0: unknown
  int64_t bytes_each = ModelOptions().bytes_per_thread;  // weights that are worth one thread

  // The number of threads for a model with this many bytes of weights (ThreadPool).
  int of(int64_t weight_bytes) const;
};

// `asked`: --threads of the process, capped at one thread for each `bytes_each` of weights. 0: as many as
// `cores`, with the same cap.
RoleThreads role_threads(int asked, int cores);

// The threads of roles that share one process; `draft_asked`: --draft-threads, of all ranks of a drafter.
struct LocalThreads {
  RoleThreads target, draft;  // of each target rank, of each rank of a drafter
};
LocalThreads local_threads(int asked, int draft_asked, int ranks, int cores, int draft_ranks = 1);

// The threads of a draft worker in a process of its own with `usable` cores; `told`: the cores it was
// assigned, 0: all.
RoleThreads worker_threads(int asked, int told, int usable);

}  // namespace outrider
