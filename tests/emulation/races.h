// Events that the emulation reports to the race checker (race_order.cpp, race_shadow.cpp). From these the
// checker derives the order of accesses on a device and finds unordered ones. Linked with races_absent.cpp,
// the emulation runs unchecked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/cuda.h"

namespace outrider::cuda::emulation::races {

// Memory that is watched. Zero-filled; that of a block is not.
void* allocate(Memory kind, size_t bytes);
void free_memory(void* memory) noexcept;
void* allocate_shared(size_t bytes);
void free_shared(void* memory) noexcept;

// For each stream the last operation that comes before; streams are numbered.
using Clock = std::vector<uint32_t>;
uint32_t open_stream();
Clock clock_of(uint32_t stream);  // everything that ran on it
void host_waited(const Clock&);   // what the host does from now on comes after

// One kernel, copy or fill of a stream, run by the calling thread.
void begin_operation(uint32_t stream);
void end_operation();
void read(const void* from, size_t bytes);  // by a copy
void written(void* to, size_t bytes);       // by a copy or a fill

// Inside of a kernel.
void begin_kernel(const void* kernel, bool early, unsigned threads);
void begin_block(unsigned block);
void end_block();
void resume(unsigned thread);
void await_inputs();
void block_met();
void warp_met(unsigned warp);
void copy_begins(void* to, const void* from, size_t bytes, const void* code);
void copy_arrives(void* to, size_t bytes);

// The races found since the last call, one text each. Only checked programs find any.
std::vector<std::string> take_reports();

}  // namespace outrider::cuda::emulation::races
