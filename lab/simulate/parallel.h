// Independent simulations on all cores, with their progress.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"

namespace outrider {

// Calls work(0) to work(count - 1), each once, on `threads` threads (0: one per core); returns the first
// error by index. Progress of `what` goes to standard error, on a terminal as a line that changes, elsewhere
// as a line every few seconds; empty: no progress.
Status for_each_in_parallel(size_t count, int threads, const std::string& what,
                            const std::function<Status(size_t)>& work);

}  // namespace outrider
