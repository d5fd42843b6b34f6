// Counters of the work that emulated kernels did, as an indication of their cost on a device.
#pragma once

#include <cstdint>

namespace outrider::cuda::emulation {

// By asynchronous copies of all kernels so far: weights, and keys and values, and activations of wide
// products.
uint64_t copied_bytes();
// Kernels that ran so far.
uint64_t kernels_run();

}  // namespace outrider::cuda::emulation
