// When memory of a device may be given and taken that several ranks of this process share. Their kernels wait
// for each other, and a driver may give memory only when a device is idle, and start no kernel meanwhile: a
// rank's kernel would then wait for a peer's that is not started before it ends. So what gives and takes
// memory waits until no pass of such ranks is under way, and passes begin before it or after it.
#pragma once

#include <cstdint>
#include <thread>

namespace outrider::cuda {

// A rank's part of a pass, from before its first kernel that waits for a peer until the host has waited for
// the last. A pass that is under way keeps no other rank from beginning its part.
class SharedPass {
 public:
  SharedPass() = default;
  ~SharedPass();
  SharedPass(const SharedPass&) = delete;
  SharedPass& operator=(const SharedPass&) = delete;
  // The ranks that wait for each other; before the first pass. Another group's passes end without this rank.
  void join(uint64_t group) { group_ = group; }
  void begin();  // nothing where it is under way
  void end() noexcept;
  bool is_under_way() const { return is_under_way_; }
  // Whether the calling thread is a rank's: it has begun passes.
  static bool is_of_rank();

 private:
  uint64_t group_ = 0;
  bool is_under_way_ = false;
  std::thread::id thread_;
};

// Held by whoever gives or takes memory. A rank does not wait for passes of its own group, whose ranks may be
// waiting for it. A pass that lasts longer than ranks wait for each other is no longer waited for: its rank
// has failed.
class MemoryTurn {
 public:
  MemoryTurn();
  ~MemoryTurn();
  MemoryTurn(const MemoryTurn&) = delete;
  MemoryTurn& operator=(const MemoryTurn&) = delete;
};

}  // namespace outrider::cuda
