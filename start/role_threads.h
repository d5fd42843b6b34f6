// How many threads a role computes with, wherever it starts: one rule for the threads of a process, the ranks
// of mpirun, their draft children and workers that join.
#pragma once

#include <cstdint>

#include "transformer/model/model.h"

namespace outrider {

// How the threads of one process are shared out.
struct RoleThreads {
  int count = 1;  // at most
  bool spin = false;
  int cores = 0;  // that it may count on, where other processes have theirs among them, too; 0: not known
  int64_t bytes_each = ModelOptions().bytes_per_thread;  // weights that make a thread worth waking

  // What a model of so many bytes uses (ThreadPool).
  int of(int64_t weight_bytes) const;
};

// `asked`: --threads of the process, which is taken at its word as far as a thread has anything to read; 0:
// as many of the cores that it may count on as the weights are worth.
RoleThreads role_threads(int asked, int cores);

// The threads of roles that share one process; `draft_asked`: --draft-threads, of all ranks of a drafter.
struct LocalThreads {
  RoleThreads target, draft;  // of each target rank, of each rank of a drafter
};
LocalThreads local_threads(int asked, int draft_asked, int ranks, int cores, int draft_ranks = 1);

// The threads of a draft worker in a process of its own that sees `usable` cores; `told`: those it was told
// to count on, 0: all.
RoleThreads worker_threads(int asked, int told, int usable);

}  // namespace outrider
