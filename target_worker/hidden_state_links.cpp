#include "target_worker/hidden_state_links.h"
#include "base/log_line.h"

#include <algorithm>

namespace outrider {

bool HiddenStateLink::takes(int64_t transfers) {
  if (ended_ || rows_->state() != LinkState::kReady) return false;
  const uint64_t kept = std::min(rows_->done(), sent_before_);  // here, slots are free where more is done
  return static_cast<int64_t>(sent_ - kept) + transfers <= slots_ && rows_->accepts();
}

// A queue that is full has taken nothing.
uint64_t HiddenStateLink::send(int32_t rows) {
  const Status status = endpoint_.send(worker_, HiddenStateTransfer{.number = sent_ + 1, .rows = rows});
  if (status.code() == StatusCode::kUnavailable) end(status.message());
  if (!status.ok()) return 0;
  (void)rows_->accepts();  // the transfer before it is on its way
  rows_->transfer(static_cast<int32_t>(sent_ % static_cast<uint64_t>(slots_)), rows);
  (void)rows_->state();  // begins it
  return ++sent_;
}

void HiddenStateLink::look() {
  sent_before_ = sent_;
  if (!ended_ && rows_->state() == LinkState::kBroken) end(rows_->reason());
}

void HiddenStateLink::end(const std::string& reason) {
  if (std::exchange(ended_, true)) return;
  rows_->abort(reason);
  log_line(LogLevel::kInfo, "rows of states go to a draft worker by sockets: {}", reason);
  (void)endpoint_.send(worker_, Failure{reason});
}

void HiddenStateLinks::join(const LinkOffer& offer, PeerId from) {
  if (of_worker_.contains(offer.worker)) return;
  // A worker has one link. Those who went without a word make room.
  for (auto& [worker, link] : of_worker_) {
    if (link.worker() == from) link.end("the worker offers another one");
    if (endpoint_.send(link.worker(), Heartbeat{}).code() == StatusCode::kUnavailable)
      link.end("the worker is gone");
  }
  if (!links_.join)
    return (void)endpoint_.send(from, Failure{"this rank sends no rows from device to device"});
  auto joined = links_.join(offer.id);
  if (!joined.ok()) return (void)endpoint_.send(from, Failure{joined.status().message()});
  of_worker_.try_emplace(offer.worker, from, std::move(joined).value(), links_, endpoint_);
}

void HiddenStateLinks::refuse(PeerId from, const std::string& reason) {
  for (auto& [worker, link] : of_worker_)
    if (link.worker() == from) link.end(reason);
}

void HiddenStateLinks::look() {
  for (auto& [worker, link] : of_worker_) link.look();
  std::erase_if(of_worker_, [](const auto& entry) { return entry.second.ended(); });
}

HiddenStateLink* HiddenStateLinks::to(Generation worker) {
  const auto at = of_worker_.find(worker);
  return at == of_worker_.end() ? nullptr : &at->second;
}

}  // namespace outrider
