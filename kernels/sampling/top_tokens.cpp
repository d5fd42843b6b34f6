#include "kernels/sampling/top_tokens.h"

#include <algorithm>
#include <functional>

namespace outrider {

std::span<const RankedToken> TopTokens::keep_best(size_t k) {
  if (tokens_.size() > k) {
    std::nth_element(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(k), tokens_.end(),
                     std::greater<>());
    tokens_.resize(k);
  }
  std::sort(tokens_.begin(), tokens_.end(), std::greater<>());
  return tokens_;
}

std::span<const RankedToken> TopTokens::local(std::span<const float> logits, Chunks chunks,
                                              std::span<const float> chunk_max, size_t k) {
  tokens_.clear();
  if (k == 0) return tokens_;
  // With k chunks whose maxima reach some value, so do the k best tokens: look only at those.
  float floor = kMinusInfinity;
  if (chunk_max.size() > k) {
    maxima_.assign(chunk_max.begin(), chunk_max.end());
    const auto nth = maxima_.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(maxima_.begin(), nth, maxima_.end(), std::greater<>());
    floor = *nth;
  }
  for (int64_t c = 0; c < chunks.count(); ++c) {
    if (chunk_max[static_cast<size_t>(c)] < floor) continue;
    const IndexRange local = chunks.local(c);
    for (int64_t i = local.begin; i < local.end; ++i) {
      const float logit = logits[static_cast<size_t>(i)];
      if (logit >= floor && logit > kMinusInfinity)
        tokens_.push_back(RankedToken::of(logit, chunks.range.begin + i));
    }
  }
  return keep_best(k);
}

std::span<const RankedToken> TopTokens::merge(std::span<const uint64_t> all, size_t offset, size_t stride,
                                              size_t ranks, size_t k) {
  tokens_.clear();
  for (size_t r = 0; r < ranks; ++r)
    for (uint64_t packed : all.subspan(r * stride + offset, k))
      if (packed != 0) tokens_.push_back({packed});
  return keep_best(k);
}

}  // namespace outrider
