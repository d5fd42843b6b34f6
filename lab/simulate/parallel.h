// Independent simulations on all cores, with their progress.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"

namespace outrider {

// work(0) to work(count - 1), each once, on `threads` threads (0: one per core); returns the first error by
// index. `what` is done is told on standard error, on a terminal as a line that changes, elsewhere a line
// every few seconds; empty: nothing is.
Status for_each_in_parallel(size_t count, int threads, const std::string& what,
                            const std::function<Status(size_t)>& work);

}  // namespace outrider
