// How many draft workers a coordinator takes.
#pragma once

namespace outrider {

inline constexpr int kMostDraftWorkers = 256;
inline constexpr int kMostEarlyWorkers = 128;  // of them, before there is a target

}  // namespace outrider
