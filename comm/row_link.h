// Rows of 16-bit numbers sent from one device directly to others: dense draft distributions from a draft
// worker to each target rank, its range of the vocabulary (QKind::kSlices), and hidden states from a target's
// leader to a draft worker with a head (HiddenStateRows). Each worker and purpose has its own communicator,
// so its failure affects nothing else. Rank 0 sends, rank 1 + r receives its range of every row. Rows lie in
// slots of a fixed size. Transfers have the same numbers, 1, 2, ..., at all ends, and complete in this order,
// so every rank must take part in each transfer; coordinator/protocol.md describes how ranks learn of
// transfers. A link belongs to one thread. Its functions do not wait for peers: progress is made between
// calls of state().
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

// kBroken is final: aborted, or refused by the library, or a peer missed its deadline.
enum class LinkState { kConnecting, kReady, kBroken };

class RowLink {
 public:
  virtual ~RowLink() = default;  // aborts

  virtual LinkState state() = 0;
  virtual const std::string& reason() const = 0;  // of a broken link
  virtual void abort(std::string reason) = 0;

  // Whether the next transfer would begin at once, and not only in a later state(). Waits for that for at
  // most a millisecond.
  virtual bool accepts() = 0;
  // Queues the next transfer, of the first `rows` rows of a slot.
  virtual void transfer(int32_t slot, int32_t rows) = 0;
  // The number of finished transfers, as of the last state(). A slot belongs to the link until its transfer
  // is finished.
  virtual uint64_t done() const = 0;

  // A slot on the device: [rows, width] numbers, which are weights (base/short_weight.h) or bf16. The width
  // is that of the whole row at rank 0, else of the rank's range. Writes of rank 0 must be done before
  // transfer().
  virtual uint16_t* slot(int32_t slot) = 0;
  // Alternatively rank 0 fills its slots by copies: of the slot's first rows from host_slot(), [rows, width],
  // or of one row from elsewhere on the device. settle() waits, for microseconds, until the copies are done;
  // call it before the transfer, and before the source is overwritten.
  virtual std::span<uint16_t> host_slot(int32_t slot) = 0;
  virtual void fill(int32_t slot, int32_t rows) = 0;
  virtual void keep(int32_t slot, int32_t row, const uint16_t* on_device) = 0;
  virtual void settle() = 0;
  // Copies a row to host_slot(); works for a broken link, too.
  virtual void fetch(int32_t slot, int32_t row) = 0;
};

struct RowLinkOptions {
  std::vector<int64_t> bounds;  // rank 1 + r receives numbers [bounds[r], bounds[r + 1]) of a row
  int rank = 0;                 // this end
  int32_t rows = 0;             // of a slot
  int32_t slots = 0;
  bool has_host_slots = true;  // at rank 0
  // Both clocks run only while state() is polled with gaps of at most 100 ms.
  std::chrono::milliseconds connect_timeout{30'000};
  std::chrono::milliseconds timeout{10'000};  // of a transfer
};

// Makes links of one device, one after the other or side by side. Functions, so that tests can substitute
// their own links.
struct RowLinks {
  std::function<Result<std::string>()> new_id;  // called by one end, which sends the id to the others
  std::function<Result<std::unique_ptr<RowLink>>(const std::string& id)> join;
  int32_t rows = 0, slots = 0;  // of each
};

namespace cuda {
// Over NCCL, loaded at run time, on a device without another end of the link. Holds memory for one link; more
// is allocated for simultaneous links, and kept.
Result<RowLinks> nccl_row_links(int device, const RowLinkOptions& options);
// The name of a device among the hosts of a job: "host/0000:1b:00.0". An error: NCCL is not available.
Result<std::string> linkable_device(int device);
}  // namespace cuda

}  // namespace outrider
