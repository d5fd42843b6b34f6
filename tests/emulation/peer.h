// What the emulated device has for ranks that wait for each other. A test may change both between groups.
#pragma once

#include <atomic>

namespace outrider::cuda::emulation {

// As resident_blocks() says; an H100's. No block of the emulation keeps another one from running.
inline std::atomic<int> resident_blocks{132};
// Of an operation, however many its group may have: each costs time.
inline std::atomic<int> most_peer_blocks{4};

}  // namespace outrider::cuda::emulation
