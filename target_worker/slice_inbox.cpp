#include "target_worker/slice_inbox.h"

#include <thread>

namespace outrider {
namespace {

// Messages taken at a time, so that a peer that sends without end cannot block this rank.
constexpr int kMaxMessages = 4096;

}  // namespace

void SliceInbox::look() {
  links_.forget_ended();
  for (int i = 0; i < kMaxMessages; ++i) {
    auto incoming = endpoint_->receive(Clock::now());
    if (!incoming) break;
    take(*incoming);
  }
  links_.look(*endpoint_, slots_);
  hidden_states_.look();
}

void SliceInbox::gather(std::span<const PlanEntry> entries, Collectives& group, Clock::time_point deadline,
                        std::span<SlicedQ> sliced) {
  (void)collect(entries, deadline);  // who misses what comes out of the sums
  group.all_reduce_sum(slots_.tally(entries));
  slots_.settle(entries, group.size(), sliced);
  for (size_t e = 0; e < entries.size(); ++e)
    if (sliced[e].link_lost) links_.end(entries[e].worker, *endpoint_, slots_);
}

// Links are asked again and again: nothing wakes who waits for them.
bool SliceInbox::collect(std::span<const PlanEntry> entries, Clock::time_point deadline) {
  constexpr int kSpins = 200;
  constexpr std::chrono::microseconds kPause{20};
  for (int i = 0, late = 0; !slots_.complete(entries); ++i) {
    if (has_links_) links_.look(*endpoint_, slots_);
    const auto now = Clock::now();
    auto incoming = endpoint_->receive(has_links_ ? now : deadline);
    if (incoming) take(*incoming);
    if (incoming ? now >= deadline && ++late > kMaxMessages : now >= deadline || !has_links_)
      return slots_.complete(entries);
    if (!incoming && i >= kSpins) std::this_thread::sleep_for(kPause);
  }
  return true;
}

void SliceInbox::end_links() {
  links_.end_all();
  hidden_states_.end_all();
}

void SliceInbox::take(Incoming& incoming) {
  if (auto* const slice = std::get_if<QSlice>(&incoming.message)) {
    slots_.put(*slice);
    endpoint_->recycle(std::move(*slice));
  } else if (const auto* offer = std::get_if<LinkOffer>(&incoming.message)) {
    offer->hidden_states ? hidden_states_.join(*offer, incoming.peer)
                         : links_.join(*offer, incoming.peer, *endpoint_, slots_);
  } else if (const auto* transfer = std::get_if<QTransfer>(&incoming.message)) {
    links_.receive(*transfer, incoming.peer, *endpoint_, slots_);
  } else if (const auto* failure = std::get_if<Failure>(&incoming.message)) {
    hidden_states_.refuse(incoming.peer, failure->message);
  }
}

}  // namespace outrider
