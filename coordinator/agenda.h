// Which target groups have something to do: those to which something happened, and those whose time has come.
// So an event costs what it concerns, however many groups there are. Knows groups by their number only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "comm/transport.h"

namespace outrider {

class Agenda {
 public:
  explicit Agenda(int32_t groups) : due_(static_cast<size_t>(groups)), stirred_(due_.size()) { stir_all(); }

  // Something happened to it that it may have to act on.
  void stir(int32_t group) {
    if (stirred_[static_cast<size_t>(group)]) return;
    stirred_[static_cast<size_t>(group)] = true;
    now_.insert(std::upper_bound(now_.begin(), now_.end(), group), group);
  }
  void stir_all() {
    for (size_t i = 0; i < stirred_.size(); ++i) stir(static_cast<int32_t>(i));
  }
  // Those whose time has come are stirred.
  void wake(Clock::time_point now) {
    for (auto at = by_time_.begin(); at != by_time_.end() && at->first <= now; ++at) stir(at->second);
  }
  // Who is to be looked at, in order; grows by stir().
  const std::vector<int32_t>& stirred() const { return now_; }
  // It was looked at. `due`: when it has something to do if nothing happens before.
  void settle(int32_t group, std::optional<Clock::time_point> due) {
    auto& known = due_[static_cast<size_t>(group)];
    if (known == due) return;
    if (known) by_time_.erase({*known, group});
    if (due) by_time_.insert({*due, group});
    known = due;
  }
  void settled_all() {
    for (const int32_t group : now_) stirred_[static_cast<size_t>(group)] = false;
    before_.swap(now_);
    now_.clear();
  }
  // Who is to be looked at, or was at the last event, in order.
  std::vector<int32_t> stirred_lately() const {
    std::vector<int32_t> both;
    std::set_union(now_.begin(), now_.end(), before_.begin(), before_.end(), std::back_inserter(both));
    return both;
  }
  std::optional<Clock::time_point> next() const {
    return by_time_.empty() ? std::nullopt : std::optional(by_time_.begin()->first);
  }

 private:
  std::vector<std::optional<Clock::time_point>> due_;  // by group
  std::vector<bool> stirred_;                          // the same
  std::vector<int32_t> now_, before_;                  // stirred, in order
  std::set<std::pair<Clock::time_point, int32_t>> by_time_;
};

}  // namespace outrider
