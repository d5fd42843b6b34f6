#include "target_worker/slice_links.h"

#include <spdlog/spdlog.h>

namespace outrider {
namespace {

// What a transfer says of its rows can be: every drafted token has a weight.
bool is_possible(const QTransfer& transfer, int32_t rows) {
  const size_t count = transfer.sums.size();
  if (count == 0 || count > static_cast<size_t>(rows) || transfer.drafted.size() != count) return false;
  for (size_t i = 0; i < count; ++i)
    if (transfer.drafted[i] == 0 || transfer.drafted[i] > transfer.sums[i]) return false;
  return true;
}

}  // namespace

void SliceLinks::join(const LinkOffer& offer, PeerId from, Transport& door, SliceSlots& slots) {
  if (of_worker_.contains(offer.worker)) return;
  // Those who went without a word make room.
  for (auto& [worker, link] : of_worker_)
    if (!link.ended && door.send(link.worker, Heartbeat{}).code() == StatusCode::kUnavailable)
      end(link, "the worker is gone", door, slots);
  if (!links_.join) return (void)door.send(from, Failure{"this rank takes no rows from device to device"});
  auto joined = links_.join(offer.id);
  if (!joined.ok()) {
    (void)door.send(from, Failure{joined.status().message()});
    return;
  }
  of_worker_[offer.worker] = {.worker = from, .rows = std::move(joined).value()};
}

void SliceLinks::receive(const QTransfer& transfer, PeerId from, Transport& door, SliceSlots& slots) {
  const auto at = of_worker_.find(transfer.worker);
  if (at == of_worker_.end() || at->second.ended) {
    slots.arrived(slots.announce(transfer), transfer, nullptr);
    (void)door.send(from, Failure{"there is no link"});
    return;
  }
  Link& link = at->second;
  if (!is_possible(transfer, links_.rows) || transfer.number != ++link.announced)
    return end(link, fmt::format("transfer {} of {} rows cannot be", transfer.number, transfer.sums.size()),
               door, slots);
  const int32_t slot = slots.announce(transfer);
  link.rows->transfer(slot, static_cast<int32_t>(transfer.sums.size()));
  link.expected.push_back({transfer, slot});
}

void SliceLinks::look(Transport& door, SliceSlots& slots) {
  for (auto& [worker, link] : of_worker_) {
    if (link.ended) continue;
    const LinkState state = link.rows->state();
    for (; link.done < link.rows->done(); ++link.done) {
      const Expected& first = link.expected.front();
      slots.arrived(first.slot, first.transfer, link.rows->slot(first.slot));
      link.expected.pop_front();
    }
    if (state == LinkState::kBroken) end(link, link.rows->reason(), door, slots);
  }
}

void SliceLinks::end(Generation worker, Transport& door, SliceSlots& slots) {
  const auto at = of_worker_.find(worker);
  if (at != of_worker_.end() && !at->second.ended)
    end(at->second, "some rank did not get its rows in time", door, slots);
}

void SliceLinks::end(Link& link, const std::string& reason, Transport& door, SliceSlots& slots) {
  link.rows->abort(reason);
  link.ended = true;
  for (const Expected& lost : link.expected) slots.arrived(lost.slot, lost.transfer, nullptr);
  spdlog::info("a draft worker's rows no longer come from device to device: {}", reason);
  (void)door.send(link.worker, Failure{reason});
}

void SliceLinks::forget_ended() {
  std::erase_if(of_worker_, [](const auto& entry) { return entry.second.ended; });
}

}  // namespace outrider
