// Reads memory as fast as the device can: the ceiling that weight streaming is compared with.
#pragma once

#include <cstdint>

#include "base/cuda.h"

namespace outrider::gpu {

// Reads `bytes` (a multiple of 64 KB) once; *sink gets what the compiler must not drop.
void read_all(cuda::StreamView stream, const void* memory, int64_t bytes, int multiprocessors, float* sink);

}  // namespace outrider::gpu
