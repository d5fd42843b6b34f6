// Devices that target and drafters of a group share: one of the two works at a time, in the order of asking.
// Drafters work beside each other, for each is on another device of the group.
#pragma once

#include <deque>
#include <functional>
#include <utility>

namespace outrider {

class DeviceTurns {
 public:
  enum class Kind { kTarget, kDraft };

  // `start` is called when the turn has come, now or from an end(). Whoever started says so when it ends.
  void ask(Kind kind, std::function<void()> start) {
    waiting_.emplace_back(kind, std::move(start));
    start_waiting();
  }
  void end(Kind kind) {
    --(kind == Kind::kTarget ? targets_ : drafts_);
    start_waiting();
  }

 private:
  // Nobody overtakes: a drafter that goes on and on would keep the target waiting for ever.
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
