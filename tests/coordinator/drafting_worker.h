// The production draft worker and drafter on the toy model, driven by messages instead of a thread.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "draft_worker/draft_worker.h"

namespace outrider {

class DraftingWorker {
 public:
  struct Options {
    double accuracy = 1;
    int32_t max_sequences = 4;
    int64_t spare_blocks = 0;  // beyond what the sequences themselves need
    std::function<Clock::time_point()> now;
    int ranks = 0;  // of the target, which takes dense q in slices
    std::function<Status(int rank, const QSlice& slice)> to_rank;
    Generation generation{1};
    bool needs_rows = false;  // of the target's hidden states
  };
  explicit DraftingWorker(const Options& options);
  ~DraftingWorker();
  DraftingWorker(DraftingWorker&&) noexcept;

  void handle(const Message& message);
  // One piece of work; false: nothing is left to do.
  bool work();
  std::vector<Message> take_replies();
  size_t open_sequences() const { return open_.size(); }
  std::string error() const { return error_; }  // of the first violation

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
  std::set<SequenceId> open_;
  std::string error_;
};

}  // namespace outrider
