// The emulation without its race checker.
#include <cstdlib>
#include <new>

#include "tests/emulation/races.h"

namespace outrider::cuda::emulation::races {

void* allocate(Memory, size_t bytes) {
  void* memory = std::calloc(1, bytes);
  if (!memory) throw std::bad_alloc();
  return memory;
}
void free_memory(void* memory) noexcept { std::free(memory); }

// Memory of the very size, so that AddressSanitizer sees what is behind it.
void* allocate_shared(size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 128, bytes) != 0) throw std::bad_alloc();
  return memory;
}
void free_shared(void* memory) noexcept { std::free(memory); }

uint32_t open_stream() { return 0; }
Clock clock_of(uint32_t) { return {}; }
void host_waited(const Clock&) {}
void begin_operation(uint32_t) {}
void end_operation() {}
void read(const void*, size_t) {}
void written(void*, size_t) {}
void begin_kernel(const void*, bool, unsigned) {}
void begin_block(unsigned) {}
void end_block() {}
void resume(unsigned) {}
void await_inputs() {}
void block_met() {}
void warp_met(unsigned) {}
void copy_begins(void*, const void*, size_t, const void*) {}
void copy_arrives(void*, size_t) {}

}  // namespace outrider::cuda::emulation::races
