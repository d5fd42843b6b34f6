#include "virtual_network.h"

#include <algorithm>

namespace outrider {

void VirtualNetwork::after(int64_t delay_us, std::function<void()> happens) {
  events_.push({now_us_ + delay_us, order_++, std::move(happens)});
}

void VirtualNetwork::carry(Link link, int64_t max_delay_us, bool reorder, std::function<void()> arrives) {
  int64_t at = now_us_ + std::uniform_int_distribution<int64_t>(1, max_delay_us)(random_);
  if (!reorder) {
    int64_t& last = last_us_[link];
    at = last = std::max(last + 1, at);
  }
  after(at - now_us_, std::move(arrives));
}

bool VirtualNetwork::advance(int64_t until_us) {
  if (events_.empty() || until_us < events_.top().at_us) {
    now_us_ = until_us;
    return false;
  }
  const Event event = events_.top();
  events_.pop();
  now_us_ = event.at_us;
  event.happens();
  return true;
}

}  // namespace outrider
