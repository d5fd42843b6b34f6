// What the kernels of the emulation fetched.
#pragma once

#include <cstdint>

namespace outrider::cuda::emulation {

// By asynchronous copies of all kernels so far: weights, and keys and values.
uint64_t copied_bytes();

}  // namespace outrider::cuda::emulation
