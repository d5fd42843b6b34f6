// Shadow memory of the race checker: its record for every byte of device, pinned and shared memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace outrider::cuda::emulation::races {

enum class Access : uint8_t { kRead, kWrite, kAtomicRead, kAtomicWrite, kCopyWrite };

// All watched memory is one range of addresses, so that other memory costs one comparison.
extern const uintptr_t watched_begin;
constexpr uintptr_t kWatchedBytes = uintptr_t{64} << 30;
inline bool is_watched(uintptr_t at) { return at - watched_begin < kWatchedBytes; }
// An access that the code at `code` makes, by the running operation, or by the host where there is none.
void access(uintptr_t at, size_t bytes, Access access, const void* code);

}  // namespace outrider::cuda::emulation::races
