// base/cuda_peer.h on the host: ranks are threads of one process and share all memory.
#include "tests/emulation/peer.h"

#include "base/cuda_peer.h"

namespace outrider::cuda {

int current_device() { return 0; }
std::string bus_id(int) { return "emulation"; }
int resident_blocks(int) { return emulation::resident_blocks; }
Status allow_peer(int) { return {}; }
Result<MemoryHandle> export_memory(void*) { return unavailable("the emulation has one process"); }
Result<ImportedMemory> ImportedMemory::open(const MemoryHandle&) {
  return unavailable("the emulation has one process");
}
ImportedMemory::~ImportedMemory() = default;

}  // namespace outrider::cuda
