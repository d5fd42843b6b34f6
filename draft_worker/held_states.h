// Rows of the target's states of one sequence, from when they are told until its head has read them: what
// came in a message in the host's memory, what comes from device to device where it lands (StateInbox). One
// thread.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "comm/messages/drafting.h"
#include "draft_worker/state_inbox.h"
#include "heads/head_compute.h"

namespace outrider {

class HeldStates {
 public:
  // `inbox`: null where no rows come from device to device. Both must outlive it.
  HeldStates(HeadCompute& compute, StateInbox* inbox) : compute_(&compute), inbox_(inbox) {}
  ~HeldStates() { forget_from(first_); }
  HeldStates(HeldStates&& other) noexcept
      : compute_(other.compute_),
        inbox_(other.inbox_),
        first_(std::exchange(other.first_, 0)),
        end_(std::exchange(other.end_, 0)),
        parts_(std::exchange(other.parts_, {})) {}
  HeldStates& operator=(HeldStates&&) = delete;

  // Rows [first(), end()) are held, and those before ready() are here.
  int64_t first() const { return first_; }
  int64_t end() const { return end_; }
  int64_t ready() const;

  // Those behind end(), which begin at most there. They came with tokens.
  void add(const StateRows& rows);
  // Of rows that are here: to [rows, width], where the head computes.
  void read(int64_t first, FloatRows to) const;
  // Those before this one are not needed any more.
  void forget_before(int64_t row);
  // Forgets what will not come, and all behind it: whether there is such.
  bool forget_lost();

 private:
  struct Part {
    int64_t first = 0, count = 0;
    std::vector<uint16_t> values;  // of a message
    uint64_t transfer = 0;         // or where they come from; 0: from none
    int64_t skipped = 0;           // rows of the transfer in front of them
    int64_t end() const { return first + count; }
  };
  StateInbox::Arrival arrival(const Part& part) const;
  void forget_from(int64_t row);

  HeadCompute* const compute_;
  StateInbox* const inbox_;
  int64_t first_ = 0, end_ = 0;
  std::deque<Part> parts_;  // one behind the other
};

}  // namespace outrider
