#include "target_worker/slice_links.h"

#include <algorithm>

#include "base/log_line.h"
#include "comm/message_check.h"

namespace outrider {

void SliceLinks::join(const LinkOffer& offer, PeerId from, Transport& endpoint, SliceSlots& slots) {
  if (of_worker_.contains(offer.worker)) return;
  // A worker has one link. Those who went without a word make room.
  for (auto& [worker, link] : of_worker_)
    if (!link.ended && link.worker == from) end(link, "the worker offers another one", endpoint, slots);
  for (auto& [worker, link] : of_worker_)
    if (!link.ended && endpoint.send(link.worker, Heartbeat{}).code() == StatusCode::kUnavailable)
      end(link, "the worker is gone", endpoint, slots);
  if (!links_.join)
    return (void)endpoint.send(from, Failure{"this rank takes no rows from device to device"});
  auto joined = links_.join(offer.id);
  if (!joined.ok()) {
    (void)endpoint.send(from, Failure{joined.status().message()});
    return;
  }
  of_worker_[offer.worker] = {.worker = from, .rows = std::move(joined).value()};
}

void SliceLinks::receive(const QTransfer& transfer, PeerId from, Transport& endpoint, SliceSlots& slots) {
  const auto at = of_worker_.find(transfer.worker);
  if (at == of_worker_.end() || at->second.ended || at->second.worker != from) {
    slots.arrived(slots.announce(transfer), transfer, nullptr);
    (void)endpoint.send(from, Failure{"there is no link"});
    return;
  }
  Link& link = at->second;
  if (const Status status = check(transfer, links_.rows); !status.ok())
    return end(link, status.message(), endpoint, slots);
  if (transfer.number != ++link.announced)
    return end(link, fmt::format("q_transfer: number is {}, not {}", transfer.number, link.announced),
               endpoint, slots);
  const int32_t slot = slots.announce(transfer);
  link.rows->transfer(slot, static_cast<int32_t>(transfer.sums.size()));
  link.expected.push_back({transfer, slot});
}

void SliceLinks::look(Transport& endpoint, SliceSlots& slots) {
  for (auto& [worker, link] : of_worker_) {
    if (link.ended) continue;
    const LinkState state = link.rows->state();
    for (; link.done < link.rows->done(); ++link.done) {
      const Expected& first = link.expected.front();
      slots.arrived(first.slot, first.transfer, link.rows->slot(first.slot));
      link.expected.pop_front();
    }
    if (state == LinkState::kBroken) end(link, link.rows->reason(), endpoint, slots);
  }
}

void SliceLinks::end(Generation worker, Transport& endpoint, SliceSlots& slots) {
  const auto at = of_worker_.find(worker);
  if (at != of_worker_.end() && !at->second.ended)
    end(at->second, "some rank did not get its rows in time", endpoint, slots);
}

void SliceLinks::end(Link& link, const std::string& reason, Transport& endpoint, SliceSlots& slots) {
  link.rows->abort(reason);
  link.ended = true;
  for (const Expected& lost : link.expected) slots.arrived(lost.slot, lost.transfer, nullptr);
  log_line(LogLevel::kInfo, "a draft worker's rows no longer come from device to device: {}", reason);
  (void)endpoint.send(link.worker, Failure{reason});
}

void SliceLinks::forget_ended() {
  std::erase_if(of_worker_, [](const auto& entry) { return entry.second.ended; });
}

}  // namespace outrider
