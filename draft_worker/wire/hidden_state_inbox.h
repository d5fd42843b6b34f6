// A draft worker's end of the link that brings hidden states of the target from the leader's device to this
// worker's (comm/row_link.h). Rows stay in their slots until the head has read them. The HiddenStateRows
// message that names a transfer tells the sequence of its rows. Before the link is ready and after its end no
// transfer begins. Never waits. One thread.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "comm/row_link.h"
#include "comm/transport.h"
#include "heads/head_compute.h"

namespace outrider {

struct HiddenStateInboxOptions {
  Generation worker;  // as in its Hello
  int64_t width = 0;  // elements of a row
  // A transfer that HiddenStateRows name ends the link if it has not arrived this long after them.
  std::chrono::milliseconds patience{2000};
};

class HiddenStateInbox {
 public:
  // Connects to the leader's endpoint, within `timeout`.
  static Result<std::unique_ptr<HiddenStateInbox>> connect(const SliceEndpoints& endpoints, RowLinks links,
                                                           HeadCompute& compute,
                                                           const HiddenStateInboxOptions& options,
                                                           std::chrono::milliseconds timeout);
  // `endpoint`: connected to the leader's endpoint. `compute`: on the device that receives the rows; must
  // outlive the inbox.
  HiddenStateInbox(std::unique_ptr<Transport> endpoint, RowLinks links, HeadCompute& compute,
                   const HiddenStateInboxOptions& options);

  // Handles messages of the leader, and arrived rows. The first call offers the link. Until it is ready both
  // ends have to poll; the leader does so while it works. A worker without sequences need not.
  void look();
  bool is_ready() const { return ready_; }
  // Ends the link. Call it before the drafter's device memory is freed, or the free would wait for current
  // transfers.
  void leave() { give_up("the worker leaves"); }

  // Keeps the rows of this transfer until release().
  void claim(uint64_t transfer);
  void release(uint64_t transfer);
  enum class Arrival { kComing, kHere, kLost };
  Arrival arrival(uint64_t transfer, int64_t rows) const;
  // Reads rows [first, first + to.extent(0)) of a claimed transfer that has arrived.
  void read(uint64_t transfer, int64_t first, FloatRows to);

  // Rows that came from device to device, and the part that was moved to the host to make room.
  int64_t arrived() const { return arrived_; }
  int64_t brought_home() const { return brought_home_; }

 private:
  static constexpr int32_t kNoSlot = -1;
  struct Transfer {
    int32_t rows = 0;  // 0: not announced yet
    int32_t slot = kNoSlot;
    bool here = false, claimed = false;
    Clock::time_point since{};   // time of the claim
    std::vector<uint16_t> home;  // its rows on the host, after it lost its slot
  };
  Status offer();
  void announce(const HiddenStateTransfer& transfer);
  void post_waiting();
  int32_t free_slot();
  void make_room();
  void bring_home(Transfer& transfer);
  void give_up(const std::string& reason);

  const std::unique_ptr<Transport> endpoint_;
  const RowLinks links_;
  HeadCompute& compute_;
  const HiddenStateInboxOptions options_;
  RowBuffer room_;                 // for one transfer; freed after the link has ended
  std::unique_ptr<RowLink> link_;  // null: none was made
  bool offered_ = false, ready_ = false, ended_ = false;
  uint64_t announced_ = 0, done_ = 0, last_claimed_ = 0;
  std::map<uint64_t, Transfer> transfers_;  // by number
  std::deque<uint64_t> waiting_, posted_;   // transfers that wait for a slot; transfers that will arrive
  std::vector<bool> taken_;                 // slots
  bool unread_ = false;                     // some freed slots may still be read
  int64_t arrived_ = 0, brought_home_ = 0;
};

}  // namespace outrider
