// The leader's ends of the links by which rows of its states go to draft workers that have a head and a GPU
// of their own (comm/row_link.h). One thread. Nothing here waits for a worker.
#pragma once

#include <map>

#include "comm/row_link.h"
#include "comm/transport.h"

namespace outrider {

// The link to one worker, which has connected to `endpoint`.
class HiddenStateLink {
 public:
  HiddenStateLink(PeerId worker, std::unique_ptr<RowLink> rows, const RowLinks& links, Transport& endpoint)
      : worker_(worker),
        rows_(std::move(rows)),
        most_rows_(links.rows),
        slots_(links.slots),
        endpoint_(endpoint) {}

  PeerId worker() const { return worker_; }
  int32_t most_rows() const { return most_rows_; }  // of a transfer
  // True if `transfers` transfers can begin now. A plan has at most as many transfers as there are slots: the
  // worker holds them until the plan's result says to which sequence each belongs.
  bool takes(int64_t transfers);
  // Where the rows of the next transfer are written.
  uint16_t* room() { return rows_->slot(static_cast<int32_t>(sent_ % static_cast<uint64_t>(slots_))); }
  // Announces and begins it, of the first rows there. Its number; 0: the worker does not take it.
  uint64_t send(int32_t rows);

  void look();                          // before a plan
  void end(const std::string& reason);  // and tells the worker
  bool ended() const { return ended_; }

 private:
  const PeerId worker_;
  const std::unique_ptr<RowLink> rows_;
  const int32_t most_rows_, slots_;
  Transport& endpoint_;
  uint64_t sent_ = 0;         // transfers
  uint64_t sent_before_ = 0;  // transfers of earlier plans
  bool ended_ = false;
};

class HiddenStateLinks {
 public:
  // `endpoint` must outlive this object.
  HiddenStateLinks(RowLinks links, Transport& endpoint) : links_(std::move(links)), endpoint_(endpoint) {}

  // A worker's offer, which ends the link it had.
  void join(const LinkOffer& offer, PeerId from);
  // It takes no more rows by its link.
  void refuse(PeerId from, const std::string& reason);
  void look();  // before a plan
  void end_all() { of_worker_.clear(); }
  // Null: its rows go another way.
  HiddenStateLink* to(Generation worker);

 private:
  const RowLinks links_;
  Transport& endpoint_;
  std::map<Generation, HiddenStateLink> of_worker_;
};

}  // namespace outrider
