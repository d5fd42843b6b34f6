// The dirty set of target groups: those affected by an event, and those whose deadline has passed. An event
// costs only as much as the groups it affects. Groups are known by number.
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

class DirtySet {
 public:
  explicit DirtySet(int32_t groups) : due_(static_cast<size_t>(groups)), is_dirty_(due_.size()) {
    mark_all_dirty();
  }

  // Marks the group dirty.
  void mark_dirty(int32_t group) {
    if (is_dirty_[static_cast<size_t>(group)]) return;
    is_dirty_[static_cast<size_t>(group)] = true;
    now_.insert(std::upper_bound(now_.begin(), now_.end(), group), group);
  }
  void mark_all_dirty() {
    for (size_t i = 0; i < is_dirty_.size(); ++i) mark_dirty(static_cast<int32_t>(i));
  }
  // Marks groups dirty whose deadline has passed.
  void wake(Clock::time_point now) {
    for (auto at = by_time_.begin(); at != by_time_.end() && at->first <= now; ++at) mark_dirty(at->second);
  }
  // The dirty groups, in ascending order; mark_dirty() may add to them during a visit.
  const std::vector<int32_t>& dirty() const { return now_; }
  // A dirty group was visited. `due`: its next deadline if no event comes before.
  void settle(int32_t group, std::optional<Clock::time_point> due) {
    auto& known = due_[static_cast<size_t>(group)];
    if (known == due) return;
    if (known) by_time_.erase({*known, group});
    if (due) by_time_.insert({*due, group});
    known = due;
  }
  void settled_all() {
    for (const int32_t group : now_) is_dirty_[static_cast<size_t>(group)] = false;
    before_.swap(now_);
    now_.clear();
  }
  // The groups that are dirty now or were at the last event, in ascending order.
  std::vector<int32_t> lately_dirty() const {
    std::vector<int32_t> both;
    std::set_union(now_.begin(), now_.end(), before_.begin(), before_.end(), std::back_inserter(both));
    return both;
  }
  std::optional<Clock::time_point> next() const {
    return by_time_.empty() ? std::nullopt : std::optional(by_time_.begin()->first);
  }

 private:
  std::vector<std::optional<Clock::time_point>> due_;  // by group
  std::vector<bool> is_dirty_;                         // dirty groups, by group
  std::vector<int32_t> now_, before_;                  // dirty groups, ascending
  std::set<std::pair<Clock::time_point, int32_t>> by_time_;
};

}  // namespace outrider
