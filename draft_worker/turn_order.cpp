#include "draft_worker/turn_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/log.h"

namespace outrider {

TurnOrder::TurnOrder(const std::vector<double>& weights) {
  for (const double weight : weights) {
    CHECK(weight > 0, "a weight of {}", weight);
    sessions_.push_back({.weight = weight});
  }
}

void TurnOrder::wait(size_t session) {
  Session& s = sessions_[session];
  if (s.waits) return;
  s.waits = true;
  s.since = ++events_;
  s.clock = std::max(s.clock, clock_);
}

void TurnOrder::leave(size_t session) { sessions_[session].waits = false; }

std::optional<size_t> TurnOrder::next() {
  Session* best = nullptr;
  for (Session& s : sessions_) {
    if (!s.waits) continue;
    if (!best || s.clock < best->clock || (s.clock == best->clock && s.since < best->since)) best = &s;
  }
  if (!best) return std::nullopt;
  best->since = ++events_;
  clock_ = std::max(clock_, best->clock);
  return static_cast<size_t>(best - sessions_.data());
}

void TurnOrder::charge(size_t session, Time time) {
  Session& s = sessions_[session];
  s.used += time;
  s.clock += static_cast<double>(time.count()) / s.weight;
}

std::vector<int64_t> parts_by_weight(int64_t total, const std::vector<double>& weights) {
  const auto count = static_cast<int64_t>(weights.size());
  CHECK(count > 0 && total >= count, "{} parts of {}", count, total);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> parts(weights.size());
  const auto share = [&](size_t i) { return static_cast<double>(total) * weights[i] / sum; };
  for (size_t i = 0; i < parts.size(); ++i)
    parts[i] = std::max<int64_t>(1, static_cast<int64_t>(std::floor(share(i))));
  // One at a time, to or from the part that is farthest from its share.
  const auto lacks = [&](size_t i) { return share(i) - static_cast<double>(parts[i]); };
  for (int64_t left = total - std::accumulate(parts.begin(), parts.end(), int64_t{0}); left != 0;) {
    size_t at = parts.size();
    for (size_t i = 0; i < parts.size(); ++i) {
      if (left < 0 && parts[i] == 1) continue;
      if (at == parts.size() || (left > 0 ? lacks(i) > lacks(at) : lacks(i) < lacks(at))) at = i;
    }
    parts[at] += left > 0 ? 1 : -1;
    left += left > 0 ? -1 : 1;
  }
  return parts;
}

}  // namespace outrider
