#include "draft_worker/model/ranked_pass.h"

#include <algorithm>

namespace outrider {

void RankedPass::begin() { looks_.clear(); }

void RankedPass::add(const DraftStep& step, int64_t row, size_t count) {
  const size_t at = looks_.size();
  drafted_.resize(std::max(drafted_.size(), at + 1));
  drafted_[at].assign(step.drafted.begin(), step.drafted.end());
  looks_.push_back({.step = step, .row = row, .count = static_cast<int32_t>(count)});
}

bool RankedPass::is_taken() {
  for (size_t i = 0; i < looks_.size(); ++i) looks_[i].step.drafted = drafted_[i];
  return runner_.takes(looks_);
}

std::span<const RankedToken> RankedPass::best(int64_t row) const {
  const auto look = std::lower_bound(looks_.begin(), looks_.end(), row,
                                     [](const TokenLook& l, int64_t of) { return l.row < of; });
  CHECK(look != looks_.end() && look->row == row, "nobody looked at row {}", row);
  return runner_.best(static_cast<size_t>(look - looks_.begin()));
}

}  // namespace outrider
