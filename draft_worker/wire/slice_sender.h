// Sends dense draft distributions to the target's ranks, each its slice of the vocabulary (QKind::kSlices):
// from device to device where that works, else to their endpoints. One thread.
#pragma once

#include <memory>
#include <vector>

#include "comm/transport.h"
#include "draft_worker/wire/row_sender.h"

namespace outrider {

// The sender's own queue. Unless it is as long as the endpoint's, it bounds what that may have unread.
struct SenderQueue {
  int high_water_mark = ZmqOptions().high_water_mark;  // messages
  std::chrono::milliseconds linger{0};                 // a late draft is useless
};

// Connects to the endpoint of one rank.
Result<std::unique_ptr<Transport>> connect_to_endpoint(const SliceEndpoints& endpoints, size_t rank,
                                                       std::chrono::milliseconds timeout,
                                                       const SenderQueue& queue = {});

class SliceSender {
 public:
  // Connects to every endpoint of `slices`, within `timeout`. `vocab_size`: of the target. `worker`: as in
  // its Hello.
  static Result<SliceSender> connect(const SliceEndpoints& slices, int64_t vocab_size, Generation worker,
                                     std::chrono::milliseconds timeout);
  // Sends over these transports, which are connected to the endpoints of the ranks.
  SliceSender(std::vector<std::unique_ptr<Transport>> ranks, int64_t vocab_size, Generation worker)
      : ranks_(std::move(ranks)), vocab_size_(vocab_size), worker_(worker) {}

  // Called if the worker and all ranks have a GPU each: rows may then go from device to device.
  void use_links(RowLinks links);

  // Sends every rank its slice of `draft.q`. False: a rank did not take it, and the whole q must travel in
  // the draft.
  bool send(Draft& draft);
  // Accepts rows that stay on the device; null: there is no such link.
  RowSender* rows() { return rows_.get(); }
  // Bytes of all slices so far.
  int64_t bytes() const;
  // Bytes that went from device to device, a part of bytes().
  int64_t link_bytes() const { return rows_ ? rows_->bytes() : 0; }

 private:
  std::vector<std::unique_ptr<Transport>> ranks_;
  int64_t vocab_size_;
  Generation worker_;
  Message message_ = QSlice();  // reused storage
  std::unique_ptr<RowSender> rows_;
};

}  // namespace outrider
