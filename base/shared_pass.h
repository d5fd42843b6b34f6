// Decides when memory may be allocated or freed on a device that several ranks of this process share. Their
// kernels wait for each other, and a driver may allocate only while the device is idle and start no kernel
// meanwhile. Then a rank's kernel could wait for a peer's kernel that cannot start before it ends. So
// allocations wait until no pass of such ranks is under way, and passes begin before or after an allocation.
#pragma once

#include <cstdint>
#include <thread>

namespace outrider::cuda {

// A rank's part of a pass, from before its first kernel that waits for a peer until the host has waited for
// the last one. A current pass does not keep other ranks from beginning their parts.
class SharedPass {
 public:
  SharedPass() = default;
  ~SharedPass();
  SharedPass(const SharedPass&) = delete;
  SharedPass& operator=(const SharedPass&) = delete;
  // Names the ranks that wait for each other; call before the first pass. Passes of another group end without
  // this rank.
  void join(uint64_t group) { group_ = group; }
  void begin();  // no effect during a pass
  void end() noexcept;
  bool is_under_way() const { return is_under_way_; }
  // Whether the calling thread belongs to a rank, that is, has begun passes.
  static bool is_of_rank();

 private:
  uint64_t group_ = 0;
  bool is_under_way_ = false;
  std::thread::id thread_;
};

// Held during an allocation or free. A rank does not wait for passes of its own group, whose ranks may be
// waiting for it. A pass that lasts longer than ranks wait for each other is ignored: its rank has failed.
class MemoryTurn {
 public:
  MemoryTurn();
  ~MemoryTurn();
  MemoryTurn(const MemoryTurn&) = delete;
  MemoryTurn& operator=(const MemoryTurn&) = delete;
};

}  // namespace outrider::cuda
