// A rank's ends of the links by which draft workers with a GPU of their own send rows of q to it
// (comm/row_link.h). One thread. Nothing here waits.
#pragma once

#include <deque>
#include <map>

#include "comm/row_link.h"
#include "comm/transport.h"
#include "target_worker/slice_slots.h"

namespace outrider {

class SliceLinks {
 public:
  explicit SliceLinks(RowLinks links) : links_(std::move(links)) {}

  // Takes a worker's offer, which ends the link it had, and its transfers in order. `from` is the worker's
  // peer id at `endpoint`. The worker is informed if the link ends, or if there is no link.
  void join(const LinkOffer& offer, PeerId from, Transport& endpoint, SliceSlots& slots);
  void receive(const QTransfer& transfer, PeerId from, Transport& endpoint, SliceSlots& slots);

  // Tells the slots what has arrived, and what will not.
  void look(Transport& endpoint, SliceSlots& slots);
  // Ends the link of a worker that is of no use to other ranks any more.
  void end(Generation worker, Transport& endpoint, SliceSlots& slots);
  void end_all() { of_worker_.clear(); }
  // Links that ended. What came by them is overwritten from now on.
  void forget_ended();

 private:
  struct Expected {
    QTransfer transfer;
    int32_t slot;
  };
  struct Link {
    PeerId worker;
    std::unique_ptr<RowLink> rows;
    uint64_t announced = 0, done = 0;  // transfers
    std::deque<Expected> expected;     // those that are not done
    bool ended = false;
  };
  void end(Link& link, const std::string& reason, Transport& endpoint, SliceSlots& slots);

  const RowLinks links_;
  std::map<Generation, Link> of_worker_;
};

}  // namespace outrider
