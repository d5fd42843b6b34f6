// Streams of the emulation that wait for somebody else, as behind a kernel of another library.
#pragma once

#include <functional>

#include "base/cuda.h"

namespace outrider::cuda::emulation {

// What is queued behind it waits until `done` returns true. The stream's owner calls it whenever the stream
// is waited for, asked about or given more work.
void hold_up(StreamView stream, std::function<bool()> done);

}  // namespace outrider::cuda::emulation
