// Hidden states of the target for one sequence, from their arrival until the head has read them. Rows of a
// message lie in host memory; rows from device to device stay where they land (HiddenStateInbox). One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "comm/messages/drafting.h"
#include "draft_worker/wire/hidden_state_inbox.h"
#include "heads/head_compute.h"

namespace outrider {

class HeldHiddenStates {
 public:
  // `inbox`: null if no rows come from device to device. Both must outlive it.
  HeldHiddenStates(HeadCompute& compute, HiddenStateInbox* inbox) : compute_(&compute), inbox_(inbox) {}
  ~HeldHiddenStates() { forget_from(first_); }
  HeldHiddenStates(HeldHiddenStates&& other) noexcept
      : compute_(other.compute_),
        inbox_(other.inbox_),
        first_(std::exchange(other.first_, 0)),
        end_(std::exchange(other.end_, 0)),
        parts_(std::exchange(other.parts_, {})) {}
  HeldHiddenStates& operator=(HeldHiddenStates&&) = delete;

  // Rows [first(), end()) are held or under way; rows before ready() have arrived.
  int64_t first() const { return first_; }
  int64_t end() const { return end_; }
  int64_t ready() const;

  // Adds the rows from end() on; `rows` begin there or earlier. They came with tokens.
  void add(const HiddenStateRows& rows);
  // Reads arrived rows into [rows, width], where the head computes.
  void read(int64_t first, FloatRows to) const;
  // Drops rows before this one.
  void forget_before(int64_t row);
  // Drops lost rows and all rows after them. True: there were some.
  bool forget_lost();

 private:
  struct Part {
    int64_t first = 0, count = 0;
    std::vector<uint16_t> values;  // of a message
    uint64_t transfer = 0;         // or the transfer that brings them; 0: none
    int64_t skipped = 0;           // rows of the transfer before these
    int64_t end() const { return first + count; }
  };
  HiddenStateInbox::Arrival arrival(const Part& part) const;
  void forget_from(int64_t row);

  HeadCompute* const compute_;
  HiddenStateInbox* const inbox_;
  int64_t first_ = 0, end_ = 0;
  std::deque<Part> parts_;  // consecutive parts
};

}  // namespace outrider
