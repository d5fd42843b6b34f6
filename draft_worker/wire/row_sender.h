// A draft worker's end of the link that brings its rows of q to the target's ranks from device to device
// (comm/row_link.h). The link is offered with the first draft. Before it is ready, while all its slots are in
// transfer, and after its end, rows must go another way. Never waits. One thread.
#pragma once

#include <memory>
#include <vector>

#include "comm/row_link.h"
#include "comm/transport.h"
#include "kernels/sampling/device_row.h"

namespace outrider {

class RowSender {
 public:
  // `vocab_size`: of the target. `worker`: as in its Hello.
  RowSender(RowLinks links, int64_t vocab_size, Generation worker)
      : links_(std::move(links)), vocab_size_(vocab_size), worker_(worker) {}

  // Rows may stay on the device they were drawn on, and then have no weights in the draft. First reserve
  // space for a draft of `rows` rows of the sequence; false: there is none.
  bool reserve(SequenceId sequence, int32_t rows);
  // Then copies row i of its draft of that round; the copy is read until settle().
  void keep(SequenceId sequence, Round round, size_t i, const DeviceRow& row);
  void settle();
  void drop(SequenceId sequence);  // drops rows of a draft that will not be sent

  // `endpoints`: the endpoints of all ranks. False: nothing was sent, or some rank may have heard of a
  // transfer that will not happen. Rows that had stayed on the device are in the draft then.
  bool send(Draft& draft, std::span<const std::unique_ptr<Transport>> endpoints);
  // Bytes of rows sent so far.
  int64_t bytes() const { return bytes_; }
  int64_t vocab_size() const { return vocab_size_; }

 private:
  using Endpoints = std::span<const std::unique_ptr<Transport>>;
  Status offer(Endpoints endpoints);
  bool is_ready(Endpoints endpoints);
  // A draft that is being made, or a current transfer.
  struct Slot {
    std::optional<SequenceId> sequence;  // that it is reserved for
    Round round;
    std::vector<DeviceRow> rows;  // kept rows, by position; null: not kept
    uint64_t transfer = 0;        // the last transfer from this slot
  };
  Slot* kept_for(SequenceId sequence);
  Slot* free_slot();
  Slot* filled_slot(Draft& draft);
  bool pack(const Draft& draft, Slot& slot);
  void bring_home(Draft& draft);
  bool pass(const Draft& draft, Slot& slot, Endpoints endpoints);
  bool announce(const Draft& draft, const Slot& slot, Endpoints endpoints);
  int32_t index_of(const Slot& slot) const { return static_cast<int32_t>(&slot - slots_.data()); }
  void give_up(const std::string& reason);

  const RowLinks links_;
  const int64_t vocab_size_;
  const Generation worker_;
  std::unique_ptr<RowLink> link_;  // null: not offered yet, or none was made
  bool offered_ = false, given_up_ = false;
  std::vector<Slot> slots_;
  uint64_t transfers_ = 0;
  int64_t bytes_ = 0;
  Message message_ = QTransfer();  // reused storage
};

}  // namespace outrider
