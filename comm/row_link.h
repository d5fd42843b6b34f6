// Rows of 16-bit numbers from one device straight to others: dense draft distributions from a draft worker to
// each target rank, its range of the vocabulary (QKind::kSlices), and states from a target's leader to a
// draft worker with a head (StateRows). A communicator for each worker and purpose, which carries nothing
// else, so that its end disturbs nobody. Rank 0 sends, rank 1 + r receives its range of every row. Rows lie
// in slots of a fixed size. Transfers have the same numbers, 1, 2, ..., at all ends, and pass in this order,
// so every rank must take part in each of them; who is told of them says coordinator/protocol.md. A link is
// one thread's, and its functions do not wait for peers: what takes time goes on between calls of state().
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace outrider {

// Broken: aborted, or refused by the library, or a peer did not do its part in time; for good.
enum class LinkState { kConnecting, kReady, kBroken };

class RowLink {
 public:
  virtual ~RowLink() = default;  // aborts

  virtual LinkState state() = 0;
  virtual const std::string& reason() const = 0;  // of a broken one
  virtual void abort(std::string reason) = 0;

  // Whether the next transfer would begin at once, and not only with a later state(): waits for that, for a
  // millisecond at most.
  virtual bool accepts() = 0;
  // Queues the next transfer, of the first `rows` rows of a slot.
  virtual void transfer(int32_t slot, int32_t rows) = 0;
  // So many are done, as of the last state(). Until its transfer is done, a slot is the link's.
  virtual uint64_t done() const = 0;

  // A slot on the device: [rows, width] numbers, which are weights (base/short_weight.h) or bf16; the width
  // is the whole row's at rank 0, else the rank's range. What rank 0 writes there is done before transfer().
  virtual uint16_t* slot(int32_t slot) = 0;
  // Or rank 0 fills its slots: queues a copy of the slot's first rows from host_slot(), [rows, width], or
  // of one row from elsewhere on the device. settle() waits, for microseconds, until such copies are done:
  // before the transfer, and before what was copied from is overwritten.
  virtual std::span<uint16_t> host_slot(int32_t slot) = 0;
  virtual void fill(int32_t slot, int32_t rows) = 0;
  virtual void keep(int32_t slot, int32_t row, const uint16_t* on_device) = 0;
  virtual void settle() = 0;
  // Brings a row to host_slot(); of a broken link, too.
  virtual void fetch(int32_t slot, int32_t row) = 0;
};

struct RowLinkOptions {
  std::vector<int64_t> bounds;  // rank 1 + r receives numbers [bounds[r], bounds[r + 1]) of a row
  int rank = 0;                 // this end
  int32_t rows = 0;             // of a slot
  int32_t slots = 0;
  bool has_host_slots = true;  // at rank 0
  // Both count while somebody asks for the state, up to 100 ms between two calls: in between nobody waits.
  std::chrono::milliseconds connect_timeout{30'000};
  std::chrono::milliseconds timeout{10'000};  // of a transfer
};

// Makes links of one device, one after the other or side by side. Functions, so that tests have links of
// their own.
struct RowLinks {
  std::function<Result<std::string>()> new_id;  // by one end, which tells the others
  std::function<Result<std::unique_ptr<RowLink>>(const std::string& id)> join;
  int32_t rows = 0, slots = 0;  // of each
};

namespace cuda {
// Over NCCL, loaded at run time, on a device that no other end of the link may be on. Has memory for one
// link; more is made for more links at a time, and kept.
Result<RowLinks> nccl_row_links(int device, const RowLinkOptions& options);
// What such a device is called among the hosts of a job: "host/0000:1b:00.0". An error: there is no NCCL
// here.
Result<std::string> linkable_device(int device);
}  // namespace cuda

}  // namespace outrider
