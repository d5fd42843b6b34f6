#include "target_worker/successor_ranks.h"

namespace outrider {
namespace {

constexpr size_t kListed = static_cast<size_t>(kSuccessors);
// One slot more than the list: not 0 if this rank's slice of the row is not finite.
constexpr size_t kStride = kListed + 1;

}  // namespace

std::span<const TokenId> SuccessorRanks::rank(const LogitsShard& logits, std::span<const int64_t> rows) {
  best_.clear();
  if (rows.empty()) return best_;
  const Chunks chunks{logits.vocab_range};
  chunk_max_.resize(static_cast<size_t>(chunks.count()));
  mine_.assign(rows.size() * kStride, 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::span<float> row = logits.logits.row(rows[i]);
    uint64_t* out = mine_.data() + i * kStride;
    if (scale_and_scan(row, chunks, 1.0f, chunk_max_)) {
      out[kListed] = 1;
      continue;
    }
    for (const RankedToken token : top_.local(row, chunks, chunk_max_, kListed)) *out++ = token.packed;
  }
  const auto ranks = static_cast<size_t>(group_.size());
  all_.resize(mine_.size() * ranks);
  group_.all_gather(std::as_bytes(std::span(mine_)), std::as_writable_bytes(std::span(all_)));
  for (size_t i = 0; i < rows.size(); ++i) {
    bool finite = true;
    for (size_t r = 0; r < ranks; ++r) finite &= all_[r * mine_.size() + i * kStride + kListed] == 0;
    const auto merged = top_.merge(all_, i * kStride, mine_.size(), ranks, kListed);
    finite &= !merged.empty() && merged.front().is_finite();
    for (size_t k = 0; k < kListed; ++k)
      best_.push_back(finite && k < merged.size() && merged[k].is_finite() ? merged[k].id() : TokenId(-1));
  }
  return best_;
}

}  // namespace outrider
