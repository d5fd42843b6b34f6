// A queue of future events under a virtual clock of microseconds, and links whose messages take random times.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/transport.h"

namespace outrider {

class VirtualNetwork {
 public:
  // One direction of the link between a peer and the coordinator, or the endpoint of a target rank.
  struct Link {
    PeerId peer;
    int direction = 0;
    auto operator<=>(const Link&) const = default;
  };
  static Link to_worker(PeerId peer) { return {peer, 1}; }
  static Link from_worker(PeerId peer) { return {peer, 0}; }
  static Link to_endpoint(PeerId peer, int rank) { return {peer, 2 + rank}; }

  explicit VirtualNetwork(std::mt19937_64& random) : random_(random) {}

  int64_t now_us() const { return now_us_; }
  void after(int64_t delay_us, std::function<void()> happens);
  // After 1 to max_delay_us, and if the link keeps the order after all that it carried before.
  void carry(Link link, int64_t max_delay_us, bool reorder, std::function<void()> arrives);

  // Lets the next thing happen. False: none is due by `until_us`, which it is now.
  bool advance(int64_t until_us);
  bool is_quiet() const { return events_.empty(); }

 private:
  struct Event {
    int64_t at_us;
    uint64_t order;
    std::function<void()> happens;
    bool operator>(const Event& other) const {
      return std::tie(at_us, order) > std::tie(other.at_us, other.order);
    }
  };

  std::mt19937_64& random_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t order_ = 0;
  int64_t now_us_ = 0;
  std::map<Link, int64_t> last_us_;  // latest arrival so far
};

}  // namespace outrider
