// Limits on the number of draft workers.
#pragma once

namespace outrider {

inline constexpr int kMostDraftWorkers = 256;
inline constexpr int kMaxEarlyWorkers = 128;  // the part that may join before there is a target

}  // namespace outrider
