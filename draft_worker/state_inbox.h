// A draft worker's end of the link by which rows of the target's states come from the leader's device to this
// worker's (comm/row_link.h). They stay in the slots that they land in until the head has read them. Whose
// they are say the StateRows that name their transfer. Before the link is ready and after it ended no
// transfer is begun. Never waits. One thread.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "comm/row_link.h"
#include "comm/transport.h"
#include "heads/head_compute.h"

namespace outrider {

struct StateInboxOptions {
  Generation worker;  // as in its Hello
  int64_t width = 0;  // numbers of a row
  // A transfer that StateRows name and that is not here so long after them ends the link.
  std::chrono::milliseconds patience{2000};
};

class StateInbox {
 public:
  // Connects to the leader's door, so long at most.
  static Result<std::unique_ptr<StateInbox>> connect(const SliceDoors& doors, RowLinks links,
                                                     HeadCompute& compute, const StateInboxOptions& options,
                                                     std::chrono::milliseconds timeout);
  // `door`: leads to the leader's. `compute`: on the device that rows come to; it must outlive the inbox.
  StateInbox(std::unique_ptr<Transport> door, RowLinks links, HeadCompute& compute,
             const StateInboxOptions& options);

  // Takes what the leader said, and what has arrived. The first one offers the link. Until it is ready both
  // ends have to look, and the leader does when it works: a worker without sequences need not.
  void look();
  bool is_ready() const { return ready_; }
  // The link ends. Before what a drafter has on the device is freed, which would wait for transfers under
  // way.
  void leave() { give_up("the worker leaves"); }

  // Somebody waits for this transfer, until release().
  void claim(uint64_t transfer);
  void release(uint64_t transfer);
  enum class Arrival { kComing, kHere, kLost };
  Arrival arrival(uint64_t transfer, int64_t rows) const;
  // Rows [first, first + to.extent(0)) of a claimed one that is here.
  void read(uint64_t transfer, int64_t first, FloatRows to);

  // Rows that came from device to device, and those of them that had to make room and went to the host.
  int64_t arrived() const { return arrived_; }
  int64_t brought_home() const { return brought_home_; }

 private:
  static constexpr int32_t kNoSlot = -1;
  struct Transfer {
    int32_t rows = 0;  // 0: not announced yet
    int32_t slot = kNoSlot;
    bool here = false, claimed = false;
    Clock::time_point since{};   // claimed
    std::vector<uint16_t> home;  // its rows, where they gave their slot up
  };
  Status offer();
  void announce(const StateTransfer& transfer);
  void post_waiting();
  int32_t free_slot();
  void make_room();
  void bring_home(Transfer& transfer);
  void give_up(const std::string& reason);

  const std::unique_ptr<Transport> door_;
  const RowLinks links_;
  HeadCompute& compute_;
  const StateInboxOptions options_;
  RowBuffer room_;                 // of one transfer; freed behind the link's end
  std::unique_ptr<RowLink> link_;  // null: nobody made one
  bool offered_ = false, ready_ = false, ended_ = false;
  uint64_t announced_ = 0, done_ = 0, last_claimed_ = 0;
  std::map<uint64_t, Transfer> transfers_;  // by number
  std::deque<uint64_t> waiting_, posted_;   // for a slot; and to arrive
  std::vector<bool> taken_;                 // slots
  bool unread_ = false;                     // of slots that were given back, some may still be read
  int64_t arrived_ = 0, brought_home_ = 0;
};

}  // namespace outrider
