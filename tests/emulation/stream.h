// Work on emulated streams, and streams that wait for an external event, as behind a kernel of another
// library.
#pragma once

#include <functional>

#include "base/cuda.h"

namespace outrider::cuda::emulation {

// Runs `work` now, or behind what the stream waits for; while the stream is being captured, keeps it for the
// graph.
void enqueue(StreamView stream, std::function<void()> work);

// Work queued afterwards waits until `done` returns true. The stream's owner calls `done` whenever the stream
// is waited for, queried or given more work.
void hold_up(StreamView stream, std::function<bool()> done);

// How often the calling thread learnt that work had ended, by waiting for it or by asking.
uint64_t host_waits();
// Bytes that the calling thread asked to be copied to pinned memory: what comes to the host.
uint64_t bytes_to_host();

}  // namespace outrider::cuda::emulation
