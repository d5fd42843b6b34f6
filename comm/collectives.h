// Collective operations of one target group. Every rank calls the same operations in the same order with the
// same sizes. Integers may be reduced in any order; floats are summed in one balanced binary tree over the
// ranks, ((r0+r1)+(r2+r3))+((r4+r5)+(r6+r7)), so that the tensor-parallel degree cannot change the bits. A
// rank that is gone or late past the deadline makes every other rank throw CollectiveError.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

namespace outrider {

class CollectiveError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual void all_reduce_sum(std::span<float> values) = 0;  // fixed tree; size() must be a power of two
  virtual void all_reduce_sum(std::span<uint64_t> values) = 0;
  virtual void all_reduce_max(std::span<uint64_t> values) = 0;
  virtual void all_reduce_min(std::span<uint64_t> values) = 0;
  // all[r * mine.size() ..) = rank r's bytes. all.size() == size() * mine.size().
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;
  virtual void barrier() = 0;
  // A barrier without a deadline that uses no core while it waits: ranks load their parts of a model from
  // disks of their own.
  virtual void meet() = 0;

  // Broadcasts work, not tensors: without a deadline, and without using a core while it waits. Non-roots
  // receive any length up to max_bytes.
  virtual void broadcast_message(std::vector<std::byte>& bytes, int root, size_t max_bytes) = 0;

  // Makes every pending and later call on every rank of the group throw. For a rank that failed.
  virtual void abort() noexcept = 0;
};

struct CollectiveOptions {
  std::chrono::milliseconds timeout{60'000};  // of one operation, from its first to its last rank
};

// One rank: every operation is the identity.
std::unique_ptr<Collectives> make_single_collectives();
// Ranks are threads of this process; element r belongs to thread r.
std::vector<std::unique_ptr<Collectives>> make_thread_collectives(int size,
                                                                  const CollectiveOptions& options = {});

}  // namespace outrider
