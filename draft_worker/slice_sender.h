// Sends dense draft distributions to the target's ranks, each its slice of the vocabulary (QKind::kSlices).
// One thread.
#pragma once

#include <memory>
#include <vector>

#include "comm/transport.h"

namespace outrider {

class SliceSender {
 public:
  // Connects to every door of `slices`, so long at most. `vocab_size`: of the target. `worker`: as in its
  // Hello.
  static Result<SliceSender> connect(const SliceDoors& slices, int64_t vocab_size, Generation worker,
                                     std::chrono::milliseconds timeout);
  // The same over what leads to each rank's door.
  SliceSender(std::vector<std::unique_ptr<Transport>> ranks, int64_t vocab_size, Generation worker)
      : ranks_(std::move(ranks)), vocab_size_(vocab_size), worker_(worker) {}

  // Its own slice of `draft.q` to every rank. False: a rank did not take it, and the draft must travel whole.
  bool send(const Draft& draft);
  // What all slices together took so far.
  int64_t bytes() const;

 private:
  std::vector<std::unique_ptr<Transport>> ranks_;
  int64_t vocab_size_;
  Generation worker_;
  Message message_ = QSlice();  // its storage is used again
};

}  // namespace outrider
