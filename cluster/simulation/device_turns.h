// Devices shared by the target and the drafters of a group: one of the two works at a time, in the order of
// requests. Drafters work in parallel, because each is on another device of the group.
#pragma once

#include <deque>
#include <functional>
#include <utility>

namespace outrider {

class DeviceTurns {
 public:
  enum class Kind { kTarget, kDraft };

  // Calls `start` when the turn has come, now or from an end(). The caller must report its end.
  void ask(Kind kind, std::function<void()> start) {
    waiting_.emplace_back(kind, std::move(start));
    start_waiting();
  }
  void end(Kind kind) {
    --(kind == Kind::kTarget ? targets_ : drafts_);
    start_waiting();
  }

 private:
  // First come, first served: a drafter with endless passes must not starve the target.
  void start_waiting() {
    while (!waiting_.empty()) {
      const Kind kind = waiting_.front().first;
      if (targets_ > 0 || (kind == Kind::kTarget && drafts_ > 0)) return;
      ++(kind == Kind::kTarget ? targets_ : drafts_);
      const auto start = std::move(waiting_.front().second);
      waiting_.pop_front();
      start();
    }
  }

  std::deque<std::pair<Kind, std::function<void()>>> waiting_;
  int targets_ = 0, drafts_ = 0;  // at work
};

}  // namespace outrider
