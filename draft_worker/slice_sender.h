// Sends dense draft distributions to the target's ranks, each its slice of the vocabulary (QKind::kSlices):
// from device to device where that works, else to their doors. One thread.
#pragma once

#include <memory>
#include <vector>

#include "comm/transport.h"
#include "draft_worker/row_sender.h"

namespace outrider {

// To the door of one rank.
Result<std::unique_ptr<Transport>> connect_to_door(const SliceDoors& doors, size_t rank,
                                                   std::chrono::milliseconds timeout);

class SliceSender {
 public:
  // Connects to every door of `slices`, so long at most. `vocab_size`: of the target. `worker`: as in its
  // Hello.
  static Result<SliceSender> connect(const SliceDoors& slices, int64_t vocab_size, Generation worker,
                                     std::chrono::milliseconds timeout);
  // Sends over these transports, which lead to the doors of the ranks.
  SliceSender(std::vector<std::unique_ptr<Transport>> ranks, int64_t vocab_size, Generation worker)
      : ranks_(std::move(ranks)), vocab_size_(vocab_size), worker_(worker) {}

  // The worker and all ranks have GPUs, each its own: rows may pass between these.
  void use_links(RowLinks links);

  // Its own slice of `draft.q` to every rank. False: a rank did not take it, and the draft must travel whole.
  bool send(Draft& draft);
  // Where drafts may leave their rows; null: nowhere.
  RowSender* rows() { return rows_.get(); }
  // What all slices together took so far.
  int64_t bytes() const;
  // Bytes that went from device to device, a part of bytes().
  int64_t link_bytes() const { return rows_ ? rows_->bytes() : 0; }

 private:
  std::vector<std::unique_ptr<Transport>> ranks_;
  int64_t vocab_size_;
  Generation worker_;
  Message message_ = QSlice();  // its storage is used again
  std::unique_ptr<RowSender> rows_;
};

}  // namespace outrider
