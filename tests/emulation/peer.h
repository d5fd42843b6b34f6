// Limits of the emulated device for ranks that wait for each other. A test may change both between groups.
#pragma once

#include <atomic>

namespace outrider::cuda::emulation {

// As resident_blocks() says; an H100's. No block of the emulation keeps another one from running.
inline std::atomic<int> resident_blocks{132};
// Upper limit on the blocks of one operation, however many its group may use: each block costs emulation
// time.
inline std::atomic<int> most_peer_blocks{4};

}  // namespace outrider::cuda::emulation
