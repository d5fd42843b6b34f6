// Selects the passes that are fair samples of pass times. The first plain passes after a draft are not: the
// target's threads have gone to sleep, and caches hold the draft model, which never happens in plain decoding
// (docs/default-policy.md has figures). Neither is a pass beside a probe draft: where drafts are made on the
// target's own devices it waited for them. A pass that verifies a draft always follows one, so it is fair.
// Plain values; events come in order.
#pragma once

#include <algorithm>
#include <utility>

namespace outrider {

class SettledPasses {
 public:
  static constexpr int kUnsettled = 4;  // passes after a draft

  // A draft was made for the next pass.
  void draft() { drafted_ = true; }
  // A probe draft came.
  void probe_draft() { unsettled_ = std::max(unsettled_, 1); }
  // A pass is over: returns whether to learn from it. The very first pass counts, since nothing else is
  // known. `beside`: a probe draft is under way.
  bool next(bool beside = false) {
    const bool drafted = std::exchange(drafted_, false);
    const int unsettled = std::exchange(unsettled_, drafted ? kUnsettled : std::max(0, unsettled_ - 1));
    return std::exchange(first_, false) || drafted || (unsettled == 0 && !beside);
  }

 private:
  bool drafted_ = false;  // a draft was made for the next pass
  int unsettled_ = 0;     // number of coming passes to skip, unless they verify a draft
  bool first_ = true;
};

}  // namespace outrider
