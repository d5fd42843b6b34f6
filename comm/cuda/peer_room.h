// Room on a device for groups whose ranks wait for each other in kernels. A process may have several such
// groups on one device, for instance a target's ranks and a draft model's, and their kernels wait at the same
// time. All their blocks must be resident together, beside other kernels, or no rank can proceed. Claims
// count one process only. Processes take turns on a device in time slices, so their blocks do not meet. Under
// CUDA's multi-process service (MPS) they do meet, and the claims do not cover that.
#pragma once

#include <cstdint>
#include <utility>

#include "base/status.h"

namespace outrider::cuda {

// The share of one group, which the destructor gives back. Any thread.
class PeerRoom {
 public:
  PeerRoom() = default;  // none
  // Claims room for `ranks` ranks of a group on `device`, which can hold `resident_blocks` blocks at once.
  static Result<PeerRoom> claim(uint64_t device, int resident_blocks, int ranks);
  // The number of ranks of all groups that hold a claim on the device now.
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
  void keep(int blocks);                  // gives back the blocks beyond this number

 private:
  uint64_t device_ = 0;
  int ranks_ = 0, blocks_ = 0;
};

}  // namespace outrider::cuda
