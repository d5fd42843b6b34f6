// Which passes tell what passes of so many rows cost. The first plain passes after a draft do not: the
// target's threads have gone to sleep, and caches hold the draft model, which plain decoding, having no
// drafts, never meets (docs/default-policy.md has figures). Nor does a pass beside which a shadow draft was
// under way: where drafts are made on the target's own devices it waited for them. A pass that verifies a
// draft always follows one. Plain values; told in the order of events.
#pragma once

#include <algorithm>
#include <utility>

namespace outrider {

class SettledPasses {
 public:
  static constexpr int kUnsettled = 4;  // passes after a draft

  // A draft was made for the next pass.
  void draft() { drafted_ = true; }
  // One came that no pass waited for.
  void shadow() { unsettled_ = std::max(unsettled_, 1); }
  // A pass is over: whether to learn from it. From the very first, since nothing else is known. `beside`: a
  // shadow draft is under way.
  bool next(bool beside = false) {
    const bool drafted = std::exchange(drafted_, false);
    const int unsettled = std::exchange(unsettled_, drafted ? kUnsettled : std::max(0, unsettled_ - 1));
    return std::exchange(first_, false) || drafted || (unsettled == 0 && !beside);
  }

 private:
  bool drafted_ = false;  // for the next pass
  int unsettled_ = 0;     // so many passes from now on, unless they verify a draft
  bool first_ = true;
};

}  // namespace outrider
