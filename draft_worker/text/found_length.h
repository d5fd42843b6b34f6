// The best length of a draft that was found in the text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace outrider {

struct FoundLength {
  int32_t tokens = 0;
  double rate = 0;  // expected tokens of the round per nanosecond
};

// The beginning of a draft with the most expected tokens per second. chances[i]: that the draft is right up
// to its token i. `pass_ns`: a sequence's share of a pass without drafts; `row_ns`: cost of a further row.
// Empty if no length pays.
inline FoundLength best_found_length(std::span<const double> chances, int64_t pass_ns, int64_t row_ns) {
  double seconds = static_cast<double>(std::max<int64_t>(1, pass_ns)), tokens = 1;
  FoundLength best{.tokens = 0, .rate = tokens / seconds};
  for (size_t i = 0; i < chances.size(); ++i) {
    tokens += chances[i];
    seconds += static_cast<double>(row_ns);
    if (tokens / seconds > best.rate) best = {static_cast<int32_t>(i) + 1, tokens / seconds};
  }
  return best;
}

}  // namespace outrider
