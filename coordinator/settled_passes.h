// Which passes tell what passes of so many rows cost. The first plain pass after a draft does not: the
// target's threads have gone to sleep, and caches hold the draft model, which plain decoding, having no
// drafts, never meets (docs/default-policy.md has figures). Nor does a plain pass beside which a shadow draft
// was made. A pass that verifies a draft always follows one. Plain values; told in the order of events.
#pragma once

#include <utility>

namespace outrider {

class SettledPasses {
 public:
  // A draft was made for the next pass.
  void draft() { drafted_ = true; }
  // One was made that no pass waited for.
  void shadow() { unsettled_ = true; }
  // A pass is over: whether to learn from it. From the very first, since nothing else is known.
  bool next() {
    const bool drafted = std::exchange(drafted_, false);
    const bool unsettled = std::exchange(unsettled_, drafted);
    return std::exchange(first_, false) || drafted || !unsettled;
  }

 private:
  bool drafted_ = false;    // for the next pass
  bool unsettled_ = false;  // the last pass had a draft, or one was made since
  bool first_ = true;
};

}  // namespace outrider
