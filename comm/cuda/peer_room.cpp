#include "comm/cuda/peer_room.h"

#include <map>
#include <mutex>

#include "comm/cuda/peer_kernels.h"

namespace outrider::cuda {
namespace {

struct Held {
  int blocks = 0, ranks = 0;  // of all groups
};
struct Devices {
  std::mutex mutex;
  std::map<uint64_t, Held> held;
};
// Groups may also end in destructors that run after main.
Devices& devices() {
  static auto* const instance = new Devices;
  return *instance;
}

}  // namespace

Result<PeerRoom> PeerRoom::claim(uint64_t device, int resident_blocks, int ranks) {
  Devices& all = devices();
  const std::lock_guard lock(all.mutex);
  Held& held = all.held[device];
  const int blocks = most_peer_blocks(resident_blocks, ranks, held.blocks);
  if (blocks == 0)
    return unavailable(
        fmt::format("{} ranks of other groups of this process wait for each other on the same device, which "
                    "leaves no room for {} more",
                    held.ranks, ranks));
  held.blocks += ranks * blocks;
  held.ranks += ranks;
  PeerRoom room;
  room.device_ = device;
  room.ranks_ = ranks;
  room.blocks_ = blocks;
  return room;
}

int PeerRoom::ranks_on(uint64_t device) {
  Devices& all = devices();
  const std::lock_guard lock(all.mutex);
  return all.held[device].ranks;
}

void PeerRoom::keep(int blocks) {
  if (blocks >= blocks_) return;
  Devices& all = devices();
  const std::lock_guard lock(all.mutex);
  all.held[device_].blocks -= ranks_ * (blocks_ - blocks);
  blocks_ = blocks;
}

PeerRoom::~PeerRoom() {
  if (ranks_ == 0) return;
  Devices& all = devices();
  const std::lock_guard lock(all.mutex);
  Held& held = all.held[device_];
  held.blocks -= ranks_ * blocks_;
  held.ranks -= ranks_;
}

}  // namespace outrider::cuda
