// Where a rank's slices of dense draft distributions wait for the plan that names their draft
// (QKind::kSlices): one slot for each open sequence, for its newest round. Everything is allocated when it is
// made: sequences x draft length x slice width x 4 bytes of address space, of which a draft touches its own
// rows. Pure: no I/O, no time.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/shard.h"
#include "comm/messages/row_transfers.h"
#include "comm/messages/verifying.h"

namespace outrider {

// The ranks' common result for an entry of kSlices or kHidden that has a draft. Both spans are valid until
// the next tally.
struct SlicedQ {
  bool lost = false;                    // some rank misses its slice
  bool link_lost = false;               // ... which was on its way from device to device
  std::span<const QRow> rows;           // this rank's slices, with the sums of whole rows
  std::span<const uint64_t> drafted;    // weights of the draft tokens
  const uint16_t* on_device = nullptr;  // [rows, ids of this rank]; not null: these are the weights of `rows`
};

struct SliceSlotsOptions {
  IndexRange range;       // the ids of this rank
  int rank = 0;           // of the target
  int32_t sequences = 0;  // open at once
  int32_t rows = 0;       // of one draft
};

class SliceSlots {
 public:
  explicit SliceSlots(const SliceSlotsOptions& options);

  void open(SequenceId sequence);
  void close(SequenceId sequence);

  // Kept if it fits, its sequence is open, and no newer round's has come.
  void put(const QSlice& slice);
  // Announces rows that come from device to device. Returns which slot they take; one more than there are
  // if none.
  int32_t announce(const QTransfer& transfer);
  // They are at `rows`, if the slot is still theirs; null: they will not come.
  void arrived(int32_t slot, const QTransfer& transfer, const uint16_t* rows);
  // Whether nothing more is to be waited for: there is a slice for every entry of kSlices, or there will be
  // none.
  bool complete(std::span<const PlanEntry> entries) const;

  // The integers that all ranks must add up, for each kSlices entry: the number of ranks with its slice (and
  // with the notice of its transfer), then the sums of its rows, then the weights of the tokens drafted from
  // these rows.
  std::span<uint64_t> tally(std::span<const PlanEntry> entries);
  // Called when the tally holds the sums over all ranks: fills `sliced` at the places of these entries.
  void settle(std::span<const PlanEntry> entries, int ranks, std::span<SlicedQ> sliced);

 private:
  struct Slot {
    bool is_of(const PlanEntry& entry) const;  // the newest draft

    std::optional<SequenceId> sequence;  // empty: free
    Round round;
    Generation worker;
    size_t count = 0;  // of the rows that came; 0: none yet
    std::vector<QRow> rows;
    // How rows stand that come from device to device.
    enum class Link : uint8_t { kNone, kComing, kHere, kLost } link = Link::kNone;
    const uint16_t* on_device = nullptr;
    std::vector<uint64_t> drafted;  // weights of the drafted tokens
  };
  Slot* find(SequenceId sequence);
  Slot* find(const PlanEntry& entry);
  bool takes(Slot* slot, Round round) const;
  void take(Slot& slot, Round round, Generation worker, size_t rows) const;
  bool fits(const QSlice& slice) const;

  const IndexRange range_;
  const bool is_leader_;
  std::vector<Slot> slots_;
  std::vector<uint64_t> integers_;  // of one tally
};

}  // namespace outrider
