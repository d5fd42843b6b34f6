// What groups whose ranks wait for each other on a device have of it. A process may have several such groups
// on one device, a target's ranks and a draft model's for instance, and their kernels wait at the same time:
// blocks of all of them must be resident together, beside kernels of others, without which no rank goes on.
// Claims are of one process. Processes take turns on a device in time slices, so their blocks do not meet;
// under CUDA's multi-process service (MPS) they do, and nobody counts them.
#pragma once

#include <cstdint>
#include <utility>

#include "base/status.h"

namespace outrider::cuda {

// The part of one group, which is given back when this ends. Any thread.
class PeerRoom {
 public:
  PeerRoom() = default;  // none
  // For `ranks` ranks of a group on a device of this name, where so many blocks are resident for certain.
  static Result<PeerRoom> claim(uint64_t device, int resident_blocks, int ranks);
  // Of all groups that hold a part of it now.
  static int ranks_on(uint64_t device);
  PeerRoom(PeerRoom&& other) noexcept { *this = std::move(other); }
  PeerRoom& operator=(PeerRoom&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(ranks_, other.ranks_);
    std::swap(blocks_, other.blocks_);
    return *this;
  }
  ~PeerRoom();

  int blocks() const { return blocks_; }  // of each rank, at a time
  void keep(int blocks);                  // gives back what is more than that

 private:
  uint64_t device_ = 0;
  int ranks_ = 0, blocks_ = 0;
};

}  // namespace outrider::cuda
