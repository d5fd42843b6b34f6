#include "start/role_threads.h"

#include <algorithm>

#include "base/thread_pool.h"

namespace outrider {
namespace {

// Between two passes others have their turn on these cores, and helpers sleep: waking one takes 50 to 75
// microseconds on a virtual machine. Reading this much takes longer. Where other programs run it may take
// whole slices of the scheduler, but the pool does not wait for such a helper
// (docs/measurements/never-slower.md).
constexpr int64_t kBytesPerThread = int64_t{8} << 20;

}  // namespace

int RoleThreads::of(int64_t weight_bytes) const { return threads_worth(weight_bytes, bytes_each, count); }

RoleThreads role_threads(int asked, int cores) {
  const int count = asked > 0 ? asked : cores;
  RoleThreads threads{.count = count, .spin = count <= cores, .cores = cores};
  if (asked == 0) threads.bytes_each = kBytesPerThread;
  return threads;
}

LocalThreads local_threads(int asked, int draft_asked, int ranks, int cores, int draft_ranks) {
  const RoleThreads all = role_threads(asked, cores);
  LocalThreads local{.target = all, .draft = all};
  local.target.count = std::max(1, std::max(1, all.count - draft_asked) / ranks);
  local.target.spin = all.spin && ranks <= cores;
  // In lockstep draft and target take turns, so the drafter may use every thread too.
  if (draft_asked > 0) {
    local.draft = role_threads(draft_asked, cores);
    local.draft.spin = all.spin;
  }
  local.draft.count = std::max(1, local.draft.count / draft_ranks);
  return local;
}

// Its passes are far apart, and between them its cores are others': its helpers do not spin.
RoleThreads worker_threads(int asked, int told, int usable) {
  RoleThreads threads = role_threads(asked, told > 0 ? std::min(told, usable) : usable);
  threads.spin = false;
  return threads;
}

}  // namespace outrider
